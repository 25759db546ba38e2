"""Laws 1 to 4: one outcome, frames in order, the sidecar's own stamps, and no request without an answer."""

import asyncio
import time
from typing import Any

import pytest

from sidecar._gen.pillion.v1.context_pb2 import CancelReason, TeardownScope
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outbound_pb2 import OutboundRequest, ReplyErrorCode
from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind, SideEffects
from sidecar._gen.pillion.v1.worker_pb2 import RegisterTeardown
from tests.support import (
    Host,
    InMemoryIdempotencyStore,
    MemoryHost,
    Setup,
    StartHost,
    WireLimits,
    attach,
    everywhere,
    progress,
    quiet,
    result,
    tool,
)

CANCELLED = FailureKind.FAILURE_KIND_CANCELLED
IDLE_TIMEOUT = FailureKind.FAILURE_KIND_IDLE_TIMEOUT
INVALID_ARGUMENTS = FailureKind.FAILURE_KIND_INVALID_ARGUMENTS
OUTCOME_UNKNOWN = FailureKind.FAILURE_KIND_OUTCOME_UNKNOWN
TIMEOUT = FailureKind.FAILURE_KIND_TIMEOUT
UNAVAILABLE = FailureKind.FAILURE_KIND_UNAVAILABLE
UNKNOWN_TOOL = FailureKind.FAILURE_KIND_UNKNOWN_TOOL
TICKET_INVALID = FailureKind.FAILURE_KIND_TICKET_INVALID
UNSUPPORTED = FailureKind.FAILURE_KIND_UNSUPPORTED
NONE = SideEffects.SIDE_EFFECTS_NONE

# A due time is met within a slot of 10 ms.
SLOT = 0.02

ANSWERED = ("caller_request", "credential_get", "tools_call", "tools_has")
REQUESTS = [field.name for field in OutboundRequest.DESCRIPTOR.oneofs_by_name["request"].fields]


def now() -> float:
    """The loop's clock."""
    return asyncio.get_running_loop().time()


# --- 1: exactly one outcome, decided in bounded time; the first cause wins


@everywhere
async def test_law_1_a_call_has_one_outcome_though_its_tool_answers_twice(host: Host) -> None:
    worker, caller = await attach(host), await host.caller()
    call = await caller.start()
    run = (await worker.next_invoke()).call
    await worker.send(result(run, b"1"), result(run, b"2"))
    assert (await caller.outcome(call)).result.json == b"1"
    await worker.flush()
    await caller.flush()
    assert len(caller.outcomes(call)) == 1
    if host.transport != "tcp":
        assert (await host.counters())["late_outcomes"] == 1


@everywhere
async def test_law_1_every_refusal_is_an_outcome(host: Host) -> None:
    worker, caller = await attach(host, tool("echo", input_schema={"required": ["text"]})), await host.caller()
    assert worker.invoked == []
    assert (await caller.call("nobody")).failure.kind == UNKNOWN_TOOL
    assert (await caller.call("")).failure.kind == UNKNOWN_TOOL
    assert (await caller.call("echo", b"{")).failure.kind == INVALID_ARGUMENTS
    assert (await caller.call("echo", {})).failure.kind == INVALID_ARGUMENTS
    assert (await caller.call("echo", {"text": 1}, timeout=0)).failure.kind == TIMEOUT
    assert (await caller.call("echo", {"text": 1}, on_behalf_of="ana")).failure.kind == UNSUPPORTED
    follow = Frame(call=caller.last_call + 1)
    follow.follow.ticket = "none"
    await caller.send(follow)
    assert (await caller.outcome(follow.call)).failure.kind == TICKET_INVALID
    assert all(caller.bodies(call) == ["started", "outcome"] for call in caller.frames if call)


async def test_law_1_a_tool_that_never_answers_is_decided_after_timeout_and_cancel_grace(host: Host) -> None:
    await attach(host)
    caller = await host.caller()
    begun = now()
    outcome = await caller.call(timeout=7)
    assert outcome.failure.kind == TIMEOUT
    assert 9 <= now() - begun <= 9 + SLOT


async def test_law_1_a_call_that_cannot_be_recorded_is_decided_after_teardown_grace_too() -> None:
    class Hanging(InMemoryIdempotencyStore):
        async def finish(self, *_: object) -> None:
            await asyncio.Event().wait()

    host = MemoryHost(Setup(), Hanging())
    await attach(host)
    caller = await host.caller()
    begun = now()
    outcome = await caller.call(timeout=7, idempotency_key="k")
    assert outcome.failure.kind == TIMEOUT
    assert 14 <= now() - begun <= 14 + SLOT
    assert host.counts["unrecorded_outcomes"] == 1
    await host.aclose()


@pytest.mark.parametrize(("attached", "kind"), [(True, FailureKind.FAILURE_KIND_OVERLOADED), (False, UNAVAILABLE)])
async def test_law_1_a_call_without_a_free_instance_is_decided_after_worker_wait(
    host: Host, attached: bool, kind: "FailureKind.ValueType"
) -> None:
    caller = await host.caller()
    if attached:
        worker = await attach(host, concurrency=1)
        await caller.start()
        await worker.next_invoke()
    begun = now()
    outcome = await caller.call()
    assert (outcome.failure.kind, outcome.failure.side_effects) == (kind, NONE)
    assert outcome.failure.retryable
    assert 5 <= now() - begun <= 5 + SLOT


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [
        ("result", "cancel", None),
        ("cancel", "result", CANCELLED),
        ("cancel", "timeout", CANCELLED),
        ("cancel", "loss", CANCELLED),
        ("timeout", "cancel", TIMEOUT),
        ("timeout", "result", TIMEOUT),
        ("timeout", "loss", TIMEOUT),
        ("loss", "cancel", OUTCOME_UNKNOWN),
        ("idle", "timeout", IDLE_TIMEOUT),
        ("idle", "result", IDLE_TIMEOUT),
    ],
)
async def test_law_1_the_first_cause_wins(
    host: Host, first: str, second: str, kind: "FailureKind.ValueType | None"
) -> None:
    worker, caller = await attach(host), await host.caller()
    wishes: dict[str, Any] = {"timeout": 2}
    if "idle" in (first, second):
        wishes["idle_timeout"] = 1
    call = await caller.start(**wishes)
    run = (await worker.next_invoke()).call
    await asyncio.sleep(0.9)
    await worker.progress(run)
    # All of it is within the grace of whatever comes first.
    for cause in (first, second):
        match cause:
            case "result":
                await worker.result(run, b"1")
                await worker.flush()
            case "cancel":
                await caller.cancel(call)
                await caller.flush()
            case "loss":
                worker.cut()
                await quiet()
            case "idle":
                await asyncio.sleep(1.02)
            case "timeout":
                await asyncio.sleep(2.02 - now())
    outcome = await caller.outcome(call)
    await asyncio.sleep(30)
    assert len(caller.outcomes(call)) == 1
    if kind is None:
        assert outcome.result.json == b"1"
    else:
        assert outcome.failure.kind == kind


async def test_law_1_later_causes_are_counted(memory_host: MemoryHost) -> None:
    worker, caller = await attach(memory_host), await memory_host.caller()
    call = await caller.start()
    run = (await worker.next_invoke()).call
    await caller.cancel(call)
    await caller.cancel(call)
    await caller.flush()
    assert memory_host.counts["late_causes"] == 1
    await worker.result(run, b"1")
    assert (await caller.outcome(call)).failure.kind == CANCELLED
    await worker.result(run, b"2")
    await worker.flush()
    assert memory_host.counts["late_outcomes"] == 2


# --- 2: Started first, progress in order, the outcome last


@everywhere
async def test_law_2_started_is_first_progress_is_in_order_and_the_outcome_is_last(host: Host) -> None:
    worker, caller = await attach(host), await host.caller()
    calls = [await caller.start(arguments={"call": number}) for number in range(3)]
    runs = [(await worker.next_invoke()).call for _ in calls]
    for step in range(20):
        await worker.send(*(progress(run, [step, run]) for run in runs))
    await worker.send(*(result(run, [run]) for run in runs))
    for call, run in zip(calls, runs, strict=True):
        assert (await caller.outcome(call)).result.json == f"[{run}]".encode()
        assert caller.bodies(call) == ["started", *["progress"] * 20, "outcome"]
        reports = [frame.progress.payload for frame in caller.frames[call] if frame.HasField("progress")]
        assert reports == [f"[{step}, {run}]".encode() for step in range(20)]


@everywhere
async def test_law_2_what_gives_way_is_the_oldest_progress_and_it_is_counted(host: Host) -> None:
    worker, caller = await attach(host), await host.caller()
    call = await caller.start()
    run = (await worker.next_invoke()).call
    await worker.send(*(progress(run, step) for step in range(200)), result(run, b"null"))
    await caller.outcome(call)
    frames = caller.frames[call]
    assert (frames[0].WhichOneof("body"), frames[-1].WhichOneof("body")) == ("started", "outcome")
    reports = [int(frame.progress.payload) for frame in frames[1:-1]]
    assert reports == sorted(reports)
    assert reports[-1] == 199
    assert len(reports) + sum(frame.coalesced for frame in frames) == 200


@everywhere
async def test_law_2_late_frames_are_dropped_and_counted(host: Host) -> None:
    worker, caller = await attach(host), await host.caller()
    call = await caller.start()
    run = (await worker.next_invoke()).call
    await worker.send(result(run, b"1"), progress(run, 1), progress(run, 2))
    await caller.outcome(call)
    await worker.flush()
    await caller.flush()
    assert caller.bodies(call) == ["started", "outcome"]
    if host.transport != "tcp":
        assert (await host.counters())["late_progress"] == 2


@everywhere
async def test_law_2_a_cancelled_tool_still_reports_until_it_ends(host: Host) -> None:
    worker, caller = await attach(host), await host.caller()
    call = await caller.start()
    run = (await worker.next_invoke()).call
    await caller.cancel(call)
    await worker.cancelled(run)
    await worker.send(progress(run, "stopping"), result(run))
    await caller.outcome(call)
    assert caller.bodies(call) == ["started", "progress", "outcome"]


# --- 3: the sidecar stamps ids, sequence and time


@everywhere
async def test_law_3_sequence_and_time_are_the_sidecars(host: Host) -> None:
    worker, caller = await attach(host), await host.caller()
    before = time.time_ns()
    call = await caller.start()
    run = (await worker.next_invoke()).call
    forged = [progress(run, 1), progress(run, 2), result(run, b"3")]
    for frame in forged:
        frame.sequence, frame.time_unix_nano = 77, 1
    await worker.send(*forged)
    await caller.outcome(call)
    frames = caller.frames[call]
    assert [frame.sequence for frame in frames] == [1, 2, 3, 4]
    stamps = [frame.time_unix_nano for frame in frames]
    assert before <= stamps[0]
    assert stamps == sorted(stamps)
    assert stamps[-1] <= time.time_ns()
    assert all(frame.call == call for frame in frames)


@everywhere
async def test_law_3_execution_ids_are_minted_and_tool_call_ids_only_where_none_came(host: Host) -> None:
    worker, caller = await attach(host), await host.caller()
    named = await caller.start(tool_call_id="mine")
    unnamed = await caller.start()
    same = await caller.start(tool_call_id="mine")
    invocations = [await worker.next_invoke() for _ in range(3)]
    await worker.send(*(result(invocation.call) for invocation in invocations))
    started = [await caller.started(call) for call in (named, unnamed, same)]
    assert [each.tool_call_id for each in started][::2] == ["mine", "mine"]
    assert started[1].tool_call_id
    assert len({each.execution_id for each in started}) == 3
    for invocation, each in zip(invocations, started, strict=True):
        assert invocation.context.execution_id == each.execution_id
        assert invocation.context.tool_call_id == each.tool_call_id


@everywhere
async def test_law_3_a_worker_cannot_speak_for_a_call_of_another_worker(host: Host) -> None:
    mine, other, caller = await attach(host), await attach(host, tool("other"), worker="other"), await host.caller()
    call = await caller.start("echo")
    run = (await mine.next_invoke()).call
    await other.send(progress(run, "not mine"), result(run, b'"forged"'))
    await other.flush()
    await mine.result(run, b'"true"')
    assert (await caller.outcome(call)).result.json == b'"true"'
    assert caller.bodies(call) == ["started", "outcome"]


@everywhere
async def test_law_3_a_caller_cannot_cancel_a_call_of_another_caller(host: Host) -> None:
    worker, mine, other = await attach(host), await host.caller(), await host.caller()
    call = await mine.start()
    run = (await worker.next_invoke()).call
    await other.cancel(call)
    await other.flush()
    await worker.result(run, b"1")
    assert (await mine.outcome(call)).HasField("result")
    assert worker.bodies(run) == ["invoke"]


# --- 4: a request is answered or refused, typed


@everywhere
async def test_law_4_every_kind_of_outbound_request_that_is_not_answered_is_refused_as_unsupported(
    start_host: StartHost,
) -> None:
    host = await start_host(keeps_artifacts=False)
    worker, caller = await attach(host), await host.caller()
    call = await caller.start()
    run = (await worker.next_invoke()).call
    for number, name in enumerate((name for name in REQUESTS if name not in ANSWERED), 1):
        request = OutboundRequest(request_id=number)
        getattr(request, name).SetInParent()
        reply = await worker.ask(run, request)
        assert reply.request_id == number, name
        assert reply.error.code == ReplyErrorCode.REPLY_ERROR_CODE_UNSUPPORTED, name
        assert reply.error.message
    await worker.result(run, b"1")
    assert (await caller.outcome(call)).HasField("result")


@everywhere
async def test_law_4_an_unknown_kind_of_request_is_refused_as_unsupported(host: Host) -> None:
    worker, caller = await attach(host), await host.caller()
    await caller.start()
    run = (await worker.next_invoke()).call
    # Field 100, length-delimited, of a later protocol; and no kind at all.
    for number, unknown in enumerate((b"\xa2\x06\x03abc", b""), 1):
        request = OutboundRequest.FromString(OutboundRequest(request_id=number).SerializeToString() + unknown)
        reply = await worker.ask(run, request)
        assert reply.request_id == number
        assert reply.error.code == ReplyErrorCode.REPLY_ERROR_CODE_UNSUPPORTED


@everywhere
@pytest.mark.parametrize("facts", [{}, {"run_id": "r"}, {"session_id": "s"}, {"run_id": "r", "session_id": "s"}])
async def test_law_4_a_teardown_registration_is_answered_or_refused_by_its_own_code(
    host: Host, facts: dict[str, str]
) -> None:
    worker, caller = await attach(host), await host.caller()
    await caller.start(**facts)
    invocation = await worker.next_invoke()
    honoured = set(invocation.context.teardown_scopes.scopes)
    assert len(honoured) == 2 + len(facts)
    for number, scope in enumerate(TeardownScope.values(), 1):
        reply = await worker.register(
            invocation.call, RegisterTeardown(request_id=number, scope=scope, label="a label")
        )
        assert reply.request_id == number
        if scope in honoured:
            assert reply.teardown.registration_id
        elif scope:
            assert reply.error.code == ReplyErrorCode.REPLY_ERROR_CODE_TEARDOWN_FACT_MISSING
        else:
            assert reply.error.code == ReplyErrorCode.REPLY_ERROR_CODE_TEARDOWN_SCOPE_UNSUPPORTED


@everywhere
async def test_law_4_a_request_over_the_largest_frame_is_refused_and_ends_no_call(
    start_host: StartHost, transport: str
) -> None:
    host = await start_host(wire=WireLimits(max_frame_bytes=8_192))
    worker, caller = await attach(host), await host.caller()
    call = await caller.start()
    run = (await worker.next_invoke()).call
    request = OutboundRequest(request_id=9)
    request.publish.payload = bytes(10_000)
    reply = await worker.ask(run, request)
    assert (reply.request_id, reply.error.code) == (9, ReplyErrorCode.REPLY_ERROR_CODE_INVALID)
    await worker.result(run, b"1")
    assert (await caller.outcome(call)).HasField("result")


@everywhere
async def test_law_4_a_cancelled_tool_is_answered_too(host: Host) -> None:
    worker, caller = await attach(host), await host.caller()
    call = await caller.start()
    run = (await worker.next_invoke()).call
    await caller.cancel(call)
    assert await worker.cancelled(run) == CancelReason.CANCEL_REASON_CALLER
    request = OutboundRequest(request_id=1)
    request.kv_put.SetInParent()
    assert (await worker.ask(run, request)).error.code == ReplyErrorCode.REPLY_ERROR_CODE_UNSUPPORTED


async def test_law_4_a_request_after_the_outcome_is_dropped_and_counted(memory_host: MemoryHost) -> None:
    worker, caller = await attach(memory_host), await memory_host.caller()
    call = await caller.start()
    run = (await worker.next_invoke()).call
    await worker.result(run)
    await caller.outcome(call)
    late = OutboundRequest(request_id=1)
    late.kv_get.SetInParent()
    await worker.send(Frame(call=run, outbound_request=late))
    await worker.send(Frame(call=run, register_teardown=RegisterTeardown(request_id=2)))
    await worker.flush()
    assert memory_host.counts["late_requests"] == 2
    assert worker.bodies(run) == ["invoke"]
