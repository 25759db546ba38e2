"""Where a person's browser comes back to on this machine, after they authorised for a command (RFC 8252)."""

import asyncio
import contextlib
import hmac
from collections.abc import Mapping
from types import TracebackType
from typing import Self
from urllib.parse import parse_qsl, urlsplit

_PATH = "/callback"
_MOST_BYTES = 16 * 1024
_MOST_LINES = 100
_CONNECTION = 10.0
_PAGE = (
    "<!doctype html><meta charset=utf-8><title>Pillion</title><body style='font-family: sans-serif; margin: 4em'>"
    "<p>{}</p>"
)


class Loopback:
    """Listens on 127.0.0.1 inside `async with`, and takes one answer: the one to the authorisation that was begun."""

    def __init__(self, port: int = 0) -> None:
        self._port = port
        self._server: asyncio.Server | None = None
        self._state = ""
        self._came: asyncio.Future[Mapping[str, str]] | None = None

    @property
    def url(self) -> str:
        """The address to be sent back to."""
        return f"http://127.0.0.1:{self._port}{_PATH}"

    async def __aenter__(self) -> Self:
        """Listens.

        :raises OSError: if the port cannot be had.
        """
        self._came = asyncio.get_running_loop().create_future()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port, limit=_MOST_BYTES)
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()

    async def callback(self, state: str) -> Mapping[str, str]:
        """What the person comes back with. Whatever has another `state` is answered, and ignored."""
        if self._came is None:
            raise RuntimeError("It does not listen; enter it first.")
        self._state = state
        return await self._came

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(
            OSError, ValueError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError
        ):
            async with asyncio.timeout(_CONNECTION):
                status, text = self._answer(await _target(reader))
                page = _PAGE.format(text).encode()
                head = (
                    f"HTTP/1.1 {status}\r\ncontent-type: text/html; charset=utf-8\r\ncontent-length: {len(page)}\r\n"
                    "cache-control: no-store\r\nreferrer-policy: no-referrer\r\nconnection: close\r\n\r\n"
                )
                writer.write(head.encode() + page)
                await writer.drain()
        writer.close()

    def _answer(self, target: str) -> tuple[str, str]:
        parts = urlsplit(target)
        callback = dict(parse_qsl(parts.query, keep_blank_values=True, max_num_fields=32))
        state = callback.get("state", "").encode()
        if parts.path != _PATH or not self._state or not hmac.compare_digest(state, self._state.encode()):
            return "404 Not Found", "There is nothing here. Go back to the command, and open the address that it shows."
        if self._came is not None and not self._came.done():
            self._came.set_result(callback)
        if "code" in callback:
            return "200 OK", "Thank you. You can close this page and go back to the command."
        return "200 OK", "It was not authorised. You can close this page; the command tells what to do."


async def _target(reader: asyncio.StreamReader) -> str:
    method, target, _ = (await reader.readuntil(b"\r\n")).decode("ascii").split(" ")
    for _ in range(_MOST_LINES):
        if await reader.readuntil(b"\r\n") == b"\r\n":
            break
    if method != "GET":
        raise ValueError(method)
    return target
