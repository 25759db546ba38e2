"""How a stream or a request reaches the sidecar."""

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Protocol

import anyio.lowlevel
import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from google.rpc.status_pb2 import Status

from pillion._failures import Closed, ConnectionFailed, NotAuthenticated
from pillion._gen.pillion.v1.outcome_pb2 import Failure
from pillion._wire.security import Security, Shown

_MIB = 1024 * 1024
OPTIONS: tuple[tuple[str, int], ...] = (
    # The protocol has its own limits, which are refused by name; beyond these a stream is lost for no known cause.
    ("grpc.max_receive_message_length", 64 * _MIB),
    ("grpc.max_send_message_length", 64 * _MIB),
    # With bandwidth probing on, a stalled reader makes gRPC buffer up to 20 MiB a stream.
    ("grpc.http2.bdp_probe", 0),
    # The back-off of this package is the one that counts.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # A peer whose machine is gone is noticed, also where nothing is asked of it.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    # A proxy of the environment is not for a sidecar.
    ("grpc.enable_http_proxy", 0),
    # A channel of its own for each connection: a closed one says nothing about another.
    ("grpc.use_local_subchannel_pool", 1),
)
BULK_OPTIONS: tuple[tuple[str, int], ...] = (
    *OPTIONS,
    # What is on its way to this side: by default so little that a fast peer waits for every answer.
    ("grpc.http2.lookahead_bytes", 2 * _MIB),
)
EXECUTE = "/pillion.v1.ToolHostService/Execute"
ATTACH = "/pillion.v1.WorkerHostService/Attach"
UPLOAD = "/pillion.v1.ArtifactService/Upload"
DOWNLOAD = "/pillion.v1.ArtifactService/Download"
_DETAILS = "grpc-status-details-bin"
_EXPIRES_IN = "pillion-expires-in"
_REFUSED = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)


Metadata = tuple[tuple[str, str], ...]
"""What goes with a stream or a request, beside its messages."""


class StreamEnded(Exception):
    """The stream is over: `code` is `None` where the peer ended it in order.

    `failure` is what the sidecar says of it beside that, where it does.
    """

    def __init__(self, code: grpc.StatusCode | None, details: str, failure: Failure | None = None) -> None:
        super().__init__(details)
        self.code = code
        self.details = details
        self.failure = failure


class Transport(Protocol):
    """One stream of messages. One reader and one writer at a time."""

    async def read(self) -> bytes:
        """The next message.

        :raises StreamEnded: if there is none.
        """
        ...

    async def write(self, message: bytes) -> None:
        """Hands over a message; waits for a slow reader.

        :raises StreamEnded: if the stream is over.
        """
        ...

    async def told(self) -> Mapping[str, str]:
        """What the peer says before its first message.

        :raises StreamEnded: if the stream is over before that.
        """
        ...

    async def finish(self) -> None:
        """Half-closes: says that nothing more will be written."""
        ...

    def cancel(self) -> None:
        """Drops the stream."""
        ...

    async def expires_in(self) -> float | None:
        """In how many seconds from its opening the sidecar takes no new calls on it; `None`: it says nothing of that.

        To be asked once a message was read.
        """
        ...


class Connection(Protocol):
    """A way to a sidecar: opens streams and sends requests."""

    @property
    def renewable(self) -> bool:
        """Whether the token that is shown may be another one later."""
        ...

    @property
    def shown(self) -> object:
        """What stands for the token that is shown now: another token, another thing."""
        ...

    async def prepare(self, *, anew: bool = False) -> None:
        """Looks again at what is shown of this side. To be awaited before anything else, and before each stream.

        Certificates that changed are shown only `anew`, since all that is open is lost with the change.

        :raises CannotConnect: if it cannot be used.
        :raises Closed: if it was closed.
        """
        ...

    def open(self, method: str, *, wait_for_ready: bool) -> Transport:
        """Opens a stream."""
        ...

    def transfer(self, method: str, message: bytes | None, *, metadata: Metadata = ()) -> Transport:
        """Opens a stream for bulk bytes: one that answers a request, or without it one that takes messages.

        It has a connection beside that of the frames, which never wait behind it.
        """
        ...

    async def request(self, method: str, message: bytes, timeout: float | None) -> bytes:
        """The answer to a request.

        :raises ConnectionFailed: if it is not answered.
        :raises Closed: if it was closed, before or meanwhile.
        """
        ...

    def subscribe(self, method: str, message: bytes) -> Transport:
        """Opens a stream that answers one request."""
        ...

    async def close(self) -> None:
        """Ends it, with all its streams."""
        ...


class GrpcTransport:
    """A stream of grpc.aio. Its awaits are for tasks of this package alone: anyio's scopes leak out of them."""

    def __init__(self, call: Any) -> None:
        self._call = call

    async def read(self) -> bytes:
        """The next message.

        :raises StreamEnded: if there is none.
        """
        try:
            message = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise ended(error) from None
        except asyncio.CancelledError:
            _raise_if_dropped()
            raise
        except (grpc.aio.BaseError, asyncio.InvalidStateError) as error:
            raise StreamEnded(grpc.StatusCode.UNKNOWN, type(error).__name__) from None
        if message is grpc.aio.EOF:
            code = await self._call.code()
            failure = failure_in(await self._call.trailing_metadata())
            raise StreamEnded(None if code is grpc.StatusCode.OK else code, await self._call.details() or "", failure)
        return message  # type: ignore[no-any-return]  # the types of grpc leave it open

    async def write(self, message: bytes) -> None:
        """Hands over a message; waits for a slow reader.

        :raises StreamEnded: if the stream is over.
        """
        try:
            await self._call.write(message)
        except grpc.aio.AioRpcError as error:
            raise ended(error) from None
        except asyncio.CancelledError:
            _raise_if_dropped()
            raise
        except (grpc.aio.BaseError, asyncio.InvalidStateError, RuntimeError, ValueError) as error:
            raise StreamEnded(grpc.StatusCode.UNAVAILABLE, type(error).__name__) from None

    async def told(self) -> Mapping[str, str]:
        """What the peer says before its first message.

        :raises StreamEnded: if the stream is over before that.
        """
        try:
            return dict(await self._call.initial_metadata())
        except asyncio.CancelledError:
            _raise_if_dropped()
            raise

    async def finish(self) -> None:
        """Half-closes."""
        try:
            await self._call.done_writing()
        except (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError, RuntimeError, ValueError):
            return

    def cancel(self) -> None:
        """Drops the stream."""
        self._call.cancel()

    async def expires_in(self) -> float | None:
        """In how many seconds from its opening the sidecar takes no new calls on it, if it says so."""
        try:
            return seconds_in(await self._call.initial_metadata())
        except (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError):
            return None


class GrpcConnection:
    """A channel of grpc.aio, and another one whenever the certificates that it shows have changed."""

    def __init__(self, target: str, security: Security) -> None:
        self._target = target
        self._security = security
        # Any: without serialisers, messages are bytes, which the stubs of grpc do not say.
        self._channel: Any = None
        self._bulk: Any = None
        self._is_closed = False
        self._shown = Shown(None, None)
        self._metadata = self._shown.metadata

    @property
    def renewable(self) -> bool:
        """Whether the token that is shown may be another one later."""
        return self._security.renewable

    @property
    def shown(self) -> object:
        """What stands for the token that is shown now."""
        return self._metadata

    async def prepare(self, *, anew: bool = False) -> None:
        """Looks again at the token, and anew at the certificates.

        :raises CannotConnect: if they cannot be used.
        :raises Closed: if it was closed.
        """
        shown = await self._security.shown()
        if self._is_closed:
            raise closed()
        if self._channel is None or (anew and shown.pem != self._shown.pem):
            await self._drop()
            self._shown = shown
            self._channel = self._opened(OPTIONS)
        self._metadata = shown.metadata

    def _opened(self, options: tuple[tuple[str, int], ...]) -> Any:
        all_options = (*options, *self._security.options)
        credentials = self._shown.credentials
        if credentials is None:
            return grpc.aio.insecure_channel(self._target, options=all_options)
        return grpc.aio.secure_channel(self._target, credentials, options=all_options)

    def open(self, method: str, *, wait_for_ready: bool) -> GrpcTransport:
        """Opens a stream."""
        multi = self._channel.stream_stream(method)
        return GrpcTransport(multi(metadata=self._metadata, wait_for_ready=wait_for_ready))

    def transfer(self, method: str, message: bytes | None, *, metadata: Metadata = ()) -> GrpcTransport:
        """Opens a stream for bulk bytes."""
        if self._bulk is None:
            self._bulk = self._opened(BULK_OPTIONS)
        shown = self._metadata + metadata
        if message is None:
            return GrpcTransport(self._bulk.stream_stream(method)(metadata=shown))
        return GrpcTransport(self._bulk.unary_stream(method)(message, metadata=shown))

    async def request(self, method: str, message: bytes, timeout: float | None) -> bytes:
        """The answer to a request.

        :raises ConnectionFailed: if it is not answered.
        :raises Closed: if it was closed, before or meanwhile.
        """
        await self.prepare()
        try:
            answer: bytes = await self._channel.unary_unary(method)(
                message, metadata=self._metadata, timeout=timeout, wait_for_ready=timeout is not None
            )
        except grpc.aio.AioRpcError as error:
            raise unanswered(ended(error)) from None
        except asyncio.CancelledError:
            # grpc.aio hands on a cancellation without saying whose: a scope of anyio would not know its own.
            await anyio.lowlevel.checkpoint_if_cancelled()
            if _is_asked_to_stop():
                raise
            if self._is_closed:
                raise closed() from None
            reason = StreamEnded(grpc.StatusCode.CANCELLED, "the certificates were changed meanwhile")
            raise unanswered(reason) from None
        return answer

    def subscribe(self, method: str, message: bytes) -> GrpcTransport:
        """Opens a stream that answers one request."""
        return GrpcTransport(self._channel.unary_stream(method)(message, metadata=self._metadata))

    async def close(self) -> None:
        """Ends it, with all its streams."""
        self._is_closed = True
        await self._drop()

    async def _drop(self) -> None:
        bulk, self._bulk = self._bulk, None
        for channel in (bulk, self._channel):
            if channel is not None:
                await channel.close()


def seconds_in(metadata: Iterable[tuple[str, str | bytes]] | None) -> float | None:
    """What the metadata before the first message says of when a stream expires."""
    for key, value in metadata or ():
        if key == _EXPIRES_IN:
            with suppress(ValueError):
                return max(0.0, float(value))
    return None


def _is_asked_to_stop() -> bool:
    """Whether a cancellation is one of the task that it comes up in."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _raise_if_dropped() -> None:
    """A stream that was dropped here, or whose channel was, reads as a cancellation of the task that reads."""
    if not _is_asked_to_stop():
        raise StreamEnded(grpc.StatusCode.CANCELLED, "dropped on this side")


def closed() -> Closed:
    """The exception of what is asked of a connection that was closed."""
    return Closed("The connection was closed.")


def ended(error: Any) -> StreamEnded:
    """What an error of gRPC says. Those of calls are calls too, which its types do not say."""
    if not hasattr(error, "code"):
        return StreamEnded(grpc.StatusCode.UNKNOWN, "")
    return StreamEnded(error.code(), error.details() or "", failure_in(error.trailing_metadata()))


def failure_in(trailers: Iterable[tuple[str, str | bytes]] | None) -> Failure | None:
    """The failure that the sidecar names beside a status; `None` where it names none."""
    for key, value in trailers or ():
        if key == _DETAILS and isinstance(value, bytes):
            failure = Failure()
            try:
                if any(detail.Unpack(failure) for detail in Status.FromString(value).details):
                    return failure
            except DecodeError:
                return None
    return None


def unanswered(reason: StreamEnded) -> ConnectionFailed:
    """The exception of a request that ended so."""
    cls = NotAuthenticated if reason.code in _REFUSED and reason.failure is None else ConnectionFailed
    status = reason.code.name if reason.code is not None else "OK"
    error = cls(f"The sidecar did not answer: {status}: {reason.details}")
    error.status, error.details, error.reason = status, reason.details, reason.failure
    return error
