"""A proxy between a peer and the sidecar that counts gRPC messages, and cuts the connection at one of them.

It reads just enough of HTTP/2 to know where a message ends: a connection is a preface from its client and then frames,
a frame has a head of nine bytes, and the payloads of `DATA` frames hold messages, each behind five bytes of its own.
"""

import asyncio
import contextlib
from collections.abc import Coroutine
from itertools import count
from types import TracebackType
from typing import Any, NamedTuple, Self

_PREFACE = 24
_FRAME_HEAD = 9
_MESSAGE_HEAD = 5
_DATA = 0
_PADDED = 0x8
_UNIX = "unix:"
_CHUNK = 65_536
_numbers = count(1)

TO_SIDECAR, FROM_SIDECAR = "to the sidecar", "from the sidecar"


class Cut(NamedTuple):
    """Where a connection is cut."""

    direction: str
    """`TO_SIDECAR` or `FROM_SIDECAR`."""
    message: int
    """Which message of this direction, from 1."""
    inside: bool = False
    """In the middle of the message rather than behind it."""

    def __str__(self) -> str:
        return f"{'inside' if self.inside else 'after'} message {self.message} {self.direction}"


class Flow:
    """One direction of one connection, read frame by frame."""

    def __init__(self, preface: int, cut_message: int, *, inside: bool) -> None:
        self.messages = 0
        """How many messages have passed whole."""
        self._cut_message = cut_message
        self._inside = inside
        self._unread = bytearray()
        self._preface = preface
        self._head = b""
        self._left = 0

    def take(self, data: bytes) -> tuple[bytes, bool]:
        """What of these bytes is to be passed on now, and whether the connection is cut behind it."""
        unread = self._unread
        unread += data
        passed = bytearray()
        if self._preface:
            if len(unread) < self._preface:
                return b"", False
            passed += unread[: self._preface]
            del unread[: self._preface]
            self._preface = 0
        while len(unread) >= _FRAME_HEAD:
            length = int.from_bytes(unread[:3], "big")
            if len(unread) < _FRAME_HEAD + length:
                break
            frame = bytes(unread[: _FRAME_HEAD + length])
            del unread[: _FRAME_HEAD + length]
            kept = self._look(frame) if frame[3] == _DATA else None
            passed += frame[:kept]
            if kept is not None:
                return bytes(passed), True
        return bytes(passed), False

    def _look(self, frame: bytes) -> int | None:
        """Walks the messages in a `DATA` frame; answers how much of it passes before the cut, `None` for no cut."""
        assert not frame[4] & _PADDED, "gRPC does not pad"
        position = _FRAME_HEAD
        while position < len(frame):
            if not self._left:
                taken = frame[position : position + _MESSAGE_HEAD - len(self._head)]
                self._head += taken
                if len(self._head) < _MESSAGE_HEAD:
                    return None
                self._left = int.from_bytes(self._head[1:], "big")
                self._head = b""
                position += len(taken)
                if self._inside and self.messages + 1 == self._cut_message:
                    return position + min(self._left, len(frame) - position) // 2
            step = min(self._left, len(frame) - position)
            position += step
            self._left -= step
            if not self._left:
                self.messages += 1
                if self.messages == self._cut_message:
                    return position
        return None


class Proxy:
    """Listens beside a sidecar's address, over the same kind of socket, and passes on what comes."""

    def __init__(self, target: str, cut: Cut | None = None) -> None:
        self.address = ""
        """Where peers connect to, once it is open."""
        self.was_cut = asyncio.Event()
        """Set once the connection was cut."""
        self._target = target
        self._cut = cut
        self._flows: dict[str, Flow] = {}
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def messages(self) -> tuple[int, int]:
        """How many messages passed whole, to and from the sidecar, on the newest connection."""
        return self._flows[TO_SIDECAR].messages, self._flows[FROM_SIDECAR].messages

    def cut(self) -> None:
        """Cuts all connections now."""
        self.was_cut.set()
        for writer in self._writers:
            # What was passed on is still delivered, as it is by a network that fails behind it.
            writer.close()

    def admit(self) -> None:
        """Lets peers in again after a cut."""
        self.was_cut.clear()

    async def __aenter__(self) -> Self:
        if self._target.startswith(_UNIX):
            path = f"{self._target.removeprefix(_UNIX)}.{next(_numbers)}"
            self._server = await asyncio.start_unix_server(self._accept, path)
            self.address = f"{_UNIX}{path}"
        else:
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
            port: int = self._server.sockets[0].getsockname()[1]
            self.address = f"127.0.0.1:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        await self._server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        if self.was_cut.is_set():
            # One connection is cut once: a client that comes back finds nobody.
            writer.close()
            return
        self._spawn(self._carry(reader, writer))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._target.startswith(_UNIX):
            there = await asyncio.open_unix_connection(self._target.removeprefix(_UNIX))
        else:
            host, _, port = self._target.rpartition(":")
            there = await asyncio.open_connection(host, int(port))
        self._writers.append(there[1])
        self._flows = {TO_SIDECAR: self._flow(TO_SIDECAR), FROM_SIDECAR: self._flow(FROM_SIDECAR)}
        self._spawn(self._pump(reader, there[1], self._flows[TO_SIDECAR]))
        self._spawn(self._pump(there[0], writer, self._flows[FROM_SIDECAR]))

    def _flow(self, direction: str) -> Flow:
        preface = _PREFACE if direction == TO_SIDECAR else 0
        if self._cut is None or self._cut.direction != direction:
            return Flow(preface, 0, inside=False)
        return Flow(preface, self._cut.message, inside=self._cut.inside)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, flow: Flow) -> None:
        with contextlib.suppress(OSError):
            while (data := await reader.read(_CHUNK)) and not self.was_cut.is_set():
                passed, is_cut = flow.take(data)
                if passed:
                    writer.write(passed)
                if is_cut:
                    self.cut()
                    return
                await writer.drain()
        writer.close()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
