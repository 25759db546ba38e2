"""The three carriers of a stream, and a transport that a test can watch and hold."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import grpc
import grpc.aio

from sidecar.wire.grpc import SERVER_OPTIONS, GrpcTransport
from sidecar.wire.memory import memory_pair
from sidecar.wire.transport import StreamLost, Transport

PATIENCE = 10.0
"""How many seconds anything may take before a test is given up."""
KINDS = ("memory", "unix", "tcp")

_METHOD = "/tests.Wire/Stream"
_CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.enable_retries", 0),
)

Serve = Callable[[Transport], Awaitable[None]]


class Peer(Protocol):
    """The other end of a stream, in messages."""

    async def read(self) -> bytes | None:
        """The next message; `None` once the stream is over in good order."""
        ...

    async def write(self, message: bytes) -> None: ...

    async def half_close(self) -> None: ...

    def cut(self) -> None:
        """Leaves without a word."""
        ...


class Carrier(Protocol):
    """Opens streams of one kind."""

    def open(self, serve: Serve) -> Peer:
        """Opens a stream that is served by a coroutine function."""
        ...


class Patient:
    """A peer that gives up on what never comes, so that a test fails rather than hangs."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer

    async def read(self) -> bytes | None:
        async with asyncio.timeout(PATIENCE):
            return await self._peer.read()

    async def read_patiently(self) -> bytes | None:
        """Reads, and waits as long as it takes."""
        return await self._peer.read()

    async def write(self, message: bytes) -> None:
        async with asyncio.timeout(PATIENCE):
            await self._peer.write(message)

    async def half_close(self) -> None:
        await self._peer.half_close()

    def cut(self) -> None:
        self._peer.cut()


class Watched:
    """Passes on to another transport, and tells when a write starts; a closed gate holds writes back."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._changed = asyncio.Event()
        self._gate = asyncio.Event()
        self._gate.set()
        self.writes: list[bytes] = []
        """The messages whose write was started."""
        self.completed = 0

    async def read(self) -> bytes | None:
        return await self._transport.read()

    async def write(self, message: bytes) -> None:
        self.writes.append(message)
        self._changed.set()
        await self._gate.wait()
        await self._transport.write(message)
        self.completed += 1
        self._changed.set()

    async def until_written(self) -> None:
        """Waits until every write that was started is completed."""
        async with asyncio.timeout(PATIENCE):
            while self.completed < len(self.writes):
                self._changed.clear()
                await self._changed.wait()

    def hold(self) -> None:
        """Lets no write through from now on."""
        self._gate.clear()

    def release(self) -> None:
        """Lets writes through again."""
        self._gate.set()

    async def until_writing(self, messages: int = 1) -> None:
        """Waits until that many writes were started."""
        async with asyncio.timeout(PATIENCE):
            while len(self.writes) < messages:
                self._changed.clear()
                await self._changed.wait()


class _MemoryPeer:
    def __init__(self, serve: Serve) -> None:
        self._here, self._there = memory_pair()
        self._serving = asyncio.ensure_future(self._run(serve))

    async def read(self) -> bytes | None:
        return await self._here.read()

    async def write(self, message: bytes) -> None:
        await self._here.write(message)

    async def half_close(self) -> None:
        self._here.half_close()

    def cut(self) -> None:
        self._here.cut()

    async def close(self) -> None:
        self._serving.cancel()
        await asyncio.wait((self._serving,))
        self._here.cut()
        self._there.cut()

    async def _run(self, serve: Serve) -> None:
        try:
            await serve(self._there)
        finally:
            # As over gRPC: the peer's stream is over once its handler has returned, without being cut.
            self._there._sends.close()
            self._there._receives.close()


class MemoryCarrier:
    """Opens streams in memory."""

    def __init__(self) -> None:
        self._peers: list[_MemoryPeer] = []

    def open(self, serve: Serve) -> Peer:
        peer = _MemoryPeer(serve)
        self._peers.append(peer)
        return peer

    async def close(self) -> None:
        for peer in self._peers:
            await peer.close()


class _GrpcPeer:
    def __init__(self, call: Any) -> None:
        self._call = call

    async def read(self) -> bytes | None:
        try:
            message: Any = await self._call.read()
        except grpc.RpcError as error:
            raise StreamLost from error
        return None if message is grpc.aio.EOF else bytes(message)

    async def write(self, message: bytes) -> None:
        try:
            await self._call.write(message)
        except (grpc.RpcError, asyncio.InvalidStateError) as error:
            raise StreamLost from error

    async def half_close(self) -> None:
        await self._call.done_writing()

    def cut(self) -> None:
        self._call.cancel()


class GrpcCarrier:
    """Opens streams over one channel."""

    def __init__(self, channel: grpc.aio.Channel, waiting: deque[Serve]) -> None:
        self._open: Any = channel.stream_stream(_METHOD)
        self._waiting = waiting
        self._peers: list[_GrpcPeer] = []

    def open(self, serve: Serve) -> Peer:
        self._waiting.append(serve)
        peer = _GrpcPeer(self._open())
        self._peers.append(peer)
        return peer

    def close(self) -> None:
        for peer in self._peers:
            peer.cut()


@asynccontextmanager
async def memory_carrier() -> AsyncIterator[Carrier]:
    """Streams in memory; all are lost at the end."""
    carrier = MemoryCarrier()
    yield carrier
    await carrier.close()


@asynccontextmanager
async def grpc_carrier(socket: Path | None) -> AsyncIterator[Carrier]:
    """Streams over a real server, on a unix socket or, without one, on loopback TCP; all are lost at the end."""
    waiting: deque[Serve] = deque()

    async def handle(_requests: object, context: "grpc.aio.ServicerContext[bytes, bytes]") -> None:
        await waiting.popleft()(GrpcTransport(context))

    server = grpc.aio.server(options=SERVER_OPTIONS)
    service, method = _METHOD.strip("/").split("/")
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {method: grpc.stream_stream_rpc_method_handler(handle)}),)
    )
    if socket is None:
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    else:
        address = f"unix:{socket}"
        server.add_insecure_port(address)
    await server.start()
    async with grpc.aio.insecure_channel(address, options=_CHANNEL_OPTIONS) as channel:
        carrier = GrpcCarrier(channel, waiting)
        yield carrier
        carrier.close()
    await server.stop(None)
