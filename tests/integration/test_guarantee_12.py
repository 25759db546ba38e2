"""Guarantee 12: a drain lets running tools finish, then takes the workers down in order."""

import signal
import time
from pathlib import Path

from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind
from tests.support import StartProcess, hosted, on_unix

LIMITS = "[limits.calls]\nworker_wait = 20\n"
HURRY_SECONDS = 15.0


@on_unix
async def test_guarantee_12_running_tools_finish_and_then_workers_leave(
    start_process: StartProcess, tmp_path: Path
) -> None:
    left = {name: tmp_path / f"{name}.left" for name in ("busy", "idle")}
    process = await start_process(
        LIMITS
        + hosted("busy", "clock", "--left", str(left["busy"]), "--label", "busy")
        + hosted("idle", "label", "--left", str(left["idle"]), "--label", "idle")
    )
    caller = await process.caller()
    assert (await caller.call("label")).result.json == b'"idle"'
    running = [await caller.start("clock", {"seconds": 2.0}) for _ in range(3)]
    for call in running:
        await caller.next_of("progress", call)
    process.send(signal.SIGTERM)
    await caller.next_of("draining")
    refused = await caller.call("label")
    assert refused.failure.kind == FailureKind.FAILURE_KIND_UNAVAILABLE
    outcomes = [await caller.outcome(call) for call in running]
    assert all(outcome.HasField("result") for outcome in outcomes), outcomes
    assert await process.ended() == 0
    finished = max(float(outcome.result.json) for outcome in outcomes)
    for name, path in left.items():
        (when,) = path.read_text().splitlines()
        assert float(when) > finished
        await process.says(f"{name} left in order")
    assert not any("next try" in line for line in process.said)


@on_unix
async def test_guarantee_12_what_tools_ask_is_answered_and_scopes_are_torn_down_before_workers_leave(
    start_process: StartProcess, tmp_path: Path
) -> None:
    left, cleaned = tmp_path / "left", tmp_path / "cleaned"
    process = await start_process(
        LIMITS + hosted("keeper", "keep ask", "--left", str(left), "--cleaned", str(cleaned), "--label", "keeper")
    )
    caller = await process.caller()
    for scope, name in (("session", "first"), ("run", "second"), ("shutdown", "third"), ("session", "fourth")):
        kept = await caller.call("keep", {"scope": scope, "name": name, "seconds": 0}, session_id="s", run_id="r")
        assert kept.HasField("result"), kept
    asking = await caller.start("ask", {"seconds": 2.0})
    keeping = await caller.start("keep", {"scope": "call", "name": "of call", "seconds": 1.0})
    late = await caller.start("keep", {"scope": "session", "name": "fifth", "seconds": 1.5}, session_id="t")
    for call in (asking, keeping, late):
        await caller.next_of("progress", call)
    process.send(signal.SIGTERM)
    await caller.next_of("draining")
    outcomes = [await caller.outcome(call) for call in (asking, keeping, late)]
    assert all(outcome.HasField("result") for outcome in outcomes), outcomes
    assert await process.ended() == 0
    lines = [line.split(maxsplit=1) for line in cleaned.read_text().splitlines()]
    assert [line for _, line in lines] == [
        "of call CALL_END",
        "fifth SHUTDOWN",
        "fourth SHUTDOWN",
        "third SHUTDOWN",
        "second SHUTDOWN",
        "first SHUTDOWN",
    ]
    answered, fired = float(outcomes[0].result.json), [float(when) for when, _ in lines]
    assert fired[0] < answered < fired[1], "calls finish first"
    (when,) = left.read_text().splitlines()
    assert float(when) > fired[-1], "workers leave last"
    await process.says("keeper left in order")


@on_unix
async def test_guarantee_12_a_second_signal_hurries(start_process: StartProcess) -> None:
    process = await start_process(LIMITS + hosted("slow", "wait"))
    caller = await process.caller()
    call = await caller.start("wait", {"seconds": 50}, timeout=55)
    await caller.next_of("progress", call)
    process.send(signal.SIGTERM)
    await caller.next_of("draining")
    await caller.flush()
    assert caller.bodies(call) == ["started", "progress"]
    begun = time.monotonic()
    process.send(signal.SIGTERM)
    outcome = await caller.outcome(call)
    assert outcome.failure.kind == FailureKind.FAILURE_KIND_CANCELLED
    assert await process.ended() == 0
    assert time.monotonic() - begun < HURRY_SECONDS


@on_unix
async def test_guarantee_12_a_tool_that_never_ends_holds_up_no_stop(start_process: StartProcess) -> None:
    process = await start_process(LIMITS + hosted("slow", "block", "--label", "slow"))
    caller = await process.caller()
    call = await caller.start("block", {"seconds": 600}, timeout=55)
    await caller.next_of("progress", call)
    begun = time.monotonic()
    process.send(signal.SIGTERM)
    await caller.next_of("draining")
    process.send(signal.SIGTERM)
    assert (await caller.outcome(call)).failure.kind == FailureKind.FAILURE_KIND_CANCELLED
    assert await process.ended() == 0
    assert time.monotonic() - begun < HURRY_SECONDS
