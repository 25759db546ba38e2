"""Serves one page over HTTP/1.1, for a scraper: small, bounded, and on the loop of the sidecar."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus

from sidecar.telemetry.counters import Counters

_log = logging.getLogger(__name__)

_HEAD_BYTES = 8_192
_CONNECTIONS = 16
_SECONDS = 5.0
_PATH = "/metrics"
_METHODS = ("GET", "HEAD")


class Answer(Exception):
    """A request is answered by a status and no page."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class MetricsServer:
    """Answers GET and HEAD of `/metrics`, one request a connection.

    A request may take seconds and a few KiB, and few connections are open at once; further ones are closed unanswered.
    """

    def __init__(self, page: Callable[[str], Awaitable[tuple[str, bytes]]], counters: Counters) -> None:
        self._page = page
        self._counters = counters
        self._server: asyncio.Server | None = None
        self._requests: set[asyncio.Task[None]] = set()

    async def open(self, host: str, port: int) -> str:
        """Listens; answers the address of the page.

        :raises OSError: if the address cannot be had.
        """
        self._server = await asyncio.start_server(self._connected, host, port, limit=_HEAD_BYTES)
        address = self._server.sockets[0].getsockname()
        return f"http://[{host}]:{address[1]}{_PATH}" if ":" in host else f"http://{host}:{address[1]}{_PATH}"

    async def aclose(self) -> None:
        """Stops listening, and drops the requests that are open."""
        if self._server is not None:
            self._server.close()
        for request in self._requests:
            request.cancel()
        await asyncio.gather(*self._requests, return_exceptions=True)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._requests) >= _CONNECTIONS:
            writer.transport.abort()
            return
        request = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._requests.add(request)
        request.add_done_callback(self._requests.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_SECONDS):
                writer.write(await self._answer(reader))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError, EOFError):
            # The scraper left, or took too long: there is nobody to tell.
            return
        finally:
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        method = "GET"
        try:
            method, headers = await _request(reader)
            content_type, body = await self._page(headers.get("accept", ""))
        except Answer as answer:
            return _response(answer.status, "text/plain; charset=utf-8", f"{answer.message}\n".encode(), method)
        except (OSError, TimeoutError, EOFError):
            raise
        except Exception:
            self._counters.add("internal_errors")
            _log.exception("the metrics could not be told")
            return _response(HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain; charset=utf-8", b"See the log.\n", method)
        return _response(HTTPStatus.OK, content_type, body, method)


async def _request(reader: asyncio.StreamReader) -> tuple[str, Mapping[str, str]]:
    """Method and headers of a request for the page.

    :raises Answer: if it is anything else.
    """
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise Answer(
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"A request has at most {_HEAD_BYTES:,} bytes."
        ) from None
    line, *rest = head.decode("latin-1").split("\r\n")
    method, _, target = line.partition(" ")
    target, _, version = target.partition(" ")
    if not version.startswith("HTTP/1."):
        raise Answer(HTTPStatus.BAD_REQUEST, "This is no HTTP/1.1 request.")
    if target.partition("?")[0] != _PATH:
        raise Answer(HTTPStatus.NOT_FOUND, f"There is {_PATH} and nothing else.")
    if method not in _METHODS:
        raise Answer(HTTPStatus.METHOD_NOT_ALLOWED, f"{_PATH} is read by GET or HEAD.")
    headers = (header.partition(":") for header in rest if header)
    return method, {name.strip().lower(): value.strip() for name, _, value in headers}


def _response(status: HTTPStatus, content_type: str, body: bytes, method: str) -> bytes:
    allow = f"Allow: {', '.join(_METHODS)}\r\n" if status is HTTPStatus.METHOD_NOT_ALLOWED else ""
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\n"
        f"Content-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\n"
        f"Cache-Control: no-store\r\n"
        f"{allow}Connection: close\r\n\r\n"
    )
    return head.encode() + (b"" if method == "HEAD" else body)
