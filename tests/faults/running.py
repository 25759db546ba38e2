"""Calls in the middle of their tools."""

from tests.support import CallerPeer, WorkerPeer, progress, result


class Running:
    """A call in the middle of its tool, which has to end as if nothing had been."""

    def __init__(self, caller: CallerPeer, worker: WorkerPeer, call: int, run: int) -> None:
        self.caller, self.worker, self.call, self.run = caller, worker, call, run

    async def reports(self) -> None:
        """Its progress arrives."""
        await self.worker.progress(self.run, {"message": "going on"})
        await self.caller.next_of("progress", self.call)

    async def ends_well(self) -> None:
        await self.worker.send(progress(self.run, {"message": "still here"}), result(self.run, "well"))
        assert (await self.caller.outcome(self.call)).result.json == b'"well"'
        bodies = self.caller.bodies(self.call)
        assert bodies == ["started", *["progress"] * (len(bodies) - 2), "outcome"]
        assert "cancel" not in self.worker.bodies(self.run)


async def running(caller: CallerPeer, worker: WorkerPeer, tool: str = "echo") -> Running:
    call = await caller.start(tool, {"text": "hello"})
    return Running(caller, worker, call, (await worker.next_invoke()).call)
