"""What becomes of cleanups when worker processes end, are replaced, or hang while the sidecar stops."""

import os
import signal
import time
from pathlib import Path

import pytest

from sidecar._gen.pillion.v1.execute_pb2 import EndScopeRequest
from tests.integration.teardowns import SESSION
from tests.support import CallerPeer, SidecarProcess, StartProcess, attach, end_scope, hosted, on_unix

pytestmark = on_unix

LIMITS = "[limits.calls]\nworker_wait = 20\n"
SOON = 15.0
"""Long before an instance that may come back is given up."""


async def keep(caller: CallerPeer, scope: str, name: str) -> None:
    outcome = await caller.call("keep", {"scope": scope, "name": name, "seconds": 0}, session_id="s", run_id="r")
    assert outcome.HasField("result"), outcome


async def test_what_a_process_kept_is_lost_at_once_when_it_ends(start_process: StartProcess) -> None:
    process = await start_process(LIMITS + hosted("keeper", "keep pid"))
    caller = await process.caller()
    await keep(caller, "session", "first")
    os.kill(int((await caller.call("pid")).result.json), signal.SIGKILL)
    begun = time.monotonic()
    await process.says("the cleanup of keep for the end of its session was lost")
    assert time.monotonic() - begun < SOON
    answer = await end_scope(process, EndScopeRequest(session_id="s"))
    assert (answer.fired, answer.failed) == (0, 0)


async def test_a_worker_that_is_replaced_by_a_reload_stays_until_its_sessions_end(
    start_process: StartProcess, tmp_path: Path
) -> None:
    cleaned, left = tmp_path / "cleaned", tmp_path / "left"
    options = ("--cleaned", str(cleaned), "--left", str(left))
    process = await start_process(LIMITS + hosted("keeper", "keep label", *options, "--label", "old"))
    caller = await process.caller()
    await keep(caller, "session", "first")
    await keep(caller, "run", "second")
    process.write(LIMITS + hosted("keeper", "keep label", *options, "--label", "new"))
    await process.says("reloaded")
    assert (await caller.call("label")).result.json == b'"new"'
    answer = await end_scope(process, EndScopeRequest(session_id="s"))
    assert (answer.fired, answer.failed) == (1, 0)
    assert not left.exists()
    answer = await end_scope(process, EndScopeRequest(run_id="r"))
    assert (answer.fired, answer.failed) == (1, 0)
    await process.says("old left in order")
    lines = [line.split(maxsplit=1)[1] for line in cleaned.read_text().splitlines()]
    assert lines == ["first SESSION_END", "second RUN_END"]


@pytest.mark.parametrize("how", ["hangs", "has gone"])
async def test_a_stop_waits_for_cleanups_no_longer_than_their_grace(sidecar_process: SidecarProcess, how: str) -> None:
    worker, caller = await attach(sidecar_process), await sidecar_process.caller()
    call = await caller.start(session_id="s")
    run = (await worker.next_invoke()).call
    await worker.registered(run, SESSION)
    await worker.result(run)
    await caller.outcome(call)
    if how == "has gone":
        worker.cut()
    begun = time.monotonic()
    sidecar_process.send(signal.SIGTERM)
    assert await sidecar_process.ended() == 0
    assert time.monotonic() - begun < 5 + 1 + SOON / 2
