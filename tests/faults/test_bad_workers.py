"""Workers that break the protocol: their calls fail in a typed way, others notice nothing, the worst are given up."""

from collections.abc import AsyncIterator

import grpc
import pytest

from sidecar._gen.pillion.v1.call_pb2 import StreamErrorReason
from sidecar._gen.pillion.v1.context_pb2 import CancelReason
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outbound_pb2 import OutboundRequest, ReplyErrorCode
from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind, SideEffects
from sidecar.wire.batch import header
from tests.faults.conftest import Inside
from tests.faults.running import Running, running
from tests.support import (
    READ,
    UNSAFE,
    CallerPeer,
    CallLimits,
    Host,
    StartHost,
    WorkerPeer,
    attach,
    on_sockets,
    on_unix,
    progress,
    result,
    tool,
)
from tests.support.links import CHANNEL_OPTIONS

MIB = 1024 * 1024
REPORTS = 100_000
A_MESSAGE = 1_000

OUTCOME_UNKNOWN = FailureKind.FAILURE_KIND_OUTCOME_UNKNOWN
PROTOCOL = FailureKind.FAILURE_KIND_PROTOCOL
RESULT_TOO_LARGE = FailureKind.FAILURE_KIND_RESULT_TOO_LARGE
UNSUPPORTED = FailureKind.FAILURE_KIND_UNSUPPORTED
WORKER_LOST = FailureKind.FAILURE_KIND_WORKER_LOST
NONE, POSSIBLE = SideEffects.SIDE_EFFECTS_NONE, SideEffects.SIDE_EFFECTS_POSSIBLE
COMMITTED = SideEffects.SIDE_EFFECTS_COMMITTED

TOO_LARGE = StreamErrorReason.STREAM_ERROR_REASON_MESSAGE_TOO_LARGE
MALFORMED = StreamErrorReason.STREAM_ERROR_REASON_MALFORMED_MESSAGE
WRONG = StreamErrorReason.STREAM_ERROR_REASON_PROTOCOL

A_WORKERS = {
    *("worker_hello", "progress", "outcome", "log", "register_teardown", "outbound_request", "teardown_done"),
    *("tools_changed", "goodbye", "ping", "pong"),
}
"""The bodies that a worker may send."""
NOT_A_WORKERS = [field.name for field in Frame.DESCRIPTOR.oneofs_by_name["body"].fields if field.name not in A_WORKERS]


@pytest.fixture
async def host(start_host: StartHost) -> Host:
    return await start_host(calls=CallLimits(worker_wait=0.1))


@pytest.fixture
async def worker(host: Host) -> WorkerPeer:
    return await attach(host, tool("echo", effects=UNSAFE), tool("read", effects=READ))


@pytest.fixture
async def caller(host: Host, worker: WorkerPeer) -> CallerPeer:
    return await host.caller()


@pytest.fixture
async def bystander(host: Host, worker: WorkerPeer, caller: CallerPeer) -> AsyncIterator[Running]:
    """A call of another caller, in another worker, which at the end has to end well."""
    other = await running(await host.caller(), await attach(host, tool("other"), worker="other"), "other")
    yield other
    await other.ends_well()


async def told(worker: WorkerPeer, reason: "StreamErrorReason.ValueType") -> None:
    error = (await worker.next_of("stream_error")).stream_error
    assert error.reason == reason
    assert error.message.endswith(".")


async def is_quarantined(worker: WorkerPeer) -> None:
    end = await worker.end()
    assert end.code is grpc.StatusCode.ABORTED
    assert end.message == "The worker sent messages that are too large or no batches of frames."


# --- frames of calls


@on_sockets
async def test_a_second_answer_goes_nowhere(
    host: Host, worker: WorkerPeer, caller: CallerPeer, bystander: Running, inside: Inside
) -> None:
    call = await running(caller, worker)
    await worker.send(result(call.run, 1), result(call.run, 2), progress(call.run))
    await worker.result(call.run, 3)
    await worker.flush()
    await caller.flush()
    assert [outcome.result.json for outcome in caller.outcomes(call.call)] == [b"1"]
    assert caller.bodies(call.call) == ["started", "outcome"]
    assert (inside.counts["late_outcomes"], inside.counts["late_progress"]) == (2, 1)
    await (await running(caller, worker)).ends_well()


@on_sockets
async def test_an_answer_for_anothers_call_goes_nowhere(
    host: Host, worker: WorkerPeer, caller: CallerPeer, bystander: Running, inside: Inside
) -> None:
    call = await running(caller, worker)
    intruder = await attach(host, tool("read", effects=READ), tool("echo", effects=UNSAFE))
    request = Frame(call=call.run, outbound_request=OutboundRequest(request_id=1))
    cancel = Frame(call=call.run)
    cancel.cancel.SetInParent()
    forged = progress(call.run, {"message": "forged"})
    forged.sequence, forged.time_unix_nano, forged.coalesced = 9_999, 1, 7
    for frame in (forged, request, result(call.run, "forged"), result(bystander.run, "forged"), result(2**64 - 1, 1)):
        await intruder.send(frame)
    await intruder.send(cancel)
    await told(intruder, WRONG)
    await intruder.flush()
    assert intruder.bodies(call.run) == []
    assert inside.counts["late_outcomes"] == 3
    await call.ends_well()


@on_sockets
async def test_a_flood_of_progress_keeps_nobody_else_waiting(
    without_debug: None, host: Host, worker: WorkerPeer, caller: CallerPeer, bystander: Running
) -> None:
    loud, other = await running(caller, worker), await host.caller()
    reports = [progress(loud.run, {"message": "x"})] * A_MESSAGE
    for number in range(REPORTS // A_MESSAGE):
        await worker.send(*reports)
        if not number % 20:
            # On the same worker, and on another's.
            await (await running(other, worker, "read")).ends_well()
            await bystander.reports()
    await worker.result(loud.run, "done")
    assert (await caller.outcome(loud.call)).result.json == b'"done"'
    frames = caller.frames[loud.call]
    assert sum(frame.HasField("progress") for frame in frames) + sum(frame.coalesced for frame in frames) == REPORTS
    assert len(caller.outcomes(loud.call)) == 1


@on_sockets
async def test_frames_that_are_not_a_workers_fail_their_call_alone(
    host: Host, worker: WorkerPeer, caller: CallerPeer, bystander: Running
) -> None:
    assert len(NOT_A_WORKERS) > 20
    for body in NOT_A_WORKERS:
        other, call = await running(caller, worker), await running(caller, worker)
        frame = Frame(call=call.run)
        getattr(frame, body).SetInParent()
        await worker.send(frame)
        assert await worker.cancelled(call.run) == CancelReason.CANCEL_REASON_CALLER, body
        await worker.fail(call.run)
        failure = (await caller.outcome(call.call)).failure
        assert failure.kind == (UNSUPPORTED if body == "output" else PROTOCOL), body
        assert failure.side_effects == POSSIBLE
        # Now that its call is over, it is of none.
        await worker.send(frame)
        await told(worker, WRONG)
        await other.ends_well()


# --- sizes


@on_sockets
async def test_frames_of_2_mib_are_refused_alone(
    host: Host, worker: WorkerPeer, caller: CallerPeer, bystander: Running, inside: Inside
) -> None:
    large = "x" * (2 * MIB)
    call, other = await running(caller, worker), await running(caller, worker)

    await worker.progress(call.run, {"message": large})
    request = Frame(call=call.run, outbound_request=OutboundRequest(request_id=7))
    request.outbound_request.kv_put.value = large.encode()
    await worker.send(request)
    reply = (await worker.next_of("reply", call.run)).reply
    assert (reply.request_id, reply.error.code) == (7, ReplyErrorCode.REPLY_ERROR_CODE_INVALID)
    assert inside.counts["oversized_progress"] == 1
    await call.ends_well()

    for name, side_effects in (("echo", COMMITTED), ("read", NONE)):
        call = await running(caller, worker, name)
        await worker.send(result(call.run, large), progress(other.run))
        failure = (await caller.outcome(call.call)).failure
        assert (failure.kind, failure.side_effects) == (RESULT_TOO_LARGE, side_effects)
        await caller.next_of("progress", other.call)
    await other.ends_well()


@on_sockets
async def test_a_message_of_20_mib_fails_its_calls_and_the_second_ends_the_worker(
    host: Host, worker: WorkerPeer, caller: CallerPeer, bystander: Running, inside: Inside
) -> None:
    named, other = [await running(caller, worker) for _ in range(3)], await running(caller, worker)
    large = "x" * (7 * MIB)
    await worker.send(*[result(call.run, large) for call in named])
    await told(worker, TOO_LARGE)
    for call in named:
        failure = (await caller.outcome(call.call)).failure
        assert (failure.kind, failure.side_effects) == (RESULT_TOO_LARGE, COMMITTED)
    await other.ends_well()

    last, retried = await running(caller, worker), await running(caller, worker, "read")
    await worker.send_bytes(b"\x0a\xff\xff\xff\x7f" + bytes(20 * MIB))
    await is_quarantined(worker)
    failure = (await caller.outcome(last.call)).failure
    assert (failure.kind, failure.side_effects) == (OUTCOME_UNKNOWN, POSSIBLE)
    failure = (await caller.outcome(retried.call)).failure
    assert (failure.kind, failure.side_effects, failure.retryable) == (WORKER_LOST, NONE, True)
    assert inside.counts["quarantined_instances"] == 1
    assert inside.counts["oversized_messages"] == 2


@on_sockets
async def test_garbage_is_told_once_and_then_ends_the_worker(
    host: Host, worker: WorkerPeer, caller: CallerPeer, bystander: Running
) -> None:
    call = await running(caller, worker)
    await worker.send_bytes(b"\xff" * 100)
    await told(worker, MALFORMED)
    await call.ends_well()
    call = await running(caller, worker, "read")
    spare = await attach(host, tool("echo", effects=UNSAFE), tool("read", effects=READ))
    await worker.send_bytes(b"GET / HTTP/1.1\r\n\r\n")
    await is_quarantined(worker)
    await spare.result((await spare.next_invoke()).call, "again")
    assert (await caller.outcome(call.call)).result.json == b'"again"'


@on_unix
async def test_a_message_beyond_what_grpc_takes_loses_the_worker(
    host: Host, bystander: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "tests.support.links.CHANNEL_OPTIONS",
        [("grpc.max_send_message_length", -1) if "send" in name else (name, value) for name, value in CHANNEL_OPTIONS],
    )
    loud, caller = await attach(host, tool("slow", effects=UNSAFE)), await host.caller()
    call = await running(caller, loud, "slow")
    await loud.send_bytes(header(65 * MIB) + bytes(65 * MIB))
    assert (await caller.outcome(call.call)).failure.kind == OUTCOME_UNKNOWN
    assert (await loud.end()).code is grpc.StatusCode.RESOURCE_EXHAUSTED
