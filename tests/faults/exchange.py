"""One call, recorded message by message: what is said on each hop, and the peers that say it."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outbound_pb2 import OutboundRequest
from sidecar._gen.pillion.v1.outcome_pb2 import Outcome
from sidecar._gen.pillion.v1.tool_pb2 import Effects
from sidecar.wire.transport import StreamLost
from tests.faults.proxy import FROM_SIDECAR, TO_SIDECAR, Cut, Proxy
from tests.support import CallerPeer, WorkerPeer, tool

REPORTS = 3

CALLER_MESSAGES = (
    (TO_SIDECAR, 1, "hello"),
    (FROM_SIDECAR, 1, "hello back"),
    (TO_SIDECAR, 2, "start"),
    (FROM_SIDECAR, 2, "started, progress"),
    (FROM_SIDECAR, 3, "progress"),
    (FROM_SIDECAR, 4, "progress"),
    (FROM_SIDECAR, 5, "outcome"),
)
"""What passes between caller and sidecar, in order."""

WORKER_MESSAGES = (
    (TO_SIDECAR, 1, "hello"),
    (FROM_SIDECAR, 1, "welcome"),
    (FROM_SIDECAR, 2, "invoke"),
    (TO_SIDECAR, 2, "progress"),
    (TO_SIDECAR, 3, "progress"),
    (TO_SIDECAR, 4, "progress"),
    (TO_SIDECAR, 5, "request"),
    (FROM_SIDECAR, 3, "reply"),
    (TO_SIDECAR, 6, "outcome"),
)
"""What passes between sidecar and worker, in order."""


def cuts(messages: tuple[tuple[str, int, str], ...]) -> list[Cut]:
    """A cut behind every message and one inside each."""
    return [Cut(direction, message, inside) for direction, message, _ in messages for inside in (True, False)]


def place(cut: Cut, messages: tuple[tuple[str, int, str], ...]) -> int:
    """How many messages of the hop passed whole, both ways, before or at the cut."""
    [index] = [i for i, message in enumerate(messages) if message[:2] == (cut.direction, cut.message)]
    return index if cut.inside else index + 1


class Exchange:
    """Runs the recorded call until it has its outcome, or until one of its connections is cut."""

    def __init__(self, caller: CallerPeer, worker: WorkerPeer, *proxies: Proxy) -> None:
        self.caller = caller
        self.worker = worker
        self.call = 0
        """The call's id on the caller's hop, once it was started."""
        self._proxies = proxies

    async def attach(self, effects: "Effects.ValueType") -> bool:
        """Presents the worker; whether it was welcomed."""
        await self._say(self.worker.present(tool("echo", effects=effects), concurrency=4))
        return await self._hear(self.worker.next_of("welcome"))

    async def run(self) -> bool:
        """The rest of the exchange; whether it came to its end."""
        hello = Frame()
        hello.caller_hello.SetInParent()
        await self._say(self.caller.send(hello))
        if not await self._hear(self.caller.next_of("host_hello")):
            return False
        start = self.caller.starting("echo", {"text": "hello"})
        self.call = start.call
        await self._say(self.caller.send(start))
        if not await self._hear(self.worker.next_invoke()):
            return False
        run = self.worker.invoked[0].call
        for number in range(REPORTS):
            await self._say(self.worker.progress(run, {"message": f"step {number}"}))
            if not await self._hear(self.caller.next_of("progress", self.call)):
                return False
        request = Frame(call=run, outbound_request=OutboundRequest(request_id=1))
        request.outbound_request.kv_get.key = "key"
        await self._say(self.worker.send(request))
        if not await self._hear(self.worker.next_of("reply", run)):
            return False
        await self._say(self.worker.result(run, "done"))
        return await self._hear(self.caller.next_of("outcome", self.call))

    async def outcome(self) -> Outcome:
        """The outcome of the call, which may have come already."""
        for outcome in self.caller.outcomes(self.call):
            return outcome
        return await self.caller.outcome(self.call)

    async def _say(self, sending: Coroutine[Any, Any, None]) -> None:
        try:
            await sending
        except StreamLost:
            assert any(proxy.was_cut.is_set() for proxy in self._proxies), "a stream was lost that was not cut"

    async def _hear(self, waiting: Coroutine[Any, Any, Any]) -> bool:
        """Waits for something that comes, or for the cut; whether it came."""
        heard = asyncio.ensure_future(waiting)
        cuts = [asyncio.ensure_future(proxy.was_cut.wait()) for proxy in self._proxies]
        try:
            await asyncio.wait((heard, *cuts), return_when=asyncio.FIRST_COMPLETED)
            if any(cut.done() for cut in cuts):
                return False
            await heard
            return True
        finally:
            for task in (heard, *cuts):
                task.cancel()
            await asyncio.gather(heard, *cuts, return_exceptions=True)
