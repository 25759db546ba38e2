"""The two doors of a call, so that the same bad input can be handed in at both."""

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Protocol, Self

import grpc
import grpc.aio
from google.rpc.status_pb2 import Status

from sidecar._gen.pillion.v1.call_pb2 import Start
from sidecar._gen.pillion.v1.execute_pb2 import CallRequest, CallResponse
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outcome_pb2 import Failure, FailureKind, Outcome
from sidecar.doors.status import CODES
from tests.support import CallerPeer, SocketHost

_DETAILS = "grpc-status-details-bin"
_OPTIONS = (("grpc.max_receive_message_length", 64 * 1024 * 1024), ("grpc.use_local_subchannel_pool", 1))


class Door(Protocol):
    """A way in for a call."""

    async def call(self, start: Start) -> Outcome:
        """How the call ends."""
        ...


class StreamDoor:
    """`Execute`, with all calls on one stream."""

    def __init__(self, caller: CallerPeer) -> None:
        self._caller = caller

    async def call(self, start: Start) -> Outcome:
        self._caller.last_call += 1
        call = self._caller.last_call
        await self._caller.send(Frame(call=call, start=start))
        outcome = await self._caller.outcome(call)
        assert self._caller.bodies(call) == ["started", "outcome"]
        return outcome


class UnaryDoor:
    """`Call`. A failure has to be the RPC's status, and its detail."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._call = channel.unary_unary(
            "/pillion.v1.ToolHostService/Call", CallRequest.SerializeToString, CallResponse.FromString
        )

    async def call(self, start: Start) -> Outcome:
        try:
            answer: CallResponse = await self._call(CallRequest(start=start))
        except grpc.aio.AioRpcError as error:
            return Outcome(failure=detail_of(error))
        assert answer.started.execution_id
        return answer.outcome


class Doors:
    """Both doors of a host, open."""

    def __init__(self, host: SocketHost) -> None:
        self.channel = grpc.aio.insecure_channel(host.callers_at, options=_OPTIONS)
        """A channel to the callers' listener."""
        self.raw: Any = self.channel
        """The same, for messages of bytes."""
        self.workers = grpc.aio.insecure_channel(host.workers_at, options=_OPTIONS)
        """A channel to the workers' listener."""
        self.by_name: Mapping[str, Door] = {}
        self._host = host

    async def __aenter__(self) -> Self:
        self.by_name = {"execute": StreamDoor(await self._host.caller()), "call": UnaryDoor(self.channel)}
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.channel.close()
        await self.workers.close()


def detail_of(error: grpc.aio.AioRpcError) -> Failure:
    """The failure in a status, which has to be told in the same words as the status itself."""
    [status_bytes] = [value for key, value in error.trailing_metadata() or () if key == _DETAILS]
    assert isinstance(status_bytes, bytes)
    status = Status.FromString(status_bytes)
    failure = Failure()
    [packed] = status.details
    assert packed.Unpack(failure)
    assert failure.kind != FailureKind.FAILURE_KIND_UNSPECIFIED
    assert error.code() is CODES[failure.kind]
    assert status.code == error.code().value[0]
    assert status.message == error.details() == failure.message
    return failure


def texts_of(error: grpc.aio.AioRpcError) -> str:
    """All that a peer is told by a status."""
    told: list[Any] = [error.details(), error.debug_error_string(), *(error.trailing_metadata() or ())]
    return "\n".join(map(repr, told))
