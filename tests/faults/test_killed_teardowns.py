"""The sidecar, its workers or its guardian are killed while cleanups are kept: none is lost, and none runs twice."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import psutil
import pytest

from sidecar._gen.pillion.v1.context_pb2 import TeardownReason, TeardownScope
from sidecar._gen.pillion.v1.execute_pb2 import EndScopeRequest
from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind
from tests.support import READ, SidecarProcess, StartProcess, WorkerPeer, attach, end_scope, hosted, on_unix, tool
from tests.support.keeping import Keeping

pytestmark = on_unix

RUN, SESSION, SHUTDOWN = (
    TeardownScope.TEARDOWN_SCOPE_RUN,
    TeardownScope.TEARDOWN_SCOPE_SESSION,
    TeardownScope.TEARDOWN_SCOPE_SHUTDOWN,
)
IDLE = TeardownReason.TEARDOWN_REASON_IDLE
SESSION_END = TeardownReason.TEARDOWN_REASON_SESSION_END
WORKER_LOST = TeardownReason.TEARDOWN_REASON_WORKER_LOST
SESSION_LOST = FailureKind.FAILURE_KIND_SESSION_LOST
UNAVAILABLE = FailureKind.FAILURE_KIND_UNAVAILABLE
UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED
S = EndScopeRequest(session_id="s")
LONGEST_SECONDS = 8.0
PATIENCE = 25.0
_POLL_SECONDS = 0.05
LOST = "was lost: the instance that kept it is gone"


@pytest.fixture
async def impatient(tmp_path: Path) -> AsyncIterator[SidecarProcess]:
    """One that waits a second."""
    started = SidecarProcess(tmp_path)
    started.config.write_text(started.config.read_text() + "[limits.workers]\nreattach_window = 1\n")
    await started.start()
    yield started
    await started.aclose()


async def again(sidecar_process: SidecarProcess) -> None:
    """The sidecar is killed, and another takes its place."""
    await sidecar_process.kill()
    await sidecar_process.start()


async def ending(sidecar_process: SidecarProcess, worker: WorkerPeer, *expected: str) -> None:
    """Ends the session, for whose end the worker runs these, newest first."""
    end = asyncio.ensure_future(end_scope(sidecar_process, S))
    for registration in expected:
        fired = await worker.next_teardown()
        assert (fired.registration_id, fired.reason) == (registration, SESSION_END)
        await worker.torn_down(registration)
    ended = await end
    assert (ended.fired, ended.failed) == (len(expected), 0)


async def released(worker: WorkerPeer, *expected: str) -> None:
    """These are not wanted any more, and all others are."""
    await worker.flush()
    told = [frame.release.registration_id for frame in worker.frames[0] if frame.HasField("release")]
    assert told == list(expected)


# --- the sidecar is killed


async def test_what_was_acknowledged_is_known_to_the_next_sidecar(sidecar_process: SidecarProcess) -> None:
    keeping = await Keeping.attach(sidecar_process)
    ids = [await keeping.keep(name=name) for name in "abc"]
    run, shutdown = await keeping.keep(RUN, run_id="r"), await keeping.keep(SHUTDOWN)
    await again(sidecar_process)
    worker = await keeping.back(sidecar_process, "reg_unknown", *ids, shutdown, run)
    await released(worker, "reg_unknown")
    await ending(sidecar_process, worker, *ids[::-1])
    # What has ended is over for good, and what has not is there once more.
    await again(sidecar_process)
    worker = await keeping.back(sidecar_process, *ids, run, shutdown)
    await released(worker, *ids)
    assert worker.teardowns() == []
    sidecar_process.send(signal.SIGTERM)
    for registration in (shutdown, run):
        assert (await worker.next_teardown()).registration_id == registration
        await worker.torn_down(registration)


async def test_a_cleanup_that_is_registered_again_after_a_kill_is_the_same(sidecar_process: SidecarProcess) -> None:
    keeping = await Keeping.attach(sidecar_process)
    registration = await keeping.keep(name="a")
    await again(sidecar_process)
    worker = await keeping.back(sidecar_process, registration)
    assert await keeping.keep(name="a") == registration
    other = await keeping.keep(name="b")
    await ending(sidecar_process, worker, other, registration)


async def test_another_secret_is_refused_after_a_kill(sidecar_process: SidecarProcess) -> None:
    keeping = await Keeping.attach(sidecar_process)
    registration = await keeping.keep()
    await again(sidecar_process)
    secret = keeping.welcome.reattach_secret
    for wrong in ("", "wrong", secret[:-1], secret + "x", registration):
        thief = await sidecar_process.worker()
        await thief.present(tool(), reattach=keeping.again(registration, secret=wrong))
        assert await thief.end() == (UNAUTHENTICATED, "The instance to re-attach has another secret.")
    # Nor is it of use to another worker set.
    other = await sidecar_process.worker()
    welcome = await other.hello(tool("other"), worker="other", reattach=keeping.again(registration))
    assert welcome.instance_id != keeping.welcome.instance_id
    await released(other, registration)
    await ending(sidecar_process, await keeping.back(sidecar_process, registration), registration)


async def test_what_does_not_come_back_is_reported_or_stood_in_for(impatient: SidecarProcess) -> None:
    sidecar_process = impatient
    keeping = await Keeping.attach(sidecar_process)
    named, unnamed = await keeping.keep(name="a"), await keeping.keep(name="b", cleanup=None)
    await again(sidecar_process)
    other = await attach(sidecar_process, tool("put"))
    run = await other.next_invoke()
    assert (run.context.cleanup_reason, run.context.tool_call_id) == (WORKER_LOST, named)
    assert run.context.caller_principal == f"local:{os.getuid()}"
    await other.result(run.call)
    await sidecar_process.says(LOST)
    late = await sidecar_process.worker()
    welcome = await late.hello(tool(), reattach=keeping.again(named, unnamed))
    assert welcome.instance_id != keeping.welcome.instance_id
    await released(late, named, unnamed)
    await all_is_stored(sidecar_process, other)
    # And nothing of it is left.
    await again(sidecar_process)
    other = await attach(sidecar_process, tool("put"))
    await another_window_passes(sidecar_process, other)
    assert sum(LOST in line for line in sidecar_process.said) == 1


async def all_is_stored(sidecar_process: SidecarProcess, worker: WorkerPeer) -> None:
    """Returns when the sidecar has stored what came of all that its peers have sent so far."""
    await worker.flush()
    caller = await sidecar_process.caller()
    call = await caller.start("put", idempotency_key="behind")
    await worker.result((await worker.next_invoke()).call)
    await caller.outcome(call)


async def another_window_passes(sidecar_process: SidecarProcess, worker: WorkerPeer) -> None:
    """Returns past the window of one that is lost after this; in it the worker may be given nothing to run."""
    keeping = await Keeping.attach(sidecar_process, "other", "other")
    await keeping.keep(session_id="another", cleanup=None)
    before = sum(LOST in line for line in sidecar_process.said)
    keeping.lose()
    await sidecar_process.says(LOST, before + 1)
    await worker.flush()
    assert worker.invoked == []


async def test_a_session_that_ended_while_its_instance_was_away_ends_after_a_kill(
    sidecar_process: SidecarProcess,
) -> None:
    keeping = await Keeping.attach(sidecar_process)
    first, second = await keeping.keep(name="a"), await keeping.keep(name="b")
    keeping.lose()
    ended = await end_scope(sidecar_process, S)
    assert (ended.fired, ended.failed) == (2, 2)
    await again(sidecar_process)
    worker = await keeping.back(sidecar_process, first, second)
    for registration in (second, first):
        fired = await worker.next_teardown()
        assert (fired.registration_id, fired.reason) == (registration, SESSION_END)
        await worker.torn_down(registration)
    await released(worker)
    await again(sidecar_process)
    worker = await sidecar_process.worker()
    await worker.hello(tool(), reattach=keeping.again())
    await worker.flush()
    assert worker.teardowns() == []


@pytest.mark.parametrize("comes_back", [True, False])
async def test_what_was_told_to_run_before_a_kill_is_not_told_again(
    impatient: SidecarProcess, *, comes_back: bool
) -> None:
    sidecar_process = impatient
    keeping = await Keeping.attach(sidecar_process)
    registration = await keeping.keep()
    end = asyncio.ensure_future(end_scope(sidecar_process, S))
    await keeping.worker.next_teardown()
    await sidecar_process.kill()
    await asyncio.gather(end, return_exceptions=True)
    await sidecar_process.start()
    other = await attach(sidecar_process, tool("put"))
    if comes_back:
        worker = await keeping.back(sidecar_process)
        await sidecar_process.says("its instance came back without it")
        assert worker.teardowns() == []
    else:
        await sidecar_process.says(LOST)
    await other.flush()
    assert other.invoked == []
    late = await sidecar_process.worker()
    await late.hello(tool(), reattach=keeping.again(registration))
    await released(late, registration)


async def test_a_cleanup_call_that_ran_at_a_kill_is_reported_and_not_run_again(impatient: SidecarProcess) -> None:
    sidecar_process = impatient
    keeping, other = await Keeping.attach(sidecar_process), await attach(sidecar_process, tool("put", effects=READ))
    registration = await keeping.keep()
    keeping.lose()
    assert (await other.next_invoke()).context.tool_call_id == registration
    await again(sidecar_process)
    await sidecar_process.says(LOST)
    other = await attach(sidecar_process, tool("put", effects=READ))
    # Nor is the instance told, which has it still.
    worker = await sidecar_process.worker()
    await worker.hello(tool(), reattach=keeping.again(registration))
    await released(worker, registration)
    await another_window_passes(sidecar_process, other)
    assert worker.teardowns() == []


async def test_sessions_stay_pinned_over_a_kill(impatient: SidecarProcess) -> None:
    sidecar_process = impatient
    keeping = await Keeping.attach(sidecar_process, holds=SESSION)
    # Pins are recorded a little behind, and acknowledged to nobody: a cleanup is, which is recorded behind them.
    for session in ("s", "t"):
        call = await keeping.caller.start("echo", session_id=session)
        await keeping.worker.result((await keeping.worker.next_invoke()).call)
        await keeping.caller.outcome(call)
    behind = await keeping.keep(session_id="u", cleanup=None)
    await again(sidecar_process)
    other, caller = await attach(sidecar_process, tool("echo", holds=SESSION)), await sidecar_process.caller()
    assert (await caller.call("echo", session_id="s")).failure.kind == UNAVAILABLE
    worker = await keeping.back(sidecar_process, behind)
    call = await caller.start("echo", session_id="s")
    await worker.result((await worker.next_invoke()).call)
    await caller.outcome(call)
    await again(sidecar_process)
    other, caller = await attach(sidecar_process, tool("echo", holds=SESSION)), await sidecar_process.caller()
    await sidecar_process.says(LOST)
    outcome = await caller.call("echo", session_id="t")
    assert outcome.failure.kind == SESSION_LOST
    call = await caller.start("echo", session_id="t")
    await other.result((await other.next_invoke()).call)
    await caller.outcome(call)


# --- what the sidecar has started is killed, with it or alone


def lines(file: Path) -> list[str]:
    """What was cleaned up, and why, in order."""
    return [line.split(maxsplit=1)[1] for line in file.read_text().splitlines()] if file.exists() else []


async def cleaned(file: Path, *expected: str) -> None:
    """Returns once so much was cleaned up, which must be this."""
    end = time.monotonic() + PATIENCE
    while len(lines(file)) < len(expected):
        assert time.monotonic() < end, (lines(file), expected)
        await asyncio.sleep(_POLL_SECONDS)
    assert sorted(lines(file)) == sorted(expected)


def worker_of(file: Path) -> str:
    return "[limits.calls]\nworker_wait = 20\n" + hosted("main", "keep clean pid", "--cleaned", str(file))


async def kept(sidecar_process: SidecarProcess) -> int:
    """The process of a worker that keeps one cleanup that names a call, and one that names none."""
    caller = await sidecar_process.caller()
    for arguments in ({"name": "unnamed"}, {"name": "named", "call": True}):
        outcome = await caller.call("keep", {"scope": "session", "seconds": 0, **arguments}, session_id="s")
        assert outcome.HasField("result"), outcome
    return int((await caller.call("pid")).result.json)


async def test_supervised_workers_clean_up_as_the_sidecar_is_killed(
    start_process: StartProcess, tmp_path: Path
) -> None:
    file = tmp_path / "cleaned"
    sidecar_process = await start_process(worker_of(file))
    await kept(sidecar_process)
    tree = psutil.Process(sidecar_process.pid).children(recursive=True)
    await sidecar_process.kill()
    _, alive = await asyncio.to_thread(psutil.wait_procs, tree, LONGEST_SECONDS)
    assert not alive
    assert lines(file) == ["unnamed BY_ITSELF"]
    await sidecar_process.start()
    # Decided at once, though an instance that was started elsewhere could come back for a minute.
    await cleaned(file, "unnamed BY_ITSELF", "named WORKER_LOST")
    await sidecar_process.says(LOST)
    await again(sidecar_process)
    assert (await (await sidecar_process.caller()).call("pid")).HasField("result")
    assert not any(LOST in line for line in sidecar_process.said)
    assert len(lines(file)) == 2


@pytest.mark.parametrize("whom", ["worker", "guardian"])
async def test_what_a_killed_worker_kept_is_reported_or_stood_in_for(
    start_process: StartProcess, tmp_path: Path, whom: str
) -> None:
    file = tmp_path / "cleaned"
    sidecar_process = await start_process(worker_of(file))
    pid = await kept(sidecar_process)
    (guardian,) = psutil.Process(sidecar_process.pid).children()
    os.kill(pid if whom == "worker" else guardian.pid, signal.SIGKILL)
    await cleaned(file, "named WORKER_LOST")
    await sidecar_process.says(LOST)
    assert int((await (await sidecar_process.caller()).call("pid")).result.json) != pid
    assert lines(file) == ["named WORKER_LOST"]
