"""Guarantee 15: a reload under load is atomic: calls end as if nothing had been, and a bad file changes nothing."""

import asyncio
import os
import signal

from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind
from tests.support import CallerPeer, StartProcess, hosted, on_unix
from tests.support.watch import watched

LIMITS = "[limits.calls]\nworker_wait = 25\n"
CHANGING, GOING = 150, 50
STAYS = hosted("stays", "pid")
BEFORE = LIMITS + hosted("changes", "label wait", "--label", "one") + hosted("goes", "clock") + STAYS
AFTER = LIMITS + hosted("changes", "label wait", "--label", "two") + STAYS + hosted("comes", "echo")
PATIENCE = 30.0


class Load:
    """One call after another, until it is ended."""

    def __init__(self, caller: CallerPeer) -> None:
        self.labels: list[str] = []
        self._news = asyncio.Event()
        self._caller = caller
        self._ended = False
        self._task = asyncio.ensure_future(self._run())
        self._task.add_done_callback(lambda _: self._news.set())

    async def _run(self) -> None:
        while not self._ended:
            outcome = await self._caller.call("label", timeout=PATIENCE)
            assert outcome.HasField("result"), outcome
            self.labels.append(outcome.result.json.decode())
            self._news.set()

    async def until(self, label: str) -> None:
        """Returns once this was the answer."""
        async with asyncio.timeout(PATIENCE):
            while label not in self.labels:
                if self._task.done():
                    await self._task
                self._news.clear()
                await self._news.wait()

    async def end(self) -> None:
        self._ended = True
        await self._task


@on_unix
async def test_guarantee_15_a_reload_under_load_loses_no_call_and_no_tool(start_process: StartProcess) -> None:
    process = await start_process(BEFORE)
    caller = await process.caller()
    async with watched(process.callers_at) as watch:
        await watch.until("label", "wait", "clock", "pid")
        since = len(watch.seen)
        pid = (await caller.call("pid")).result.json
        loads = [Load(await process.caller()) for _ in range(3)]
        starts = [caller.starting("wait", {"seconds": 2.0}) for _ in range(CHANGING)]
        starts += [caller.starting("clock", {"seconds": 2.0}) for _ in range(GOING)]
        await caller.send(*starts)
        for frame in starts:
            await caller.next_of("progress", frame.call)
        process.write(AFTER)
        process.send(signal.SIGHUP)
        await process.says("reloaded")
        gone = await caller.call("clock")
        assert gone.failure.kind == FailureKind.FAILURE_KIND_UNKNOWN_TOOL
        outcomes = [await caller.outcome(frame.call) for frame in starts]
        assert all(outcome.HasField("result") for outcome in outcomes), outcomes
        assert {outcome.result.json for outcome in outcomes[:CHANGING]} == {b'"one"'}
        assert b'"cancelled"' not in {outcome.result.json for outcome in outcomes}
        for load in loads:
            await load.until('"two"')
            await load.end()
            assert load.labels == sorted(load.labels), "once the new one answers, the old one does not"
        await watch.until("label", "wait", "pid", "echo")
        assert (await caller.call("echo", {"text": "hello"})).result.json == b'{"text": "hello"}'
        assert (await caller.call("pid")).result.json == pid, "what did not change was left alone"
        assert all({"label", "wait", "pid"} <= seen for seen in watch.seen[since:]), watch.seen


BAD = {
    "no TOML": "= what\n",
    "more than can be read": f"listen = {'[' * 5_000}\n",
    "an unknown key": AFTER + "colour = 1\n",
    "no user": AFTER + '[[worker]]\nname = "other"\ncommand = ["true"]\nuser = "nobody-of-this-name"\n',
    "no token": AFTER + '[[worker]]\nname = "other"\ntoken_file = "none.token"\n',
    "another limit": AFTER.replace("worker_wait = 25", "worker_wait = 26"),
}


@on_unix
async def test_guarantee_15_a_bad_file_keeps_what_runs(start_process: StartProcess) -> None:
    process = await start_process(BEFORE)
    caller = await process.caller()
    pid = (await caller.call("pid")).result.json
    assert (await caller.call("label")).result.json == b'"one"'
    async with watched(process.callers_at) as watch:
        await watch.until("label", "wait", "clock", "pid")
        since = len(watch.seen)
        running = await caller.start("wait", {"seconds": 3.0})
        for times, text in enumerate(BAD.values(), 1):
            process.write(text)
            process.send(signal.SIGHUP)
            await process.says("the settings were not reloaded, and those before stay", times)
            assert (await caller.call("label")).result.json == b'"one"'
        assert (await caller.call("pid")).result.json == pid
        assert (await caller.outcome(running)).result.json == b'"one"'
        assert all(seen == watch.seen[since - 1] for seen in watch.seen[since:])
        assert not any(": reloaded" in line for line in process.said)


@on_unix
async def test_guarantee_15_a_change_of_the_file_is_enough(start_process: StartProcess) -> None:
    process = await start_process(LIMITS + hosted("changes", "label", "--label", "one"))
    load = Load(await process.caller())
    await load.until('"one"')
    process.write(LIMITS + hosted("changes", "label", "--label", "two"))
    await load.until('"two"')
    await load.end()
    assert load.labels == sorted(load.labels)


@on_unix
async def test_guarantee_15_an_outage_empties_no_catalogue(start_process: StartProcess) -> None:
    process = await start_process(LIMITS + hosted("outage", "pid") + hosted("other", "label", "--label", "one"))
    caller = await process.caller()
    async with watched(process.callers_at) as watch:
        await watch.until("label", "pid")
        before = len(watch.seen)
        pid = int((await caller.call("pid")).result.json)
        for _ in range(3):
            os.kill(pid, signal.SIGKILL)
            again = int((await caller.call("pid")).result.json)
            assert again != pid
            pid = again
        assert len(watch.seen) == before, watch.seen
