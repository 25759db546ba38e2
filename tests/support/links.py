"""A peer's end of one stream, over memory or gRPC, with one way to read, write and end it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, Protocol

import grpc
import grpc.aio

from sidecar.doors.status import ENDING_CODES
from sidecar.wire.ending import Ending
from sidecar.wire.memory import MemoryTransport, memory_pair
from sidecar.wire.transport import StreamLost, Transport

EXECUTE = "/pillion.v1.ToolHostService/Execute"
ATTACH = "/pillion.v1.WorkerHostService/Attach"

CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
    ("grpc.max_send_message_length", 64 * 1024 * 1024),
    ("grpc.http2.bdp_probe", 0),
    # The socket of a sidecar that was just started may not be there yet.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.use_local_subchannel_pool", 1),
)


def channel_to(target: str, shown: grpc.ChannelCredentials | None = None) -> grpc.aio.Channel:
    """A channel, with certificates if some are shown."""
    if shown is None:
        return grpc.aio.insecure_channel(target, options=CHANNEL_OPTIONS)
    return grpc.aio.secure_channel(target, shown, options=CHANNEL_OPTIONS)


def bearing(token: str | None) -> tuple[tuple[str, str], ...]:
    """The metadata that shows a token."""
    return () if token is None else (("authorization", f"Bearer {token}"),)


class End(NamedTuple):
    """How a stream ended, as its peer sees it."""

    code: grpc.StatusCode
    """OK: the sidecar ended it in order. CANCELLED: it was cut."""
    message: str


class Link(Protocol):
    """The peer's end of one stream."""

    async def read(self) -> bytes | None:
        """The next message; `None` once the stream is over."""
        ...

    async def write(self, message: bytes) -> None:
        """Writes a message; returns when it was taken.

        :raises StreamLost: if the stream is over.
        """
        ...

    async def half_close(self) -> None:
        """Ends what this end writes."""
        ...

    def cut(self) -> None:
        """Loses the stream, without a word."""
        ...

    async def end(self) -> End:
        """How the stream ended, once it has."""
        ...

    async def aclose(self) -> None:
        """Frees everything; cuts the stream if it is open."""
        ...


class MemoryLink:
    """A stream in memory, and the task that serves its other end."""

    def __init__(self, serve: Callable[[Transport], Awaitable[Ending | None]]) -> None:
        self._ours, self._theirs = memory_pair()
        self._was_cut = False
        self._task = asyncio.ensure_future(self._serve(serve, self._theirs))

    async def _serve(
        self, serve: Callable[[Transport], Awaitable[Ending | None]], transport: MemoryTransport
    ) -> Ending | None:
        try:
            return await serve(transport)
        finally:
            # As gRPC does when a handler returns.
            transport.cut()

    async def read(self) -> bytes | None:
        try:
            return await self._ours.read()
        except StreamLost:
            return None

    async def write(self, message: bytes) -> None:
        await self._ours.write(message)

    async def half_close(self) -> None:
        self._ours.half_close()

    def cut(self) -> None:
        self._was_cut = not self._task.done()
        self._ours.cut()

    async def end(self) -> End:
        ending = await asyncio.shield(self._task)
        if self._was_cut:
            return End(grpc.StatusCode.CANCELLED, "")
        if ending is None:
            return End(grpc.StatusCode.OK, "")
        return End(ENDING_CODES[ending.reason], ending.message)

    async def aclose(self) -> None:
        self._ours.cut()
        await self._task


class GrpcLink:
    """One RPC on a channel of its own, over bare bytes."""

    def __init__(
        self, target: str, method: str, *, token: str | None = None, shown: grpc.ChannelCredentials | None = None
    ) -> None:
        self._channel = channel_to(target, shown)
        # No serialisers: messages are bytes both ways.
        self._call: Any = self._channel.stream_stream(method)(wait_for_ready=True, metadata=bearing(token))

    async def read(self) -> bytes | None:
        try:
            message = await self._call.read()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return None
        except asyncio.CancelledError:
            if self._call.cancelled():
                return None
            raise
        return None if message is grpc.aio.EOF else message

    async def write(self, message: bytes) -> None:
        try:
            await self._call.write(message)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as lost:
            raise StreamLost from lost
        except asyncio.CancelledError:
            if self._call.cancelled():
                raise StreamLost from None
            raise

    async def half_close(self) -> None:
        await self._call.done_writing()

    def cut(self) -> None:
        self._call.cancel()

    async def end(self) -> End:
        return End(await self._call.code(), await self._call.details() or "")

    async def aclose(self) -> None:
        self._call.cancel()
        await self._channel.close()
