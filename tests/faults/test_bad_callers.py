"""Callers that break the protocol: each is told in a typed way, its other calls go on, and so do other callers."""

from collections.abc import AsyncIterator

import grpc
import pytest

from sidecar._gen.pillion.v1.call_pb2 import StreamErrorReason
from sidecar._gen.pillion.v1.context_pb2 import CancelReason
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind, SideEffects
from sidecar.wire.batch import header, join
from tests.faults.conftest import Inside
from tests.faults.running import Running, running
from tests.support import (
    UNSAFE,
    CallerPeer,
    CallLimits,
    Host,
    SocketHost,
    StartHost,
    WorkerPeer,
    attach,
    on_sockets,
    on_unix,
    tool,
)
from tests.support.links import CHANNEL_OPTIONS

MIB = 1024 * 1024

INVALID_ARGUMENTS = FailureKind.FAILURE_KIND_INVALID_ARGUMENTS
OVERLOADED = FailureKind.FAILURE_KIND_OVERLOADED
PROTOCOL = FailureKind.FAILURE_KIND_PROTOCOL
UNKNOWN_TOOL = FailureKind.FAILURE_KIND_UNKNOWN_TOOL
UNSUPPORTED = FailureKind.FAILURE_KIND_UNSUPPORTED
NONE, POSSIBLE = SideEffects.SIDE_EFFECTS_NONE, SideEffects.SIDE_EFFECTS_POSSIBLE
CALLER = CancelReason.CANCEL_REASON_CALLER
DISCONNECT = CancelReason.CANCEL_REASON_DISCONNECT

NOT_INCREASING = StreamErrorReason.STREAM_ERROR_REASON_CALL_ID_NOT_INCREASING
ZERO = StreamErrorReason.STREAM_ERROR_REASON_CALL_ID_ZERO
TOO_LARGE = StreamErrorReason.STREAM_ERROR_REASON_MESSAGE_TOO_LARGE
MALFORMED = StreamErrorReason.STREAM_ERROR_REASON_MALFORMED_MESSAGE
WRONG = StreamErrorReason.STREAM_ERROR_REASON_PROTOCOL
VERSION = StreamErrorReason.STREAM_ERROR_REASON_VERSION

SENDING_ALL = (*CHANNEL_OPTIONS[:1], ("grpc.max_send_message_length", -1), *CHANNEL_OPTIONS[2:])

A_CALLERS = {"caller_hello", "start", "cancel", "reply", "follow", "input", "ping", "pong"}
"""The bodies that a caller may send."""
NOT_A_CALLERS = [field.name for field in Frame.DESCRIPTOR.oneofs_by_name["body"].fields if field.name not in A_CALLERS]


@pytest.fixture
async def worker(host: Host) -> WorkerPeer:
    return await attach(host, tool("echo", effects=UNSAFE))


@pytest.fixture
async def caller(host: Host, worker: WorkerPeer) -> CallerPeer:
    return await host.caller()


@pytest.fixture
async def bystander(host: Host, worker: WorkerPeer, caller: CallerPeer) -> AsyncIterator[Running]:
    """Another caller's call, which at the end has to end well."""
    other = await running(await host.caller(), worker)
    yield other
    await other.ends_well()


async def told(caller: CallerPeer, reason: "StreamErrorReason.ValueType", call: int | None) -> None:
    error = (await caller.next_of("stream_error")).stream_error
    assert error.reason == reason
    assert (error.call if error.HasField("call") else None) == call
    assert error.message.endswith(".")


# --- ids


@on_sockets
async def test_a_call_id_that_is_used_again_starts_nothing(
    host: Host, caller: CallerPeer, worker: WorkerPeer, bystander: Running
) -> None:
    first = await running(caller, worker)
    second = await running(caller, worker)
    invoked = len(worker.invoked)
    for id_, reason in ((first.call, NOT_INCREASING), (second.call, NOT_INCREASING), (0, ZERO)):
        for body in ("start", "follow"):
            frame = Frame(call=id_)
            getattr(frame, body).SetInParent()
            await caller.send(frame)
            await told(caller, reason, id_)
    await caller.flush()
    await worker.flush()
    assert len(worker.invoked) == invoked
    await second.ends_well()
    await first.ends_well()
    frame = Frame(call=first.call)
    frame.start.tool = "echo"
    await caller.send(frame)
    await told(caller, NOT_INCREASING, first.call)


@on_unix
async def test_ids_may_have_gaps_and_go_to_the_end(host: Host, caller: CallerPeer, worker: WorkerPeer) -> None:
    for id_ in (7, 2**32, 2**63, 2**64 - 1):
        caller.last_call = id_ - 1
        await (await running(caller, worker)).ends_well()


@on_sockets
async def test_a_cancel_of_no_running_call_does_nothing(
    host: Host, caller: CallerPeer, worker: WorkerPeer, bystander: Running
) -> None:
    done = await running(caller, worker)
    await done.ends_well()
    call = await running(caller, worker)
    for id_ in (0, done.call, call.call + 1, 2**64 - 1):
        await caller.cancel(id_)
    await caller.flush()
    assert caller.frames[0] == []
    assert len(caller.frames[done.call]) == 3
    await call.ends_well()
    # The id after it was not taken by a cancel.
    await (await running(caller, worker)).ends_well()


@on_unix
async def test_a_second_cancel_changes_nothing(caller: CallerPeer, worker: WorkerPeer, host: Host) -> None:
    call = await running(caller, worker)
    await caller.cancel(call.call, 99)  # type: ignore[arg-type]  # no reason that is known
    assert await worker.cancelled(call.run) == CALLER
    await caller.cancel(call.call, DISCONNECT)
    await caller.flush()
    await worker.fail(call.run)
    assert (await caller.outcome(call.call)).failure.kind == FailureKind.FAILURE_KIND_CANCELLED
    assert worker.bodies(call.run) == ["invoke", "cancel"]


# --- frames that are not a caller's


@on_sockets
async def test_frames_that_are_not_a_callers_fail_their_call_alone(
    host: Host, caller: CallerPeer, worker: WorkerPeer, bystander: Running
) -> None:
    assert len(NOT_A_CALLERS) > 20
    for body in [*NOT_A_CALLERS, "input"]:
        other, call = await running(caller, worker), await running(caller, worker)
        frame = Frame(call=call.call)
        getattr(frame, body).SetInParent()
        await caller.send(frame)
        assert await worker.cancelled(call.run) == CALLER, body
        await worker.fail(call.run)
        failure = (await caller.outcome(call.call)).failure
        assert failure.kind == (UNSUPPORTED if body == "input" else PROTOCOL), body
        assert failure.side_effects == POSSIBLE
        # Now that its call is over, it is of none.
        await caller.send(frame)
        await told(caller, WRONG, call.call)
        frame.call = 0
        await caller.send(frame)
        await told(caller, WRONG, 0)
        await other.ends_well()


@on_sockets
async def test_frames_of_a_later_protocol_are_passed_over(
    host: Host, caller: CallerPeer, worker: WorkerPeer, bystander: Running, inside: Inside
) -> None:
    call = await running(caller, worker)
    unknown = [Frame(call=call.call).SerializeToString() + bytes(raw) for raw in ([0xBA, 0x06, 1, 7], [0xB8, 0x06, 7])]
    await caller.send_bytes(join([*unknown, b"", Frame(call=call.call + 7).SerializeToString()]))
    # A field that is not known, in a frame and in a message that are.
    ping = Frame()
    ping.ping.nonce = 2**60
    await caller.send_bytes(join([ping.SerializeToString() + bytes([0xB8, 0x06, 7])]) + bytes([0xB8, 0x06, 7]))
    await caller.flush()
    assert inside.counts["unknown_frames"] == 4
    assert caller.frames[0] == []
    await call.ends_well()


# --- hellos


@on_sockets
async def test_a_hello_comes_first_or_not_at_all(
    host: Host, caller: CallerPeer, worker: WorkerPeer, bystander: Running
) -> None:
    call = await running(caller, worker)
    hello = Frame()
    hello.caller_hello.SetInParent()
    await caller.send(hello)
    await told(caller, WRONG, None)
    await call.ends_well()

    greeted = await host.caller()
    await greeted.send(hello)
    assert (await greeted.next_of("host_hello")).host_hello.version.major == 1
    await greeted.send(hello)
    await told(greeted, WRONG, None)
    await (await running(greeted, worker)).ends_well()
    assert [body for body in greeted.bodies(0) if body == "host_hello"] == ["host_hello"]


@on_sockets
@pytest.mark.parametrize(("minimum", "maximum"), [((2, 0), (3, 0)), ((1, 1), (1, 9)), ((0, 0), (0, 9))])
async def test_a_caller_of_another_version_is_told(
    host: Host, bystander: Running, minimum: tuple[int, int], maximum: tuple[int, int]
) -> None:
    stranger = await host.caller()
    hello = Frame()
    for side, (major, minor) in (("minimum", minimum), ("maximum", maximum)):
        version = getattr(hello.caller_hello, side)
        version.major, version.minor = major, minor
    await stranger.send(hello)
    if minimum == (0, 0):
        # No version at all is the first one.
        assert (await stranger.next_of("host_hello")).host_hello.version.major == 1
        return
    await told(stranger, VERSION, None)
    assert (await stranger.end()).code is grpc.StatusCode.OK


# --- sizes


@on_sockets
async def test_a_message_that_is_too_large_fails_the_calls_it_would_start(
    host: Host, caller: CallerPeer, worker: WorkerPeer, bystander: Running, inside: Inside
) -> None:
    call = await running(caller, worker)
    starts = [caller.starting("echo", b'"' + b"x" * (MIB - 100) + b'"') for _ in range(20)]
    invoked = len(worker.invoked)
    await caller.send(*starts)
    await told(caller, TOO_LARGE, None)
    for start in starts:
        failure = (await caller.outcome(start.call)).failure
        assert (failure.kind, failure.side_effects) == (INVALID_ARGUMENTS, NONE)
        assert caller.bodies(start.call) == ["started", "outcome"]
    await worker.flush()
    assert len(worker.invoked) == invoked
    assert inside.counts["oversized_messages"] == 1
    await call.ends_well()
    # It may come again, and harms itself alone.
    await caller.send_bytes(b"\x0a\xff\xff\xff\x7f" + bytes(20 * MIB))
    await told(caller, TOO_LARGE, None)
    await (await running(caller, worker)).ends_well()


@on_unix
async def test_a_message_beyond_what_grpc_takes_loses_the_stream(
    host: Host, worker: WorkerPeer, bystander: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.support.links.CHANNEL_OPTIONS", SENDING_ALL)
    caller = await host.caller()
    call = await running(caller, worker)
    await caller.send_bytes(header(65 * MIB) + bytes(65 * MIB))
    assert await worker.cancelled(call.run) == DISCONNECT
    await worker.fail(call.run)
    assert (await caller.end()).code is grpc.StatusCode.RESOURCE_EXHAUSTED


@on_sockets
@pytest.mark.parametrize(
    "message",
    [b"\xff" * 100, b"\x0a\x7f\x08", b"\x0a\x02\x08\xff", b"GET / HTTP/1.1\r\n\r\n", b"\x0a\x04\x5a\x05ab"],
    ids=["no fields", "a length beyond the end", "half a number", "another protocol", "a body beyond its frame"],
)
async def test_a_message_that_is_no_batch_is_told_and_forgotten(
    host: Host, caller: CallerPeer, worker: WorkerPeer, bystander: Running, inside: Inside, message: bytes
) -> None:
    call = await running(caller, worker)
    for _ in range(3):
        await caller.send_bytes(message)
        await told(caller, MALFORMED, None)
    assert inside.counts["malformed_messages"] == 3
    await call.ends_well()


@on_sockets
async def test_a_start_that_is_too_large_fails_alone_in_its_message(
    host: Host, caller: CallerPeer, worker: WorkerPeer, bystander: Running
) -> None:
    before, large, after = (caller.starting("echo", b'{"a": "' + b"x" * size + b'"}') for size in (1, 5 * MIB, 2))
    await caller.send(before, large, after)
    runs = [(await worker.next_invoke()).call for _ in range(2)]
    failure = (await caller.outcome(large.call)).failure
    assert (failure.kind, failure.side_effects) == (INVALID_ARGUMENTS, NONE)
    for start, run in zip((before, after), runs, strict=True):
        await worker.result(run, start.call)
        assert (await caller.outcome(start.call)).result.json == str(start.call).encode()


@on_sockets
async def test_calls_beyond_the_most_of_a_stream_are_refused(start_host: StartHost) -> None:
    host = await start_host(calls=CallLimits(in_flight_per_stream=8))
    worker, caller, other = await attach(host), await host.caller(), await host.caller()
    await caller.send(*[caller.starting() for _ in range(20)])
    for call in range(9, 21):
        failure = (await caller.outcome(call)).failure
        assert (failure.kind, failure.side_effects, failure.retryable) == (OVERLOADED, NONE, True)
        assert failure.HasField("retry_after")
    runs = [await worker.next_invoke() for _ in range(8)]
    await (await running(other, worker)).ends_well()
    for call, run in enumerate(runs, 1):
        await worker.result(run.call, call)
        assert (await caller.outcome(call)).result.json == str(call).encode()
    await (await running(caller, worker)).ends_well()


# --- half-closing


@on_sockets
async def test_a_caller_that_half_closes_early_gets_what_it_started(
    host: Host, caller: CallerPeer, worker: WorkerPeer, bystander: Running
) -> None:
    calls = [await running(caller, worker) for _ in range(3)]
    refused = await caller.start("nobody")
    await caller.half_close()
    assert (await caller.outcome(refused)).failure.kind == UNKNOWN_TOOL
    for call in calls:
        await call.ends_well()
    assert (await caller.end()).code is grpc.StatusCode.OK


@on_sockets
async def test_a_caller_that_half_closes_at_once_is_let_go(host: SocketHost, bystander: Running) -> None:
    silent, hasty = await host.caller(), await host.caller()
    await silent.half_close()
    assert (await silent.end()).code is grpc.StatusCode.OK
    await hasty.start("nobody")
    await hasty.half_close()
    assert (await hasty.outcome(1)).failure.kind == UNKNOWN_TOOL
    assert (await hasty.end()).code is grpc.StatusCode.OK
    assert (await host.info()).instance_id


@on_sockets
async def test_a_caller_that_leaves_after_half_closing_has_its_calls_cancelled(
    host: Host, caller: CallerPeer, worker: WorkerPeer, bystander: Running
) -> None:
    call = await running(caller, worker)
    await caller.half_close()
    caller.cut()
    assert await worker.cancelled(call.run) == DISCONNECT
    await worker.fail(call.run)
