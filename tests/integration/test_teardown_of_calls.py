"""What is kept for a call's end fires before its outcome, whatever that is."""

import asyncio

import pytest

from sidecar._gen.pillion.v1.context_pb2 import CancelReason, TeardownReason
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outbound_pb2 import OutboundRequest
from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind, Outcome
from tests.integration.teardowns import CALL, SESSION, kept, ran
from tests.support import (
    READ,
    CallerPeer,
    CallLimits,
    Host,
    MemoryHost,
    StartHost,
    WorkerPeer,
    attach,
    everywhere,
    quiet,
    tool,
)

CALL_END = TeardownReason.TEARDOWN_REASON_CALL_END


async def registered(
    worker: WorkerPeer, caller: CallerPeer, *names: str, **start: object
) -> tuple[int, int, list[str]]:
    """A running call that keeps something of each name for its end: ids of both hops, and of what it keeps."""
    call = await caller.start(**start)  # type: ignore[arg-type]
    run = (await worker.next_invoke()).call
    kept_ids = [
        (await worker.registered(run, CALL, number, name=name)).registration_id for number, name in enumerate(names, 1)
    ]
    return call, run, kept_ids


def kind_of(outcome: Outcome) -> "FailureKind.ValueType | None":
    return outcome.failure.kind if outcome.HasField("failure") else None


@everywhere
async def test_cleanups_of_a_call_run_newest_first_and_before_its_outcome(host: Host) -> None:
    worker, caller = await attach(host), await host.caller()
    call, run, kept_ids = await registered(worker, caller, "a", "b", "c")
    await worker.result(run, b"1")
    fired = [await worker.next_teardown() for _ in kept_ids]
    assert [one.registration_id for one in fired] == kept_ids[::-1]
    assert {one.reason for one in fired} == {CALL_END}
    assert all(0 < one.timeout.seconds <= 5 for one in fired)
    for registration in kept_ids[1:]:
        await worker.torn_down(registration)
    await worker.flush()
    await caller.flush()
    assert "outcome" not in caller.bodies(call)
    await worker.torn_down(kept_ids[0])
    assert (await caller.outcome(call)).result.json == b"1"
    counters = await host.counters()
    assert not counters or (counters["teardowns"], counters["teardowns.call-end"]) == (3, 3)


@everywhere
async def test_a_cleanup_that_fails_changes_no_outcome(host: Host) -> None:
    worker, caller = await attach(host), await host.caller()
    call, run, (registration,) = await registered(worker, caller, "a")
    await worker.result(run, b"1")
    await worker.next_teardown()
    await worker.torn_down(registration, error="The browser was gone.")
    assert (await caller.outcome(call)).result.json == b"1"
    counters = await host.counters()
    assert not counters or counters["failed_teardowns"] == 1


async def test_a_cleanup_that_hangs_costs_its_grace_and_is_late_afterwards(memory_host: MemoryHost) -> None:
    worker, caller = await attach(memory_host), await memory_host.caller()
    call, run, (slow, quick) = await registered(worker, caller, "slow", "quick")
    await worker.result(run, b"1")
    await worker.torn_down(quick)
    begun = asyncio.get_running_loop().time()
    assert (await caller.outcome(call)).result.json == b"1"
    assert 4.9 <= asyncio.get_running_loop().time() - begun <= 5.1
    await quiet()
    assert memory_host.counts["failed_teardowns"] == 1
    await worker.torn_down(slow)
    await worker.torn_down(quick)
    await worker.torn_down("reg_of_nobody")
    await worker.flush()
    assert memory_host.counts["late_teardowns"] == 3
    assert memory_host.counts["teardowns"] == 1
    assert len(worker.teardowns()) == 2


@everywhere
@pytest.mark.parametrize("ends", ["failed", "cancelled", "timed out", "idle"])
async def test_a_call_that_ends_otherwise_is_torn_down_too(host: Host, ends: str) -> None:
    worker, caller = await attach(host), await host.caller()
    times = {"timed out": {"timeout": 0.2}, "idle": {"idle_timeout": 0.2}}
    call, run, (registration,) = await registered(worker, caller, "a", **times.get(ends, {}))
    if ends == "cancelled":
        await caller.cancel(call)
    if ends != "failed":
        await worker.cancelled(run)
    await worker.fail(run)
    await ran(worker, registration)
    expected = {
        "failed": FailureKind.FAILURE_KIND_TOOL_FAILED,
        "cancelled": FailureKind.FAILURE_KIND_CANCELLED,
        "timed out": FailureKind.FAILURE_KIND_TIMEOUT,
        "idle": FailureKind.FAILURE_KIND_IDLE_TIMEOUT,
    }
    assert kind_of(await caller.outcome(call)) == expected[ends]


async def test_a_call_whose_tool_ignores_its_cancel_is_torn_down_within_the_bound(memory_host: MemoryHost) -> None:
    worker, caller = await attach(memory_host), await memory_host.caller()
    loop = asyncio.get_running_loop()
    begun = loop.time()
    call, run, (registration,) = await registered(worker, caller, "a", timeout=3)
    assert (await worker.next_teardown()).registration_id == registration
    assert loop.time() - begun == pytest.approx(5, abs=0.1)
    outcome = await caller.outcome(call)
    assert outcome.failure.kind == FailureKind.FAILURE_KIND_TIMEOUT
    assert loop.time() - begun == pytest.approx(10, abs=0.2)
    # What the tool registers now belongs to no call.
    await worker.send(Frame(call=run))
    await worker.result(run)
    await worker.flush()
    assert len(worker.teardowns()) == 1


async def test_a_call_with_a_key_is_torn_down_and_recorded_within_the_bound(memory_host: MemoryHost) -> None:
    worker, caller = await attach(memory_host), await memory_host.caller()
    loop = asyncio.get_running_loop()
    call, run, (registration,) = await registered(worker, caller, "a", idempotency_key="k", timeout=30)
    joined = await caller.start(idempotency_key="k")
    await caller.flush()
    await worker.result(run, b"1")
    begun = loop.time()
    assert (await worker.next_teardown()).registration_id == registration
    assert (await caller.outcome(call)).result.json == b"1"
    assert (await caller.outcome(joined)).result.json == b"1"
    assert 4.4 <= loop.time() - begun <= 5.0
    (record,) = memory_host.store.records.values()
    assert record.outcome is not None
    assert memory_host.counts["unrecorded_outcomes"] == 0
    # A replay runs nothing and so tears nothing down.
    assert (await caller.call(idempotency_key="k")).result.json == b"1"
    await quiet()
    assert len(worker.teardowns()) == 1


@everywhere
async def test_a_call_that_is_handed_over_is_torn_down_once(host: Host) -> None:
    worker, caller, heir = await attach(host), await host.caller(), await host.caller()
    call, run, (registration,) = await registered(worker, caller, "a", idempotency_key="k")
    joined = await heir.start(idempotency_key="k")
    await heir.flush()
    await caller.cancel(call)
    assert kind_of(await caller.outcome(call)) == FailureKind.FAILURE_KIND_CANCELLED
    await worker.result(run, b"1")
    await ran(worker, registration)
    assert (await heir.outcome(joined)).result.json == b"1"
    await worker.flush()
    assert len(worker.teardowns()) == 1


@everywhere
async def test_a_call_that_registered_is_not_run_again_and_is_owed_its_cleanup(host: Host) -> None:
    worker, caller = await attach(host, tool(effects=READ)), await host.caller()
    other = await attach(host, tool(effects=READ), concurrency=1)
    call, _, _ = await registered(worker, caller, "a")
    worker.cut()
    assert kind_of(await caller.outcome(call)) == FailureKind.FAILURE_KIND_WORKER_LOST
    assert not other.invoked


@everywhere
async def test_an_inner_call_is_torn_down_before_its_outcome_is_told(host: Host) -> None:
    worker, caller = await attach(host), await host.caller()
    call = await caller.start()
    outer = (await worker.next_invoke()).call
    nested = OutboundRequest(request_id=1)
    nested.tools_call.tool = "echo"
    nested.tools_call.arguments = b'{"inner": true}'
    await worker.send(Frame(call=outer, outbound_request=nested))
    inner = (await worker.next_invoke()).call
    of_outer = await worker.registered(outer, CALL, 2)
    of_inner = await worker.registered(inner, CALL)
    assert of_outer.registration_id != of_inner.registration_id
    await worker.result(inner, b"2")
    assert (await worker.next_teardown()).registration_id == of_inner.registration_id
    await worker.flush()
    assert worker.bodies(outer)[-1] == "reply"
    await worker.torn_down(of_inner.registration_id)
    assert (await worker.next_of("reply", outer)).reply.tool_outcome.result.json == b"2"
    await worker.result(outer, b"1")
    await ran(worker, of_outer.registration_id)
    assert (await caller.outcome(call)).result.json == b"1"


async def test_an_inner_call_whose_outer_ends_is_torn_down_in_its_own_time(memory_host: MemoryHost) -> None:
    worker, caller = await attach(memory_host), await memory_host.caller()
    call = await caller.start()
    outer = (await worker.next_invoke()).call
    nested = OutboundRequest(request_id=1)
    nested.tools_call.tool = "echo"
    nested.tools_call.arguments = b'{"inner": true}'
    await worker.send(Frame(call=outer, outbound_request=nested))
    inner = (await worker.next_invoke()).call
    of_inner = await worker.registered(inner, CALL)
    await worker.result(outer, b"1")
    assert (await caller.outcome(call)).result.json == b"1"
    assert await worker.cancelled(inner) == CancelReason.CANCEL_REASON_PARENT
    await ran(worker, of_inner.registration_id)
    await quiet()
    assert memory_host.counts["teardowns"] == 1
    assert not memory_host.pipeline.running


async def test_a_cleanup_that_is_fired_may_not_register_another(memory_host: MemoryHost) -> None:
    """Its call is over: a registration on it is late, and one of another call is another call's."""
    worker, caller = await attach(memory_host), await memory_host.caller()
    call, run, (registration,) = await registered(worker, caller, "a", session_id="s")
    await worker.result(run)
    await worker.next_teardown()
    frame = Frame(call=run)
    frame.register_teardown.request_id = 9
    frame.register_teardown.scope = SESSION
    await worker.send(frame)
    await worker.flush()
    assert memory_host.counts["late_requests"] == 1
    await worker.torn_down(registration)
    await caller.outcome(call)
    assert memory_host.pipeline.teardowns.registry.registrations == 0
    assert await kept(worker, caller, "s")


async def test_a_lost_stream_of_the_caller_tears_its_calls_down(start_host: StartHost) -> None:
    host = await start_host(calls=CallLimits(cancel_grace=1))
    assert isinstance(host, MemoryHost)
    worker, caller = await attach(host), await host.caller()
    _, run, (registration,) = await registered(worker, caller, "a")
    caller.cut()
    assert await worker.cancelled(run) == CancelReason.CANCEL_REASON_DISCONNECT
    await ran(worker, registration)
    await quiet()
    assert not host.pipeline.running
    assert host.counts["teardowns"] == 1
