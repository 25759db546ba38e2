"""Laws 5 and 6: a cancel is a signal with a reason, and a call has two clocks."""

import asyncio
from typing import Any

import pytest

from sidecar._gen.pillion.v1.context_pb2 import CancelReason, TeardownScope
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outbound_pb2 import ReplyErrorCode
from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind, SideEffects
from sidecar._gen.pillion.v1.tool_pb2 import ToolDescriptor
from sidecar._gen.pillion.v1.worker_pb2 import RegisterTeardown
from tests.support import (
    READ,
    Host,
    MemoryHost,
    SocketHost,
    attach,
    everywhere,
    on_sockets,
    quiet,
    tool,
)
from tests.support.slow_store import SlowStore

CANCELLED = FailureKind.FAILURE_KIND_CANCELLED
IDLE_TIMEOUT = FailureKind.FAILURE_KIND_IDLE_TIMEOUT
OVERLOADED = FailureKind.FAILURE_KIND_OVERLOADED
TIMEOUT = FailureKind.FAILURE_KIND_TIMEOUT

CALLER = CancelReason.CANCEL_REASON_CALLER
DEADLINE = CancelReason.CANCEL_REASON_DEADLINE
DISCONNECT = CancelReason.CANCEL_REASON_DISCONNECT
DRAIN = CancelReason.CANCEL_REASON_DRAIN
IDLE = CancelReason.CANCEL_REASON_IDLE
OPERATOR = CancelReason.CANCEL_REASON_OPERATOR
PARENT = CancelReason.CANCEL_REASON_PARENT
SCOPE_ENDED = CancelReason.CANCEL_REASON_SCOPE_ENDED
UNSPECIFIED = CancelReason.CANCEL_REASON_UNSPECIFIED

# A due time is met within a slot of 10 ms.
SLOT = 0.02


def now() -> float:
    """The loop's clock."""
    return asyncio.get_running_loop().time()


# --- 5: a cancel is a signal with a reason, never a kill


@pytest.mark.parametrize("waiting", [False, True], ids=["running", "waiting"])
async def test_law_6_who_is_left_a_call_has_the_time_that_it_wished_for(host: Host, *, waiting: bool) -> None:
    first, second = await host.caller(), await host.caller()
    worker = await attach(host, concurrency=1)
    if waiting:
        await first.start(timeout=100)
        await worker.next_invoke()
    begun = now()
    left = await first.start(idempotency_key="k", timeout=50, idle_timeout=4)
    if not waiting:
        await worker.next_invoke()
    await first.flush()
    call = await second.start(idempotency_key="k", timeout=3)
    longer = await second.start(idempotency_key="k", timeout=20)
    await second.flush()
    await first.cancel(left)
    assert (await first.outcome(left)).failure.kind == CANCELLED
    assert (await second.outcome(call)).failure.kind == TIMEOUT
    assert 3 <= now() - begun < 5.1
    assert (await second.outcome(longer)).failure.kind == TIMEOUT


async def test_law_6_who_is_left_a_call_waits_as_long_as_it_wished(host: Host) -> None:
    worker, first, second = await attach(host), await host.caller(), await host.caller()
    left = await first.start(idempotency_key="k", timeout=6, idle_timeout=4)
    run = (await worker.next_invoke()).call
    call = await second.start(idempotency_key="k", timeout=50)
    await second.flush()
    await first.cancel(left)
    await asyncio.sleep(20)
    await worker.result(run)
    assert (await second.outcome(call)).HasField("result")


async def test_law_5_a_lost_stream_cancels_a_call_that_others_of_the_stream_have_joined(host: Host) -> None:
    worker, caller, other = await attach(host), await host.caller(), await host.caller()
    for _ in range(3):
        await caller.start(idempotency_key="k")
    run = (await worker.next_invoke()).call
    await caller.flush()
    # Another stream's call goes on as its own, and that one's loss ends it.
    call = await other.start(idempotency_key="k")
    await other.flush()
    caller.cut()
    await quiet()
    await worker.progress(run)
    await other.next_of("progress", call)
    assert "cancel" not in worker.bodies(run)
    other.cut()
    assert await worker.cancelled(run) == DISCONNECT


@everywhere
@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (UNSPECIFIED, CALLER),
        (CALLER, CALLER),
        (PARENT, PARENT),
        (DEADLINE, DEADLINE),
        (DISCONNECT, DISCONNECT),
        # These are not a caller's to give.
        (IDLE, CALLER),
        (DRAIN, CALLER),
        (SCOPE_ENDED, CALLER),
        (OPERATOR, CALLER),
    ],
    ids=str,
)
async def test_law_5_a_callers_cancel_reaches_the_tool_with_its_reason(
    host: Host, sent: "CancelReason.ValueType", told: "CancelReason.ValueType"
) -> None:
    worker, caller = await attach(host), await host.caller()
    call = await caller.start()
    run = (await worker.next_invoke()).call
    await caller.cancel(call, sent)
    assert await worker.cancelled(run) == told
    await worker.fail(run, CANCELLED)
    assert (await caller.outcome(call)).failure.kind == CANCELLED


@everywhere
async def test_law_5_a_lost_stream_cancels_its_calls_and_no_other(host: Host) -> None:
    worker, lost, other = await attach(host), await host.caller(), await host.caller()
    await lost.start(arguments={"of": "lost"})
    cancelled = (await worker.next_invoke()).call
    call = await other.start(arguments={"of": "other"})
    run = (await worker.next_invoke()).call
    lost.cut()
    assert await worker.cancelled(cancelled) == DISCONNECT
    await worker.result(run)
    assert (await other.outcome(call)).HasField("result")
    assert worker.bodies(run) == ["invoke"]


@pytest.mark.parametrize("reason", [DRAIN, SCOPE_ENDED, OPERATOR, PARENT], ids=str)
async def test_law_5_the_houses_reasons_reach_the_tool(
    memory_host: MemoryHost, reason: "CancelReason.ValueType"
) -> None:
    worker, caller = await attach(memory_host), await memory_host.caller()
    call = await caller.start()
    run = (await worker.next_invoke()).call
    for running in memory_host.pipeline.running:
        running.cancel(reason)
    assert await worker.cancelled(run) == reason
    await worker.result(run)
    assert (await caller.outcome(call)).failure.kind == CANCELLED


async def test_law_5_the_clocks_reasons_reach_the_tool(host: Host) -> None:
    worker, caller = await attach(host), await host.caller()
    await caller.start(timeout=3)
    await caller.start(timeout=9, idle_timeout=3)
    runs = [(await worker.next_invoke()).call for _ in range(2)]
    assert [await worker.cancelled(run) for run in runs] == [DEADLINE, IDLE]


@on_sockets
async def test_law_5_a_sidecar_told_to_stop_twice_cancels_with_drain(socket_host: SocketHost) -> None:
    worker, caller = await attach(socket_host), await socket_host.caller()
    call = await caller.start()
    run = (await worker.next_invoke()).call
    socket_host.stop()
    assert (await caller.next_of("draining")).draining.grace.seconds == 30
    refused = await caller.call()
    assert refused.failure.kind == FailureKind.FAILURE_KIND_UNAVAILABLE
    assert worker.bodies(run) == ["invoke"]
    socket_host.stop()
    assert await worker.cancelled(run) == DRAIN
    await worker.result(run)
    assert (await caller.outcome(call)).failure.kind == CANCELLED


@everywhere
async def test_law_5_a_cancelled_tool_ends_by_itself_and_its_word_on_effects_stands(host: Host) -> None:
    worker, caller = await attach(host), await host.caller()
    call = await caller.start()
    run = (await worker.next_invoke()).call
    await caller.cancel(call)
    await worker.cancelled(run)
    await caller.flush()
    # It is asked, not ended: there is no outcome until it ends or its grace is over.
    assert caller.bodies(call) == []
    await worker.fail(run, CANCELLED, SideEffects.SIDE_EFFECTS_COMMITTED)
    failure = (await caller.outcome(call)).failure
    assert (failure.kind, failure.side_effects) == (CANCELLED, SideEffects.SIDE_EFFECTS_COMMITTED)
    again = await caller.start()
    await worker.result((await worker.next_invoke()).call, b"1")
    assert (await caller.outcome(again)).HasField("result")


@everywhere
async def test_law_5_a_cancel_of_no_open_call_is_ignored(host: Host) -> None:
    worker, caller = await attach(host), await host.caller()
    call = await caller.start()
    run = (await worker.next_invoke()).call
    await worker.result(run)
    await caller.outcome(call)
    for idle in (0, call, call + 40):
        await caller.cancel(idle)
    await caller.flush()
    await worker.flush()
    assert caller.bodies(call) == ["started", "outcome"]
    assert worker.bodies(run) == ["invoke"]
    assert caller.bodies() == []


async def test_law_5_a_call_that_waits_is_cancelled_without_effects(host: Host) -> None:
    worker, caller = await attach(host, concurrency=1), await host.caller()
    await caller.start()
    await worker.next_invoke()
    call = await caller.start()
    await caller.flush()
    await caller.cancel(call)
    begun = now()
    failure = (await caller.outcome(call)).failure
    assert (failure.kind, failure.side_effects) == (CANCELLED, SideEffects.SIDE_EFFECTS_NONE)
    assert now() == begun
    assert len(worker.invoked) == 1


async def test_law_5_a_tool_that_ignores_its_cancel_leaks_a_counted_slot_until_it_ends(
    memory_host: MemoryHost,
) -> None:
    worker, caller = await attach(memory_host, concurrency=3), await memory_host.caller()
    call = await caller.start()
    run = (await worker.next_invoke()).call
    await caller.cancel(call)
    assert (await caller.outcome(call)).failure.kind == CANCELLED
    assert memory_host.counts["leaked_slots"] == 1
    # Two slots are left, and the third call has to wait: in vain, until the tool ends after all.
    first, second, third = [await caller.start() for _ in range(3)]
    await worker.next_invoke()
    await worker.next_invoke()
    await quiet()
    assert len(worker.invoked) == 3
    await worker.result(run)
    await worker.next_invoke()
    for invocation in worker.invoked[1:]:
        await worker.result(invocation.call)
    for each in (first, second, third):
        assert (await caller.outcome(each)).HasField("result")
    assert caller.bodies(call) == ["started", "outcome"]
    assert "drain" not in worker.bodies()


async def test_law_5_at_half_the_slots_the_instance_is_drained_and_another_takes_over(
    memory_host: MemoryHost,
) -> None:
    worker, caller = await attach(memory_host, concurrency=4), await memory_host.caller()
    kept = await caller.start()
    kept_run = (await worker.next_invoke()).call
    for leaked in (1, 2):
        assert "drain" not in worker.bodies()
        call = await caller.start()
        await worker.next_invoke()
        await caller.cancel(call)
        assert (await caller.outcome(call)).failure.kind == CANCELLED
        assert memory_host.counts["leaked_slots"] == leaked
    assert (await worker.next_of("drain")).drain.grace.seconds == 30
    other = await attach(memory_host, concurrency=4)
    call = await caller.start()
    await other.result((await other.next_invoke()).call)
    assert (await caller.outcome(call)).HasField("result")
    # What runs on the drained one finishes.
    await worker.result(kept_run)
    assert (await caller.outcome(kept)).HasField("result")
    assert len(worker.invoked) == 3


# --- 6: two clocks


async def test_law_6_the_absolute_timeout_is_the_callers_within_the_tools_maximum(host: Host) -> None:
    tools = (
        tool("slow", max_timeout=5),
        tool("echo", default_timeout=20),
        tool("read", default_timeout=9, max_timeout=4),
    )
    worker, caller = await attach(host, *tools), await host.caller()
    expected: list[tuple[str, dict[str, Any], float]] = [
        ("slow", {}, 5),
        ("slow", {"timeout": 3.5}, 3.5),
        ("slow", {"timeout": 100}, 5),
        ("echo", {}, 20),
        ("echo", {"timeout": 40}, 40),
        ("read", {}, 4),
    ]
    calls = [(await caller.start(name, **wishes), ends) for name, wishes, ends in expected]
    for _, ends in calls:
        remaining = (await worker.next_invoke()).context.remaining
        assert remaining.ToNanoseconds() / 1e9 == pytest.approx(ends, abs=0.001)
    for call, ends in sorted(calls, key=lambda pair: pair[1]):
        assert (await caller.outcome(call)).failure.kind == TIMEOUT
        assert ends + 2 <= now() <= ends + 2 + SLOT


async def test_law_6_without_any_wish_the_timeout_is_a_minute(host: Host) -> None:
    worker, caller = await attach(host), await host.caller()
    call = await caller.start()
    assert (await worker.next_invoke()).context.remaining.seconds == 60
    assert (await caller.outcome(call)).failure.kind == TIMEOUT
    assert 62 <= now() <= 62 + SLOT


@everywhere
@pytest.mark.parametrize("timeout", [0, -1])
async def test_law_6_an_expired_deadline_is_a_timeout_and_nothing_is_invoked(host: Host, timeout: float) -> None:
    worker, caller = await attach(host), await host.caller()
    failure = (await caller.call(timeout=timeout)).failure
    assert (failure.kind, failure.side_effects) == (TIMEOUT, SideEffects.SIDE_EFFECTS_NONE)
    await worker.flush()
    assert worker.invoked == []


async def test_law_6_what_rides_on_the_wire_is_the_time_that_is_left(host: Host) -> None:
    first = await attach(host, tool("read", effects=READ), concurrency=1)
    caller = await host.caller()
    busy = await caller.start("read", timeout=30)
    run = (await first.next_invoke()).call
    call = await caller.start("read", timeout=10, idle_timeout=8)
    await asyncio.sleep(4)
    await first.result(run)
    await caller.outcome(busy)
    waited = (await first.next_invoke()).context
    assert waited.remaining.ToNanoseconds() / 1e9 == pytest.approx(6, abs=0.001)
    assert waited.idle_timeout.seconds == 8
    second = await attach(host, tool("read", effects=READ))
    await asyncio.sleep(1)
    first.cut()
    again = (await second.next_invoke()).context
    assert (again.attempt, again.execution_id) == (2, waited.execution_id)
    assert again.remaining.ToNanoseconds() / 1e9 == pytest.approx(5, abs=0.001)
    # A second attempt has no second time.
    assert (await caller.outcome(call)).failure.kind == TIMEOUT
    assert now() <= 12 + SLOT


async def test_law_6_progress_resets_the_idle_clock(host: Host) -> None:
    worker, caller = await attach(host), await host.caller()
    call = await caller.start(timeout=50, idle_timeout=2)
    run = (await worker.next_invoke()).call
    for _ in range(8):
        await asyncio.sleep(1.9)
        await worker.progress(run)
    last = now()
    assert await worker.cancelled(run) == IDLE
    assert (await caller.outcome(call)).failure.kind == IDLE_TIMEOUT
    assert last + 4 <= now() <= last + 4 + SLOT


async def test_law_6_progress_does_not_reset_the_absolute_clock(host: Host) -> None:
    worker, caller = await attach(host), await host.caller()
    call = await caller.start(timeout=5, idle_timeout=2)
    run = (await worker.next_invoke()).call
    for _ in range(5):
        await asyncio.sleep(0.98)
        await worker.progress(run)
    assert await worker.cancelled(run) == DEADLINE
    assert (await caller.outcome(call)).failure.kind == TIMEOUT
    assert 7 <= now() <= 7 + SLOT


async def test_law_6_a_call_that_waits_for_an_instance_is_not_idle(host: Host) -> None:
    worker, caller = await attach(host, concurrency=1), await host.caller()
    await caller.start()
    busy = (await worker.next_invoke()).call
    call = await caller.start(idle_timeout=2)
    await asyncio.sleep(4)
    await worker.result(busy)
    run = (await worker.next_invoke()).call
    await asyncio.sleep(1.9)
    await worker.result(run)
    assert (await caller.outcome(call)).HasField("result")


@everywhere
@pytest.mark.parametrize("name", ["idle_timeout", "human_timeout"])
async def test_law_6_a_clock_that_is_not_positive_is_refused(host: Host, name: str) -> None:
    caller = await host.caller()
    await attach(host)
    for seconds in (0, -2):
        wish: dict[str, Any] = {name: seconds}
        failure = (await caller.call(**wish)).failure
        assert failure.kind == FailureKind.FAILURE_KIND_INVALID_ARGUMENTS
        assert name in failure.message


@pytest.mark.parametrize(
    "bad", [tool(max_timeout=0), tool(default_timeout=-1), tool(max_timeout=-0.5)], ids=["zero", "minus", "fraction"]
)
async def test_law_6_a_tool_with_an_impossible_clock_is_refused_by_name(host: Host, bad: ToolDescriptor) -> None:
    worker = await host.worker()
    welcome = await worker.hello(bad, tool("slow"))
    assert [refused.name for refused in welcome.refused] == ["echo"]
    caller = await host.caller()
    call = await caller.start("slow")
    await worker.result((await worker.next_invoke()).call)
    assert (await caller.outcome(call)).HasField("result")


@everywhere
@pytest.mark.parametrize("far", [2**62, 2**63 - 1])
@pytest.mark.parametrize("name", ["timeout", "idle_timeout", "human_timeout"])
async def test_law_6_a_far_time_is_no_overflow(host: Host, name: str, far: int) -> None:
    worker, caller = await attach(host), await host.caller()
    frame = Frame(call=1)
    frame.start.tool = "echo"
    getattr(frame.start, name).seconds = far
    await caller.send(frame)
    await worker.result((await worker.next_invoke()).call)
    assert (await caller.outcome(1)).HasField("result")


async def test_law_6_a_far_deadline_harms_no_other_call(host: Host) -> None:
    worker = await attach(host, concurrency=1)
    caller, other = await host.caller(), await host.caller()
    call = await other.start()
    run = (await worker.next_invoke()).call
    frame = Frame(call=1)
    frame.start.tool = "echo"
    frame.start.timeout.seconds = 2**63 - 1
    await caller.send(frame)
    await caller.flush()
    await worker.result(run)
    await worker.result((await worker.next_invoke()).call)
    for outcome in (await other.outcome(call), await caller.outcome(1)):
        assert outcome.HasField("result")


async def test_law_6_a_tool_may_name_a_far_time(host: Host) -> None:
    far = tool()
    far.default_timeout.seconds = far.max_timeout.seconds = 2**63 - 1
    worker, caller = await attach(host, far), await host.caller()
    call = await caller.start()
    await worker.result((await worker.next_invoke()).call)
    assert (await caller.outcome(call)).HasField("result")


async def test_law_6_a_registration_is_answered_at_the_latest_when_its_call_is_out_of_time(
    memory_host: MemoryHost,
) -> None:
    memory_host.pipeline.teardowns.firing.store = store = SlowStore()
    worker, caller = await attach(memory_host), await memory_host.caller()
    begun = asyncio.get_running_loop().time()
    call = await caller.start(session_id="s", timeout=3)
    run = (await worker.next_invoke()).call
    reply = await worker.register(run, RegisterTeardown(request_id=1, scope=TeardownScope.TEARDOWN_SCOPE_SESSION))
    assert asyncio.get_running_loop().time() - begun == pytest.approx(3, abs=0.1)
    assert (reply.error.code, reply.error.retryable) == (ReplyErrorCode.REPLY_ERROR_CODE_OVERLOADED, True)
    store.go_on()
    await worker.result(run)
    assert (await caller.outcome(call)).failure.kind == FailureKind.FAILURE_KIND_TIMEOUT
    await quiet()
    assert not store.kept
    assert memory_host.pipeline.teardowns.registry.registrations == 0
