"""Calls that tools make: through every gate, inside the call that made them, and never longer than it."""

import asyncio
import json
from typing import Any

import pytest

from sidecar._gen.pillion.v1.context_pb2 import CancelReason, Identity
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outbound_pb2 import OutboundRequest, Reply, ReplyErrorCode
from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind, SideEffects
from sidecar.calls.limits import CallLimits
from sidecar.workers.limits import WorkerLimits
from tests.support import (
    READ,
    CallerPeer,
    Host,
    Invocation,
    MemoryHost,
    StartHost,
    WorkerPeer,
    attach,
    everywhere,
    quiet,
    seconds,
    tool,
)

CANCELLED = FailureKind.FAILURE_KIND_CANCELLED
INVALID_ARGUMENTS = FailureKind.FAILURE_KIND_INVALID_ARGUMENTS
OVERLOADED = FailureKind.FAILURE_KIND_OVERLOADED
TIMEOUT = FailureKind.FAILURE_KIND_TIMEOUT
UNKNOWN_TOOL = FailureKind.FAILURE_KIND_UNKNOWN_TOOL
WORKER_LOST = FailureKind.FAILURE_KIND_WORKER_LOST
PARENT = CancelReason.CANCEL_REASON_PARENT

SLOT = 0.02
"""A due time is met within a slot of 10 ms."""


def call_of(name: str, arguments: Any = None, number: int = 1, timeout: float | None = None) -> OutboundRequest:
    """The request for a call of a tool."""
    asked = OutboundRequest(request_id=number, timeout=seconds(timeout) if timeout is not None else None)
    asked.tools_call.tool = name
    if arguments is not None:
        asked.tools_call.arguments = json.dumps(arguments).encode()
    return asked


async def make(worker: WorkerPeer, outer: Invocation, *asked: OutboundRequest) -> None:
    await worker.send(*(Frame(call=outer.call, outbound_request=one) for one in asked))


async def reply(worker: WorkerPeer, outer: Invocation) -> Reply:
    return (await worker.next_of("reply", outer.call)).reply


async def both(host: Host, **limits: Any) -> tuple[WorkerPeer, CallerPeer]:
    return await attach(host, tool("echo"), tool("read", effects=READ), **limits), await host.caller()


@everywhere
async def test_an_inner_call_has_the_facts_of_the_outer_one(host: Host) -> None:
    worker, caller = await both(host)
    call = await caller.start(
        "echo",
        {"n": 1},
        identity=Identity(tenant="t", principal="p", conversation_id="c"),
        run_id="r",
        session_id="s",
        tool_call_id="mine",
        iteration=7,
        timeout=20,
        parent_anchor="anchor",
    )
    outer = await worker.next_invoke()
    assert outer.context.tools.remaining_depth == 8
    await make(worker, outer, call_of("read", {"n": 2}))
    inner = await worker.next_invoke()
    context = inner.context
    assert (inner.invoke.tool, inner.invoke.arguments) == ("read", b'{"n": 2}')
    assert context.tool_call_id == "mine#inner-1"
    assert context.execution_id != outer.context.execution_id
    assert context.tools.remaining_depth == 7
    for name in ("identity", "run_id", "session_id", "iteration", "parent_anchor", "caller_principal"):
        assert getattr(context, name) == getattr(outer.context, name), name
    assert 0 < context.remaining.seconds + context.remaining.nanos / 1e9 <= 20
    await worker.result(inner.call, {"inner": True})
    answer = await reply(worker, outer)
    assert (answer.request_id, answer.tool_outcome.result.json) == (1, b'{"inner": true}')
    await worker.result(outer.call, {"outer": True})
    assert (await caller.outcome(call)).result.json == b'{"outer": true}'
    # Nothing of the inner call reached the caller.
    assert [frame.WhichOneof("body") for frame in caller.frames[call]] == ["started", "outcome"]


@everywhere
async def test_what_is_not_named_is_not_named_inside_either(host: Host) -> None:
    worker, caller = await both(host)
    await caller.start()
    outer = await worker.next_invoke()
    await make(worker, outer, call_of("read"))
    inner = await worker.next_invoke()
    assert inner.invoke.arguments == b"{}"
    assert not [name for name in ("identity", "run_id", "session_id", "parent_anchor") if inner.context.HasField(name)]
    assert inner.context.tool_call_id == f"{outer.context.tool_call_id}#inner-1"


@everywhere
async def test_reports_of_the_inner_call_reach_the_outer_tool_alone(host: Host) -> None:
    worker, caller = await both(host)
    call = await caller.start()
    outer = await worker.next_invoke()
    await make(worker, outer, call_of("read", number=5))
    inner = await worker.next_invoke()
    await worker.progress(inner.call, {"message": "half"})
    frame = await worker.next_of("progress", outer.call)
    assert (frame.progress.payload, frame.progress.request_id) == (b'{"message": "half"}', 5)
    await worker.result(inner.call, {})
    await reply(worker, outer)
    await worker.result(outer.call, {})
    await caller.outcome(call)
    assert not [frame for frame in caller.frames[call] if frame.HasField("progress")]


@everywhere
async def test_refusals_are_outcomes_and_take_no_number(host: Host) -> None:
    worker, caller = await both(host)
    await caller.start(tool_call_id="x")
    outer = await worker.next_invoke()
    await make(worker, outer, call_of("nobody", number=1), call_of("", number=2))
    for _ in range(2):
        failure = (await reply(worker, outer)).tool_outcome.failure
        assert (failure.kind, failure.side_effects) == (UNKNOWN_TOOL, SideEffects.SIDE_EFFECTS_NONE)
    bad = call_of("read", number=3)
    bad.tools_call.arguments = b"{"
    await make(worker, outer, bad)
    assert (await reply(worker, outer)).tool_outcome.failure.kind == INVALID_ARGUMENTS
    await make(worker, outer, call_of("read", number=4))
    assert (await worker.next_invoke()).context.tool_call_id == "x#inner-1"


@everywhere
async def test_a_call_that_would_go_in_circles_is_refused(host: Host) -> None:
    worker, caller = await both(host)
    await caller.start("echo", {"n": 1})
    outer = await worker.next_invoke()
    await make(worker, outer, call_of("read", {"n": 1}))
    inner = await worker.next_invoke()
    await make(worker, inner, call_of("echo", {"n": 1}))
    failure = (await reply(worker, inner)).tool_outcome.failure
    assert (failure.kind, "further out" in failure.message) == (INVALID_ARGUMENTS, True)
    # The same tool with other arguments is no circle.
    await make(worker, inner, call_of("echo", {"n": 2}, number=2))
    assert (await worker.next_invoke()).invoke.arguments == b'{"n": 2}'


async def test_calls_nest_so_deep_and_no_deeper(start_host: StartHost) -> None:
    host = await start_host(calls=CallLimits(nesting_depth=3))
    worker, caller = await both(host)
    call = await caller.start("echo", {"n": 0})
    chain = [await worker.next_invoke()]
    for level in range(1, 4):
        assert chain[-1].context.tools.remaining_depth == 4 - level
        await make(worker, chain[-1], call_of("echo", {"n": level}))
        chain.append(await worker.next_invoke())
    deepest = chain[-1]
    assert not deepest.context.HasField("tools")
    assert deepest.context.tool_call_id.endswith("#inner-1#inner-1#inner-1")
    await make(worker, deepest, call_of("echo", {"n": 9}))
    assert (await reply(worker, deepest)).error.code == ReplyErrorCode.REPLY_ERROR_CODE_UNSUPPORTED
    asked = OutboundRequest(request_id=2)
    asked.tools_has.tool = "echo"
    assert not (await worker.ask(deepest.call, asked)).tool_available.available
    for invocation in reversed(chain[1:]):
        await worker.result(invocation.call, {})
    for invocation in chain[:-1]:
        assert (await reply(worker, invocation)).tool_outcome.HasField("result")
    await worker.result(chain[0].call, {})
    assert (await caller.outcome(call)).HasField("result")


@everywhere
async def test_a_tool_may_ask_whether_another_can_be_run(host: Host) -> None:
    worker, caller = await both(host)
    await caller.start()
    outer = await worker.next_invoke()
    for number, (name, there) in enumerate((("read", True), ("echo", True), ("nobody", False), ("", False)), 1):
        asked = OutboundRequest(request_id=number)
        asked.tools_has.tool = name
        assert (await worker.ask(outer.call, asked)).tool_available.available is there, name


# --- 3: a nested call never outlives its parent's deadline


@pytest.mark.parametrize("depth", [1, 3])
async def test_guarantee_03_a_nested_call_never_outlives_its_parents_deadline(
    memory_host: MemoryHost, depth: int
) -> None:
    """Neither one that is asked to stop and does, nor one that ignores it, at any depth, whatever it asked for."""
    loop = asyncio.get_running_loop()
    worker, caller = await both(memory_host)
    began = loop.time()
    call = await caller.start("echo", {"n": 0}, timeout=3)
    chain = [await worker.next_invoke()]
    for level in range(1, depth + 1):
        await make(worker, chain[-1], call_of("echo", {"n": level}, timeout=1000))
        chain.append(await worker.next_invoke())
        remaining = chain[-1].context.remaining
        assert remaining.seconds + remaining.nanos / 1e9 <= 3 - (loop.time() - began)
        await asyncio.sleep(0.5)
    for invocation in chain:
        assert await worker.cancelled(invocation.call)
        assert loop.time() - began == pytest.approx(3, abs=SLOT)
    # Nobody listens: the caller has the outcome in time, and nothing runs on as a call.
    assert (await caller.outcome(call)).failure.kind == TIMEOUT
    assert loop.time() - began == pytest.approx(3 + memory_host.pipeline.limits.cancel_grace, abs=SLOT)
    await quiet()
    assert not memory_host.pipeline.running
    assert (await memory_host.counters())["leaked_slots"] == depth + 1


@pytest.mark.parametrize("end", ["returns", "is cancelled", "loses its caller", "loses its worker"])
async def test_guarantee_03_a_nested_call_ends_with_the_call_that_made_it(memory_host: MemoryHost, end: str) -> None:
    outer_worker = await attach(memory_host, tool("echo"))
    inner_worker = await attach(memory_host, tool("other"), worker="other")
    caller = await memory_host.caller()
    call = await caller.start()
    outer = await outer_worker.next_invoke()
    await make(outer_worker, outer, call_of("other"))
    inner = await inner_worker.next_invoke()
    if end == "returns":
        await outer_worker.result(outer.call, {})
        await caller.outcome(call)
    elif end == "is cancelled":
        await caller.cancel(call)
    elif end == "loses its caller":
        await caller.aclose()
    else:
        await outer_worker.aclose()
        await caller.outcome(call)
    assert await inner_worker.cancelled(inner.call) == PARENT
    if end in ("is cancelled", "loses its caller"):
        # It may still end by itself, and is heard.
        await inner_worker.fail(inner.call, CANCELLED)
        answer = await reply(outer_worker, outer)
        assert answer.tool_outcome.failure.kind == CANCELLED
        await outer_worker.fail(outer.call, CANCELLED)
    await quiet()
    assert not memory_host.pipeline.running


async def test_a_nested_call_may_have_less_time_of_its_own(memory_host: MemoryHost) -> None:
    loop = asyncio.get_running_loop()
    worker, caller = await both(memory_host)
    await caller.start(timeout=60)
    outer = await worker.next_invoke()
    await make(worker, outer, call_of("read", timeout=1))
    inner = await worker.next_invoke()
    began = loop.time()
    assert await worker.cancelled(inner.call) == CancelReason.CANCEL_REASON_DEADLINE
    await worker.fail(inner.call, CANCELLED)
    assert (await reply(worker, outer)).tool_outcome.failure.kind == TIMEOUT
    assert loop.time() - began == pytest.approx(1, abs=SLOT)


async def test_a_tool_is_not_idle_while_a_call_that_it_made_reports(memory_host: MemoryHost) -> None:
    worker, caller = await both(memory_host)
    call = await caller.start(idle_timeout=2, timeout=60)
    outer = await worker.next_invoke()
    await make(worker, outer, call_of("read"))
    inner = await worker.next_invoke()
    for _ in range(5):
        await asyncio.sleep(1.5)
        await worker.progress(inner.call, {})
    assert caller.outcomes(call) == []
    assert await worker.cancelled(outer.call) == CancelReason.CANCEL_REASON_IDLE
    assert await worker.cancelled(inner.call) == PARENT


async def test_calls_are_made_while_a_tool_that_was_asked_to_stop_cleans_up(memory_host: MemoryHost) -> None:
    worker, caller = await both(memory_host)
    call = await caller.start()
    outer = await worker.next_invoke()
    await caller.cancel(call)
    await worker.cancelled(outer.call)
    await make(worker, outer, call_of("read"))
    inner = await worker.next_invoke()
    assert inner.context.remaining.seconds <= 2
    await worker.result(inner.call, {})
    assert (await reply(worker, outer)).tool_outcome.HasField("result")


async def test_calls_are_made_while_the_sidecar_drains(memory_host: MemoryHost) -> None:
    worker, caller = await both(memory_host)
    call = await caller.start()
    outer = await worker.next_invoke()
    memory_host.drain(30)
    await make(worker, outer, call_of("read"))
    await worker.result((await worker.next_invoke()).call, {})
    assert (await reply(worker, outer)).tool_outcome.HasField("result")
    await worker.result(outer.call, {})
    assert (await caller.outcome(call)).HasField("result")


# --- slots


async def test_inner_calls_have_slots_of_their_own(start_host: StartHost) -> None:
    host = await start_host(workers=WorkerLimits(nested_headroom=2))
    worker, caller = await both(host, concurrency=1)
    await caller.start("echo", {"n": 0})
    outer = await worker.next_invoke()
    # The instance is full, for callers.
    waiting = await caller.start("read", {"n": 1})
    await make(worker, outer, call_of("read", {"n": 2}), call_of("read", {"n": 3}, number=2))
    inner = [await worker.next_invoke(), await worker.next_invoke()]
    assert [one.invoke.arguments for one in inner] == [b'{"n": 2}', b'{"n": 3}']
    # The third waits for one of them, not for the outer call.
    await make(worker, outer, call_of("read", {"n": 4}, number=3))
    await worker.flush()
    assert len(worker.invoked) == 3
    await worker.result(inner[0].call, {})
    third = await worker.next_invoke()
    assert third.invoke.arguments == b'{"n": 4}'
    await worker.result(outer.call, {})
    assert (await worker.next_invoke()).invoke.arguments == b'{"n": 1}'
    assert caller.outcomes(waiting) == []


async def test_a_call_that_waits_for_its_own_ancestors_is_refused_at_once(start_host: StartHost) -> None:
    host = await start_host(workers=WorkerLimits(nested_headroom=1))
    worker, caller = await both(host, concurrency=1)
    await caller.start("echo", {"n": 0})
    outer = await worker.next_invoke()
    await make(worker, outer, call_of("echo", {"n": 1}))
    inner = await worker.next_invoke()
    began = asyncio.get_running_loop().time()
    await make(worker, inner, call_of("echo", {"n": 2}))
    failure = (await reply(worker, inner)).tool_outcome.failure
    assert failure.kind == OVERLOADED
    assert "wait for it" in failure.message
    assert asyncio.get_running_loop().time() - began < SLOT
    # Another call that holds the slot is waited for.
    await worker.result(inner.call, {})
    await reply(worker, outer)
    await make(worker, outer, call_of("echo", {"n": 3}, number=2), call_of("echo", {"n": 4}, number=3))
    first = await worker.next_invoke()
    await worker.flush()
    await worker.result(first.call, {})
    assert (await worker.next_invoke()).invoke.arguments == b'{"n": 4}'


async def test_a_tool_that_runs_once_at_a_time_does_not_wait_for_itself(memory_host: MemoryHost) -> None:
    worker = await attach(memory_host, tool("echo", concurrency=1))
    caller = await memory_host.caller()
    await caller.start("echo", {"n": 0})
    outer = await worker.next_invoke()
    await make(worker, outer, call_of("echo", {"n": 1}))
    assert (await reply(worker, outer)).tool_outcome.failure.kind == OVERLOADED


async def test_an_inner_call_takes_none_of_the_callers_places(start_host: StartHost) -> None:
    host = await start_host(calls=CallLimits(in_flight_per_stream=1, in_flight_per_subject=1))
    worker, caller = await both(host)
    call = await caller.start()
    outer = await worker.next_invoke()
    await make(worker, outer, call_of("read"))
    await worker.result((await worker.next_invoke()).call, {})
    assert (await reply(worker, outer)).tool_outcome.HasField("result")
    await worker.result(outer.call, {})
    assert (await caller.outcome(call)).HasField("result")
    assert (await caller.call("nobody")).failure.kind == UNKNOWN_TOOL


# --- what is lost


async def test_an_inner_call_is_run_again_and_the_outer_one_is_not(memory_host: MemoryHost) -> None:
    outer_worker = await attach(memory_host, tool("read", effects=READ))
    first = await attach(memory_host, tool("other", effects=READ), worker="other")
    caller = await memory_host.caller()
    call = await caller.start("read")
    outer = await outer_worker.next_invoke()
    await make(outer_worker, outer, call_of("other"))
    await first.next_invoke()
    second = await attach(memory_host, tool("other", effects=READ), worker="other")
    await first.aclose()
    inner = await second.next_invoke()
    assert inner.context.attempt == 2
    await second.result(inner.call, {})
    assert (await reply(outer_worker, outer)).tool_outcome.HasField("result")
    # It has made a call: it did more than look.
    again = await attach(memory_host, tool("read", effects=READ))
    await outer_worker.aclose()
    assert (await caller.outcome(call)).failure.kind == WORKER_LOST
    assert again.invoked == []


async def test_an_answer_over_the_workers_largest_frame_is_a_failure_that_keeps_the_effects(
    memory_host: MemoryHost,
) -> None:
    outer_worker = await attach(memory_host, tool("echo"), max_frame_bytes=65_536)
    inner_worker = await attach(memory_host, tool("other"), worker="other")
    caller = await memory_host.caller()
    await caller.start()
    outer = await outer_worker.next_invoke()
    await make(outer_worker, outer, call_of("other"))
    await inner_worker.result((await inner_worker.next_invoke()).call, "x" * 100_000)
    failure = (await reply(outer_worker, outer)).tool_outcome.failure
    assert (failure.kind, failure.side_effects) == (
        FailureKind.FAILURE_KIND_RESULT_TOO_LARGE,
        SideEffects.SIDE_EFFECTS_POSSIBLE,
    )
