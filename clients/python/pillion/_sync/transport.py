"""Streams over gRPC's synchronous API, for an event loop in a thread of its own.

A second event loop in a process that runs grpc.aio elsewhere is what this avoids; and a channel may be brought along.
"""

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import grpc

from pillion._wire.channel import (
    BULK_OPTIONS,
    OPTIONS,
    Metadata,
    StreamEnded,
    closed,
    ended,
    seconds_in,
    unanswered,
)
from pillion._wire.security import Security, Shown

_READ_AHEAD = 4


class BlockingTransport:
    """One stream. A thread reads it, and gRPC's own takes what is written."""

    def __init__(self, begin: Callable[[Iterator[bytes]], Any]) -> None:
        self._loop = asyncio.get_running_loop()
        self._written: queue.SimpleQueue[tuple[bytes, asyncio.Future[None]] | None] = queue.SimpleQueue()
        self._read: asyncio.Queue[bytes | StreamEnded] = asyncio.Queue()
        self._credit = threading.Semaphore(_READ_AHEAD)
        self._ended: StreamEnded | None = None
        self._call = begin(self._requests())
        threading.Thread(target=self._pump, name="pillion-sync-reader", daemon=True).start()

    async def read(self) -> bytes:
        """The next message.

        :raises StreamEnded: if there is none.
        """
        if self._ended is not None:
            raise self._ended
        message = await self._read.get()
        if isinstance(message, StreamEnded):
            self._ended = message
            raise message
        self._credit.release()
        return message

    async def write(self, message: bytes) -> None:
        """Hands over a message; waits until gRPC has taken it.

        :raises StreamEnded: if the stream is over.
        """
        if self._ended is not None:
            raise self._ended
        taken: asyncio.Future[None] = self._loop.create_future()
        self._written.put((message, taken))
        await taken

    async def told(self) -> Mapping[str, str]:
        """What the peer says before its first message.

        :raises StreamEnded: if the stream is over before that.
        """
        try:
            return dict(await self._loop.run_in_executor(None, self._call.initial_metadata))
        except grpc.RpcError as error:
            raise ended(error) from None

    async def finish(self) -> None:
        """Half-closes."""
        self._written.put(None)

    def cancel(self) -> None:
        """Drops the stream."""
        self._call.cancel()
        self._written.put(None)
        self._credit.release()

    async def expires_in(self) -> float | None:
        """In how many seconds from its opening the sidecar takes no new calls on it, if it says so."""
        work = self._call.initial_metadata
        return seconds_in(await self._loop.run_in_executor(None, work))

    def _requests(self) -> Iterator[bytes]:
        while (entry := self._written.get()) is not None:
            message, taken = entry
            self._soon(_settle, taken)
            yield message

    def _pump(self) -> None:
        try:
            for message in self._call:
                self._soon(self._read.put_nowait, message)
                self._credit.acquire()
            last = StreamEnded(None, "")
        except grpc.RpcError as error:
            last = ended(error)
        self._soon(self._read.put_nowait, last)

    def _soon(self, callback: Callable[..., object], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:  # The loop is closed: nobody waits any more.
            return


class BlockingConnection:
    """A synchronous channel: one of its own to a target, or one that was brought along, which stays open."""

    def __init__(self, target: str | grpc.Channel, security: Security) -> None:
        self._owned = isinstance(target, str)
        self._target = target if isinstance(target, str) else ""
        self._security = security
        self._channel: Any = None if isinstance(target, str) else target
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
        if self._owned and (self._channel is None or (anew and shown.pem != self._shown.pem)):
            await self._drop()
            self._shown = shown
            self._channel = self._opened(OPTIONS)
        self._metadata = shown.metadata

    def open(self, method: str, *, wait_for_ready: bool) -> BlockingTransport:
        """Opens a stream."""
        multi = self._channel.stream_stream(method)
        return BlockingTransport(partial(multi, metadata=self._metadata, **self._waiting(wait=wait_for_ready)))

    def transfer(self, method: str, message: bytes | None, *, metadata: Metadata = ()) -> BlockingTransport:
        """Opens a stream for bulk bytes; on the same channel where that was brought along."""
        if self._bulk is None and self._owned:
            self._bulk = self._opened(BULK_OPTIONS)
        channel, shown = self._bulk or self._channel, self._metadata + metadata
        if message is None:
            return BlockingTransport(partial(channel.stream_stream(method), metadata=shown))
        multi = channel.unary_stream(method)
        return BlockingTransport(lambda _: multi(message, metadata=shown))

    def _opened(self, options: tuple[tuple[str, int], ...]) -> Any:
        all_options = (*options, *self._security.options)
        credentials = self._shown.credentials
        if credentials is None:
            return grpc.insecure_channel(self._target, options=all_options)
        return grpc.secure_channel(self._target, credentials, options=all_options)

    async def request(self, method: str, message: bytes, timeout: float | None) -> bytes:
        """The answer to a request.

        :raises ConnectionFailed: if it is not answered.
        :raises Closed: if it was closed, before or meanwhile.
        """
        await self.prepare()
        multi = self._channel.unary_unary(method)
        wait = self._waiting(wait=timeout is not None)
        work = partial(multi, message, metadata=self._metadata, timeout=timeout, **wait)
        try:
            return await asyncio.get_running_loop().run_in_executor(None, work)
        except (grpc.RpcError, ValueError) as error:  # the latter is of a channel that was closed
            if self._is_closed:
                raise closed() from None
            raise unanswered(ended(error)) from None

    def _waiting(self, *, wait: bool) -> dict[str, bool]:
        """Whether to wait for the connection, on a channel of its own. One that was brought along has its own ways."""
        return {"wait_for_ready": wait} if self._owned else {}

    def subscribe(self, method: str, message: bytes) -> BlockingTransport:
        """Opens a stream that answers one request."""
        multi = self._channel.unary_stream(method)
        return BlockingTransport(lambda _: multi(message, metadata=self._metadata))

    async def close(self) -> None:
        """Ends it, with all its streams, if it is its own."""
        self._is_closed = True
        await self._drop()

    async def _drop(self) -> None:
        bulk, self._bulk = self._bulk, None
        for channel in (bulk, self._channel):
            if self._owned and channel is not None:
                await asyncio.get_running_loop().run_in_executor(None, channel.close)


def _settle(taken: asyncio.Future[None]) -> None:
    if not taken.done():
        taken.set_result(None)
