"""A small real HTTP server on loopback that answers as a test says, and misbehaves as a test says."""

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import NamedTuple, Self
from urllib.parse import parse_qsl, unquote, urlsplit


class Asked(NamedTuple):
    """A request."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    """By name in lower case."""
    form: Mapping[str, str]
    port: int
    """Of who asks."""


class Answered(NamedTuple):
    """What is answered."""

    status: int = 200
    body: bytes = b""
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()


class Cut(Exception):
    """Raised by a handler: the connection ends without an answer."""


Handler = Callable[[Asked], Awaitable[Answered]]


class HttpStandIn:
    """Serves inside `async with`. One request a connection."""

    def __init__(self, handler: Handler, context: ssl.SSLContext | None = None) -> None:
        """`context`: to speak TLS with."""
        self._handler = handler
        self._context = context
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()
        self.port = 0

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http{'' if self._context is None else 's'}://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def open(self) -> None:
        """Listens, at the port it had before if there was one."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=self._context)
        self.port = self._server.sockets[0].getsockname()[1]

    async def aclose(self) -> None:
        """Ends every connection and listens no more."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        serving = tuple(self._serving)
        for task in serving:
            task.cancel()
        if serving:
            await asyncio.wait(serving)
        await server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            with contextlib.suppress(Cut, ConnectionError, asyncio.IncompleteReadError):
                answered = await self._handler(await _read(reader, writer))
                writer.write(_message(answered))
                await writer.drain()
        except asyncio.CancelledError:
            # The stand-in closes; the server's own callback would report the cancellation as an error.
            pass
        finally:
            self._serving.discard(task)
            writer.close()


async def _read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Asked:
    method, target, _ = (await reader.readuntil(b"\r\n")).decode().split(" ")
    headers: dict[str, str] = {}
    while (line := (await reader.readuntil(b"\r\n")).decode().rstrip()) != "":
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    parts = urlsplit(target)
    form = dict(parse_qsl(body.decode(), keep_blank_values=True))
    port = writer.get_extra_info("peername")[1]
    return Asked(method, unquote(parts.path), dict(parse_qsl(parts.query)), headers, form, port)


def _message(answered: Answered) -> bytes:
    head = [
        f"HTTP/1.1 {answered.status} Whatever",
        f"content-type: {answered.content_type}",
        f"content-length: {len(answered.body)}",
        "connection: close",
        *(f"{name}: {value}" for name, value in answered.headers),
    ]
    return "\r\n".join([*head, "", ""]).encode() + answered.body
