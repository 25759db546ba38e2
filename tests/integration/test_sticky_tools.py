"""Tools that hold something for a run or a session: all calls of one go to the instance that has it."""

import asyncio
import os
import signal
from typing import Any

import pytest

from sidecar._gen.pillion.v1.context_pb2 import Identity, TeardownScope
from sidecar._gen.pillion.v1.execute_pb2 import EndScopeRequest, EndScopeResponse
from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind, Outcome, SideEffects
from sidecar._gen.pillion.v1.tool_pb2 import ToolDescriptor
from sidecar._gen.pillion.v1.worker_pb2 import Reattach
from tests.support import (
    READ,
    CallerPeer,
    CallLimits,
    Host,
    MemoryHost,
    ScopeLimits,
    StartHost,
    StartProcess,
    WorkerLimits,
    WorkerPeer,
    attach,
    end_scope,
    everywhere,
    hosted,
    on_unix,
    quiet,
    tool,
)

RUN, SESSION = TeardownScope.TEARDOWN_SCOPE_RUN, TeardownScope.TEARDOWN_SCOPE_SESSION
INVALID_ARGUMENTS = FailureKind.FAILURE_KIND_INVALID_ARGUMENTS
OUTCOME_UNKNOWN = FailureKind.FAILURE_KIND_OUTCOME_UNKNOWN
OVERLOADED = FailureKind.FAILURE_KIND_OVERLOADED
SESSION_LOST = FailureKind.FAILURE_KIND_SESSION_LOST
UNAVAILABLE = FailureKind.FAILURE_KIND_UNAVAILABLE
WORKER_LOST = FailureKind.FAILURE_KIND_WORKER_LOST
NONE = SideEffects.SIDE_EFFECTS_NONE


def holding(name: str = "echo", **fields: Any) -> ToolDescriptor:
    """A tool that holds something for a session."""
    return tool(name, **{"holds": SESSION, **fields})


async def served(caller: CallerPeer, workers: list[WorkerPeer], **fields: Any) -> WorkerPeer:
    """Which worker a call was run by, to its end."""
    before = [len(worker.invoked) for worker in workers]
    call = await caller.start(**fields)
    takers = [asyncio.ensure_future(worker.next_invoke()) for worker in workers]
    ended = asyncio.ensure_future(caller.outcome(call))
    await asyncio.wait([*takers, ended], return_when=asyncio.FIRST_COMPLETED)
    assert not ended.done(), ended.result()
    (chosen,) = [worker for worker, count in zip(workers, before, strict=True) if len(worker.invoked) > count]
    taken = takers[workers.index(chosen)].result()
    for taker in takers:
        taker.cancel()
    await asyncio.gather(*takers, return_exceptions=True)
    await chosen.result(taken.call, "well")
    assert (await ended).result.json == b'"well"'
    return chosen


async def fails(caller: CallerPeer, **fields: Any) -> Outcome:
    """The outcome of a call that was refused before it had any effect."""
    outcome = await caller.call(**fields)
    assert outcome.failure.side_effects == NONE, outcome
    return outcome


async def occupy(caller: CallerPeer, worker: WorkerPeer, **fields: Any) -> tuple[int, int]:
    """A call in the middle of its tool on this worker: its number there, and here."""
    call = await caller.start(**fields)
    return call, (await worker.next_invoke()).call


async def lost(worker: WorkerPeer) -> None:
    """A worker is gone for good, and the sidecar has seen it."""
    await worker.goodbye()
    await worker.end()


# --- where calls go


@everywhere
async def test_the_calls_of_a_session_go_to_one_instance(host: Host) -> None:
    workers, caller = [await attach(host, holding()) for _ in range(4)], await host.caller()
    mine = await served(caller, workers, session_id="mine")
    for _ in range(8):
        assert await served(caller, workers, session_id="mine") is mine
    # Others are given to whoever has least to do, which is none in particular.
    call, run = await occupy(caller, mine, session_id="mine")
    assert await served(caller, workers, session_id="others") is not mine
    await mine.result(run)
    await caller.outcome(call)


@everywhere
async def test_a_tool_that_holds_something_for_a_run_looks_at_the_run(host: Host) -> None:
    workers, caller = [await attach(host, holding(holds=RUN)) for _ in range(2)], await host.caller()
    first = await served(caller, workers, run_id="r-1", session_id="s")
    assert await served(caller, workers, run_id="r-1") is first
    call, run = await occupy(caller, first, run_id="r-1")
    assert await served(caller, workers, run_id="r-2", session_id="s") is not first
    await first.result(run)
    await caller.outcome(call)


@everywhere
async def test_tools_of_one_worker_share_what_they_hold(host: Host) -> None:
    tools = (holding("echo"), holding("read"), tool("put"))
    workers, caller = [await attach(host, *tools) for _ in range(3)], await host.caller()
    first = await served(caller, workers, tool="echo", session_id="s")
    call, run = await occupy(caller, first, tool="read", session_id="s")
    # A tool that holds nothing goes anywhere.
    assert await served(caller, workers, tool="put", session_id="s") is not first
    assert await served(caller, workers, tool="read", session_id="s") is first
    await first.result(run)
    await caller.outcome(call)


@everywhere
async def test_two_subjects_with_one_session_id_share_nothing(host: Host) -> None:
    workers, caller = [await attach(host, holding(), concurrency=1) for _ in range(3)], await host.caller()
    people: list[dict[str, Any]] = [
        {"session_id": "s", "identity": Identity(tenant="acme", principal="ana")},
        {"session_id": "s", "identity": Identity(tenant="umbrella", principal="ana")},
        {"session_id": "s", "identity": Identity(tenant="acme", principal="bob")},
    ]
    running = []
    for who in people:
        call = await caller.start(**who)
        await caller.flush()
        running.append(call)
    runs = [await worker.next_invoke() for worker in workers]
    for worker, run in zip(workers, runs, strict=True):
        await worker.result(run.call)
    for call in running:
        await caller.outcome(call)
    pinned = {await served(caller, workers, **who) for who in people}
    assert pinned == set(workers)


@everywhere
@pytest.mark.parametrize("fields", [{}, {"run_id": "r"}, {"session_id": ""}])
async def test_a_call_without_the_session_is_refused(host: Host, fields: dict[str, str]) -> None:
    await attach(host, holding())
    outcome = await fails(await host.caller(), **fields)
    assert outcome.failure.kind == INVALID_ARGUMENTS
    assert "session_id" in outcome.failure.message
    assert not outcome.failure.retryable


# --- the pinned instance is full


@everywhere
async def test_a_call_whose_instance_is_full_goes_to_no_other(host: Host) -> None:
    workers, caller = [await attach(host, holding(), concurrency=1) for _ in range(2)], await host.caller()
    pinned = await served(caller, workers, session_id="s")
    (spare,) = [worker for worker in workers if worker is not pinned]
    call, run = await occupy(caller, pinned, session_id="s")
    for _ in range(3):
        failure = (await fails(caller, session_id="s")).failure
        assert (failure.kind, failure.retryable) == (OVERLOADED, True)
        assert failure.retry_after.ToTimedelta().total_seconds() == 1
    await spare.flush()
    assert not any(run.context.session_id == "s" for run in spare.invoked)
    await pinned.result(run)
    await caller.outcome(call)
    assert await served(caller, workers, session_id="s") is pinned


@everywhere
async def test_calls_of_a_session_that_waited_together_go_to_one_instance(host: Host) -> None:
    workers, caller = [await attach(host, holding(), concurrency=1) for _ in range(2)], await host.caller()
    busy = [await occupy(caller, worker, session_id=str(number)) for number, worker in enumerate(workers)]
    waiting = [await caller.start(session_id="s") for _ in range(2)]
    await caller.flush()
    await workers[0].result(busy[0][1])
    first = await workers[0].next_invoke()
    assert first.context.session_id == "s"
    # The other may not run beside it, and nowhere else.
    assert (await caller.outcome(waiting[1])).failure.kind == OVERLOADED
    await workers[1].result(busy[1][1])
    await workers[1].flush()
    assert len(workers[1].invoked) == 1
    await workers[0].result(first.call, "well")
    assert (await caller.outcome(waiting[0])).result.json == b'"well"'


# --- the pinned instance is gone


@everywhere
async def test_what_was_lost_is_told_once(host: Host) -> None:
    workers, caller = [await attach(host, holding()) for _ in range(2)], await host.caller()
    pinned = await served(caller, workers, session_id="s")
    await lost(pinned)
    failure = (await fails(caller, session_id="s")).failure
    assert (failure.kind, failure.retryable) == (SESSION_LOST, False)
    (left,) = [worker for worker in workers if worker is not pinned]
    for _ in range(2):
        assert await served(caller, [left], session_id="s") is left


@everywhere
async def test_a_session_whose_instance_says_goodbye_is_lost_at_once(host: Host) -> None:
    leaving, caller = await attach(host, holding()), await host.caller()
    call, run = await occupy(caller, leaving, session_id="s")
    await leaving.goodbye()
    await leaving.flush()
    assert (await fails(caller, session_id="s")).failure.kind == SESSION_LOST
    await leaving.result(run, "well")
    assert (await caller.outcome(call)).result.json == b'"well"'


async def test_an_instance_that_may_come_back_is_waited_for(start_host: StartHost) -> None:
    host = await start_host(workers=WorkerLimits(reattach_window=60))
    pinned, caller = await host.worker(), await host.caller()
    welcome = await pinned.hello(holding())
    assert await served(caller, [pinned], session_id="s") is pinned
    other = await attach(host, holding())
    pinned.cut()
    await quiet()
    failure = (await fails(caller, session_id="s")).failure
    assert (failure.kind, failure.retryable) == (UNAVAILABLE, True)
    await asyncio.sleep(50)
    back = await host.worker()
    again = Reattach(instance_id=welcome.instance_id, secret=welcome.reattach_secret)
    await back.hello(holding(), reattach=again)
    assert await served(caller, [back, other], session_id="s") is back
    back.cut()
    await quiet()
    await asyncio.sleep(61)
    assert (await fails(caller, session_id="s")).failure.kind == SESSION_LOST
    assert await served(caller, [other], session_id="s") is other


async def test_a_call_that_was_lost_with_its_instance_does_not_stand_for_the_next(start_host: StartHost) -> None:
    host = await start_host(workers=WorkerLimits(reattach_window=0))
    pinned, caller = await attach(host, holding(effects=READ)), await host.caller()
    call, _ = await occupy(caller, pinned, session_id="s")
    spare = await attach(host, holding(effects=READ))
    await pinned.half_close()
    # Safe to run again, but not where nothing of the session is.
    assert (await caller.outcome(call)).failure.kind == WORKER_LOST
    await asyncio.sleep(1)
    assert (await fails(caller, session_id="s")).failure.kind == SESSION_LOST
    assert await served(caller, [spare], session_id="s") is spare


async def test_a_call_that_was_not_invoked_pins_nothing(memory_host: MemoryHost) -> None:
    host = memory_host
    stuck, caller = await attach(host, holding()), await host.caller()
    stuck.pause()
    # The first invoke is read in spite of the pause, and the second is being written: the next are not handed over.
    invoked = []
    for session in ("first", "second"):
        invoked.append(await caller.start(session_id=session))
        await quiet()
    calls = [await caller.start(session_id="s") for _ in range(2)]
    await quiet()
    spare = await attach(host, holding(), concurrency=8)
    stuck.cut()
    await quiet()
    for call in invoked:
        assert (await caller.outcome(call)).failure.kind == OUTCOME_UNKNOWN
    for call in calls:
        await spare.result((await spare.next_invoke()).call, "well")
        assert (await caller.outcome(call)).result.json == b'"well"'


# --- rolling deploys


def version(number: int) -> ToolDescriptor:
    """The first version takes anything; the second wants a text."""
    return holding(input_schema={"type": "object"} if number == 1 else {"type": "object", "required": ["text"]})


@everywhere
async def test_an_instance_that_drains_keeps_its_sessions(host: Host) -> None:
    old, caller = await attach(host, version(1)), await host.caller()
    assert await served(caller, [old], session_id="s") is old
    new = await attach(host, version(2))
    both = [old, new]
    # The old tool is called as the old version takes it, the new one as that does.
    assert await served(caller, both, session_id="s") is old
    assert (await fails(caller, session_id="t")).failure.kind == INVALID_ARGUMENTS
    assert await served(caller, both, session_id="t", arguments={"text": "x"}) is new
    assert "drain" not in old.bodies(), "it would leave, and take the session with it"


async def test_a_drain_ends_with_the_last_session_or_with_its_time(start_host: StartHost) -> None:
    host = await start_host(workers=WorkerLimits(drain=30), calls=CallLimits(cancel_grace=2))
    old, caller = await attach(host, version(1)), await host.caller()
    assert await served(caller, [old], session_id="s") is old
    new = await attach(host, version(2))
    await asyncio.sleep(29)
    assert await served(caller, [old, new], session_id="s") is old
    call, run = await occupy(caller, old, session_id="s")
    await asyncio.sleep(2)
    await old.cancelled(run)
    drain = await old.next_of("drain")
    assert drain.drain.grace.ToTimedelta().total_seconds() == 2
    await old.goodbye()
    await old.result(run)
    await caller.outcome(call)
    await old.end()
    arguments = {"text": "x"}
    assert (await fails(caller, session_id="s", arguments=arguments)).failure.kind == SESSION_LOST
    assert await served(caller, [new], session_id="s", arguments=arguments) is new


# --- the end of what was held


@everywhere
async def test_the_end_of_a_session_frees_its_instance(host: Host) -> None:
    old, caller = await attach(host, version(1)), await host.caller()
    await served(caller, [old], session_id="s")
    await served(caller, [old], session_id="t")
    new = await attach(host, version(2))
    assert await end_scope(host, EndScopeRequest(session_id="s")) == EndScopeResponse()
    await old.flush()
    assert "drain" not in old.bodies(), "another session is still there"
    await end_scope(host, EndScopeRequest(session_id="t"))
    await old.next_of("drain")
    assert await served(caller, [old, new], session_id="s", arguments={"text": "x"}) is new


@everywhere
async def test_what_was_lost_of_a_session_that_ended_is_told_to_nobody(host: Host) -> None:
    workers, caller = [await attach(host, holding()) for _ in range(2)], await host.caller()
    pinned = await served(caller, workers, session_id="s")
    await lost(pinned)
    await end_scope(host, EndScopeRequest(session_id="s"))
    (left,) = [worker for worker in workers if worker is not pinned]
    assert await served(caller, [left], session_id="s") is left


async def test_a_session_that_grows_idle_drops_its_pin(start_host: StartHost) -> None:
    host = await start_host(scopes=ScopeLimits(idle=900))
    workers, caller = [await attach(host, holding(), concurrency=1) for _ in range(2)], await host.caller()
    pinned = await served(caller, workers, session_id="s")
    call, run = await occupy(caller, pinned, session_id="s", timeout=2_000)
    await asyncio.sleep(1_000)
    # It is not idle while a call runs in it, however long that takes.
    assert (await fails(caller, session_id="s")).failure.kind == OVERLOADED
    await pinned.result(run)
    await caller.outcome(call)
    await asyncio.sleep(899)
    await lost(pinned)
    await asyncio.sleep(2)
    (left,) = [worker for worker in workers if worker is not pinned]
    assert await served(caller, [left], session_id="s") is left


async def test_the_coldest_of_too_many_sessions_drops_its_pin(start_host: StartHost) -> None:
    host = await start_host(scopes=ScopeLimits(live=2))
    workers, caller = [await attach(host, holding()) for _ in range(3)], await host.caller()
    pinned = [await served(caller, workers, session_id=str(number)) for number in range(3)]
    await lost(pinned[0])
    left = [worker for worker in workers if worker is not pinned[0]]
    # The first gave way to the third, and begins anew, in the place of the second.
    assert await served(caller, left, session_id="0") in left
    registry = host.pipeline.teardowns.registry  # type: ignore[attr-defined]  # in memory
    assert len(registry) == 2


@on_unix
async def test_a_worker_whose_process_ends_is_not_waited_for(start_process: StartProcess) -> None:
    process = await start_process(
        "[limits.calls]\nworker_wait = 20\n" + hosted("main", "pid", "--holds", settings="instances = 2")
    )
    caller = await process.caller()
    pid = int((await caller.call("pid", session_id="s")).result.json)
    for _ in range(5):
        assert int((await caller.call("pid", session_id="s")).result.json) == pid
    os.kill(pid, signal.SIGKILL)
    while (outcome := await caller.call("pid", session_id="s")).failure.kind in (UNAVAILABLE, WORKER_LOST):
        # Until the end of the process is known it might be its stream alone.
        assert outcome.failure.retryable
    assert outcome.failure.kind == SESSION_LOST
    assert int((await caller.call("pid", session_id="s")).result.json) != pid


@on_unix
async def test_a_reload_replaces_a_worker_once_its_sessions_have_ended(start_process: StartProcess) -> None:
    def version_of(label: str) -> str:
        return "[limits.calls]\nworker_wait = 20\n[limits.workers]\ndrain = 50\n" + hosted(
            "main", "label", "--holds", "--label", label
        )

    process = await start_process(version_of("old"))
    caller = await process.caller()
    assert (await caller.call("label", session_id="s")).result.json == b'"old"'
    process.write(version_of("new"))
    await process.says("reloaded")
    number = 0
    while (await caller.call("label", session_id=f"other-{number}")).result.json != b'"new"':
        number += 1
        assert number < 1_000, "the new one never came"
    for _ in range(3):
        assert (await caller.call("label", session_id="s")).result.json == b'"old"'
    # Only now may it leave, long before its time is up, and nobody learns of a loss.
    for name in ("s", *(f"other-{each}" for each in range(number))):
        await end_scope(process, EndScopeRequest(session_id=name))
    assert (await caller.call("label", session_id="s")).result.json == b'"new"'
    await process.says("old left in order")
