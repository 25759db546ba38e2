"""Runs and sessions end when their caller says so, grow idle, or give way; what is kept for them fires then."""

import asyncio
import random

import grpc.aio
import pytest

from sidecar._gen.pillion.v1.context_pb2 import CancelReason, Identity, TeardownReason
from sidecar._gen.pillion.v1.execute_pb2 import EndScopeRequest
from sidecar._gen.pillion.v1.outbound_pb2 import ReplyErrorCode
from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind
from sidecar._gen.pillion.v1.worker_pb2 import RegisterTeardown
from sidecar.scope import Principal, ScopeKey, scope_of
from tests.integration.teardowns import CALL, RUN, SESSION, SHUTDOWN, kept, ran, refusal
from tests.support import (
    Host,
    MemoryHost,
    ScopeLimits,
    StartHost,
    WorkerPeer,
    attach,
    end_scope,
    everywhere,
    on_sockets,
    quiet,
    tool,
)

S = EndScopeRequest(session_id="s")


async def ended(host: Host, request: EndScopeRequest = S) -> tuple[int, int, int]:
    """How many cleanups fired, how many of them failed, and how many calls were cancelled."""
    answer = await end_scope(host, request)
    return answer.fired, answer.failed, answer.cancelled


def ending(host: Host, request: EndScopeRequest = S) -> "asyncio.Task[tuple[int, int, int]]":
    return asyncio.get_running_loop().create_task(ended(host, request))


@everywhere
async def test_a_session_ends_when_its_caller_says_so_newest_first(host: Host) -> None:
    worker, caller = await attach(host), await host.caller()
    ids = [await kept(worker, caller, "s", name=name) for name in "abc"]
    others = [
        await kept(worker, caller, "other"),
        await kept(worker, caller, "s", scope=RUN, run_id="s"),
        await kept(worker, caller, "s", identity=Identity(tenant="t")),
    ]
    end = ending(host)
    fired = [await worker.next_teardown() for _ in ids]
    assert [one.registration_id for one in fired] == ids[::-1]
    assert {one.reason for one in fired} == {TeardownReason.TEARDOWN_REASON_SESSION_END}
    await worker.torn_down(ids[0])
    await worker.torn_down(ids[1], error="It was gone already.")
    await worker.torn_down(ids[2])
    assert await end == (3, 1, 0)
    assert await ended(host) == (0, 0, 0)
    # The run of the same name, another session and another tenant's were left alone, and end by themselves.
    end = ending(host, EndScopeRequest(run_id="s"))
    fired = [await worker.next_teardown()]
    assert (fired[0].registration_id, fired[0].reason) == (others[1], TeardownReason.TEARDOWN_REASON_RUN_END)
    await worker.torn_down(others[1])
    assert await end == (1, 0, 0)
    end = ending(host, EndScopeRequest(session_id="s", identity=Identity(tenant="t")))
    await ran(worker, others[2])
    assert await end == (1, 0, 0)
    end = ending(host, EndScopeRequest(session_id="other"))
    await ran(worker, others[0])
    assert await end == (1, 0, 0)


@everywhere
async def test_running_calls_of_a_scope_are_cancelled_and_waited_for(host: Host) -> None:
    worker, caller = await attach(host), await host.caller()
    registration = await kept(worker, caller, "s")
    calls = [await caller.start(session_id="s") for _ in range(2)]
    other = await caller.start(session_id="other")
    runs = [(await worker.next_invoke()).call for _ in range(3)]
    of_call = await worker.registered(runs[0], CALL)
    end = ending(host)
    for run in runs[:2]:
        assert await worker.cancelled(run) == CancelReason.CANCEL_REASON_SCOPE_ENDED
    # While it ends, it takes neither calls nor registrations.
    refused = await caller.call(session_id="s")
    assert refused.failure.kind == FailureKind.FAILURE_KIND_UNAVAILABLE
    assert refused.failure.retryable
    assert "is being ended" in refused.failure.message
    error = await refusal(worker, runs[1], RegisterTeardown(request_id=2, scope=SESSION, name="late"))
    assert error.code == ReplyErrorCode.REPLY_ERROR_CODE_CANCELLED
    for run in runs[:2]:
        await worker.result(run)
    await ran(worker, of_call.registration_id, registration)
    assert await end == (1, 0, 2)
    for call in calls:
        assert (await caller.outcome(call)).failure.kind == FailureKind.FAILURE_KIND_CANCELLED
    await worker.result(runs[2])
    assert (await caller.outcome(other)).HasField("result")
    # Of the same id begins a new one.
    assert await kept(worker, caller, "s") != registration


async def test_a_call_that_ignores_its_cancel_holds_the_end_up_no_longer_than_its_grace(
    memory_host: MemoryHost,
) -> None:
    worker, caller = await attach(memory_host), await memory_host.caller()
    registration = await kept(worker, caller, "s")
    call = await caller.start(session_id="s")
    await worker.next_invoke()
    begun = asyncio.get_running_loop().time()
    end = ending(memory_host)
    await ran(worker, registration)
    assert await end == (1, 0, 1)
    assert asyncio.get_running_loop().time() - begun == pytest.approx(2, abs=0.1)
    assert (await caller.outcome(call)).failure.kind == FailureKind.FAILURE_KIND_CANCELLED


async def test_a_cleanup_that_hangs_is_a_failure_of_the_end(memory_host: MemoryHost) -> None:
    worker, caller = await attach(memory_host), await memory_host.caller()
    for name in ("a", "b"):
        await kept(worker, caller, "s", name=name)
    begun = asyncio.get_running_loop().time()
    end = ending(memory_host)
    assert await end == (2, 2, 0)
    assert asyncio.get_running_loop().time() - begun == pytest.approx(5, abs=0.1)


@everywhere
async def test_of_two_ends_at_once_the_second_waits_for_the_first(host: Host) -> None:
    worker, caller = await attach(host), await host.caller()
    registration = await kept(worker, caller, "s")
    first = ending(host)
    assert (await worker.next_teardown()).registration_id == registration
    second = ending(host)
    await caller.flush()
    assert not second.done()
    await worker.torn_down(registration)
    assert sorted([await first, await second]) == [(0, 0, 0), (1, 0, 0)]


@on_sockets
async def test_an_end_goes_on_when_who_asked_for_it_leaves(host: Host) -> None:
    worker, caller = await attach(host), await host.caller()
    registration = await kept(worker, caller, "s")
    end = ending(host)
    assert (await worker.next_teardown()).registration_id == registration
    end.cancel()
    await asyncio.gather(end, return_exceptions=True)
    again = ending(host)
    await worker.torn_down(registration)
    assert await again == (0, 0, 0)
    assert await kept(worker, caller, "s") != registration


@on_sockets
async def test_an_end_names_a_run_or_a_session(host: Host) -> None:
    for wrong in (
        EndScopeRequest(),
        EndScopeRequest(session_id=""),
        EndScopeRequest(run_id="r" * 257),
        EndScopeRequest(run_id="r", identity=Identity(tenant="t" * 257)),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await end_scope(host, wrong)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert await ended(host, EndScopeRequest(run_id="never")) == (0, 0, 0)


@everywhere
async def test_calls_of_many_kinds_are_in_their_scope(host: Host) -> None:
    """A call that waits for a slot, and one that follows another with its key, are cancelled too."""
    worker, caller = await attach(host, concurrency=1), await host.caller()
    running = await caller.start(session_id="s", idempotency_key="k")
    run = (await worker.next_invoke()).call
    joined = await caller.start(session_id="s", idempotency_key="k")
    waiting = await caller.start(session_id="s")
    await caller.flush()
    end = ending(host)
    assert await worker.cancelled(run) == CancelReason.CANCEL_REASON_SCOPE_ENDED
    await worker.result(run)
    assert await end == (0, 0, 3)
    for call in (running, joined, waiting):
        assert (await caller.outcome(call)).failure.kind == FailureKind.FAILURE_KIND_CANCELLED
    assert len(worker.invoked) == 1


async def test_idle_scopes_fire_and_busy_ones_do_not(start_host: StartHost) -> None:
    host = await start_host(scopes=ScopeLimits(idle=60))
    assert isinstance(host, MemoryHost)
    worker, caller = await attach(host), await host.caller()
    loop = asyncio.get_running_loop()
    begun = loop.time()
    idle = await kept(worker, caller, "idle")
    of_run = await kept(worker, caller, "", scope=RUN, run_id="r")
    await kept(worker, caller, "s", scope=SHUTDOWN)
    busy = await kept(worker, caller, "busy")
    call = await caller.start(session_id="busy", timeout=1000)
    run = (await worker.next_invoke()).call
    await asyncio.sleep(40)
    touched = await kept(worker, caller, "touched")
    assert await kept(worker, caller, "idle") == idle
    fired = await worker.next_teardown()
    assert (fired.registration_id, fired.reason) == (of_run, TeardownReason.TEARDOWN_REASON_IDLE)
    assert loop.time() - begun == pytest.approx(60, abs=0.5)
    await worker.torn_down(of_run)
    assert [(await worker.next_teardown()).registration_id for _ in range(2)] == [touched, idle]
    assert loop.time() - begun == pytest.approx(100, abs=0.5)
    await asyncio.sleep(300)
    await worker.result(run)
    assert (await caller.outcome(call)).HasField("result")
    ended_at = loop.time()
    assert (await worker.next_teardown()).registration_id == busy
    assert loop.time() - ended_at == pytest.approx(60, abs=0.5)
    await worker.torn_down(busy)
    await quiet()
    assert host.counts["idle_scopes"] == 4
    await asyncio.sleep(1000)
    assert len(worker.teardowns()) == 4, "what lasts until the stop is never idle"


async def test_nothing_looks_for_idle_scopes_while_there_can_be_none(memory_host: MemoryHost) -> None:
    worker, caller = await attach(memory_host), await memory_host.caller()
    call = await caller.start(session_id="s")
    run = (await worker.next_invoke()).call
    await worker.registered(run, SESSION)
    assert memory_host.pipeline.teardowns.registry.idle_in() is None
    await worker.result(run)
    await caller.outcome(call)
    assert memory_host.pipeline.teardowns.registry.idle_in() == pytest.approx(900, abs=1)
    end = ending(memory_host)
    await worker.torn_down((await worker.next_teardown()).registration_id)
    assert await end == (1, 0, 0)
    assert memory_host.pipeline.teardowns.registry.idle_in() is None


async def test_the_coldest_of_too_many_scopes_give_way_for_each_set_and_tenant(start_host: StartHost) -> None:
    host = await start_host(scopes=ScopeLimits(live=3))
    assert isinstance(host, MemoryHost)
    worker, caller = await attach(host), await host.caller()
    other = await attach(host, tool("other"), worker="other")
    ids = {session: await kept(worker, caller, session) for session in "abc"}
    # Others' are counted apart.
    for session in "abc":
        await kept(worker, caller, session, identity=Identity(tenant="t"))
        await kept(other, caller, session, tool="other")
    await quiet()
    assert not worker.teardowns()
    # A call makes its session warm; one that is busy does not give way.
    assert await kept(worker, caller, "a") == ids["a"]
    busy = await caller.start(session_id="b")
    run = (await worker.next_invoke()).call
    ids["d"] = await kept(worker, caller, "d")
    fired = await worker.next_teardown()
    assert (fired.registration_id, fired.reason) == (ids["c"], TeardownReason.TEARDOWN_REASON_EVICTED)
    await worker.torn_down(ids["c"])
    ids["e"] = await kept(worker, caller, "e")
    await ran(worker, ids["a"])
    await worker.result(run)
    await caller.outcome(busy)
    await quiet()
    assert host.counts["evicted_scopes"] == 2
    assert not other.teardowns()


async def test_scopes_that_were_busy_give_way_once_they_are_not(start_host: StartHost) -> None:
    host = await start_host(scopes=ScopeLimits(live=2))
    assert isinstance(host, MemoryHost)
    worker, caller = await attach(host), await host.caller()
    calls, runs, ids = [], [], []
    for number in range(5):
        calls.append(await caller.start(session_id=str(number)))
        runs.append((await worker.next_invoke()).call)
        ids.append((await worker.registered(runs[-1], SESSION)).registration_id)
    await quiet()
    assert not worker.teardowns()
    for run, call in zip(runs, calls, strict=True):
        await worker.result(run)
        await caller.outcome(call)
    await ran(worker, *ids[:3])
    await quiet()
    assert len(worker.teardowns()) == 3


@everywhere
async def test_a_thousand_ends_and_calls_of_one_session_race(host: Host) -> None:
    worker, caller = await attach(host), await host.caller()
    chance = random.Random(7)  # noqa: S311  # no secret
    tearing = asyncio.ensure_future(_serve(worker))
    answers: list[tuple[int, int, int]] = []
    calls: list[int] = []
    ends: list[asyncio.Task[tuple[int, int, int]]] = []
    for _ in range(1_000):
        if chance.random() < 0.5:
            calls.append(await caller.start(session_id="s", timeout=30))
        else:
            ends.append(ending(host))
            if len(ends) >= 50:
                answers += await asyncio.gather(*ends)
                ends.clear()
    answers += await asyncio.gather(*ends)
    outcomes = [await caller.outcome(call) for call in calls]
    kinds = {outcome.failure.kind if outcome.HasField("failure") else None for outcome in outcomes}
    assert kinds <= {None, FailureKind.FAILURE_KIND_UNAVAILABLE, FailureKind.FAILURE_KIND_CANCELLED}
    answers.append(await ended(host))
    tearing.cancel()
    await asyncio.gather(tearing, return_exceptions=True)
    fired = [one.registration_id for one in worker.teardowns()]
    assert len(fired) == len(set(fired))
    accepted = {
        frame.reply.teardown.registration_id
        for frame in worker.order
        if frame.HasField("reply") and frame.reply.HasField("teardown")
    }
    assert accepted == set(fired), "each fires once"
    assert sum(answer[0] for answer in answers) == len(fired)
    assert sum(answer[1] for answer in answers) == 0


async def _serve(worker: WorkerPeer) -> None:
    """Registers in each call, ends it, and runs what fires."""

    async def run_calls() -> None:
        while True:
            run = (await worker.next_invoke()).call
            await worker.register(run, RegisterTeardown(request_id=1, scope=SESSION))
            await worker.result(run)

    async def tear_down() -> None:
        while True:
            await worker.torn_down((await worker.next_teardown()).registration_id)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(run_calls())
        tasks.create_task(tear_down())


async def test_two_subjects_with_one_session_id_share_nothing(memory_host: MemoryHost) -> None:
    worker = await attach(memory_host)
    callers = [await memory_host.caller()]
    memory_host.principal = Principal("anyone", authenticated=True)
    callers.append(await memory_host.caller())
    ids = [await kept(worker, caller, "s") for caller in callers]
    assert ids[0] != ids[1]
    owner = scope_of(memory_host.principal, None, None, None, "x").owner
    key = ScopeKey(SESSION, owner, "s")
    end = asyncio.ensure_future(memory_host.pipeline.teardowns.end(key, memory_host.principal))
    await ran(worker, ids[1])
    assert (await end).fired == 1
    assert memory_host.pipeline.teardowns.registry.find(ids[0]) is not None


async def test_a_timer_that_comes_too_early_does_not_come_for_ever(start_host: StartHost) -> None:
    """Times that are no round numbers add up to a hair less, or more, than they should."""
    host = await start_host(scopes=ScopeLimits(idle=0.1 + 0.2))
    assert isinstance(host, MemoryHost)
    worker, caller = await attach(host), await host.caller()
    for number in range(200):
        await asyncio.sleep(0.1 * number / 7)
        registration = await kept(worker, caller, str(number))
        touched = asyncio.get_running_loop().time()
        await ran(worker, registration)
        assert asyncio.get_running_loop().time() - touched == pytest.approx(0.3, abs=0.02)
    assert host.counts["idle_scopes"] == 200
