"""Requests to providers over HTTP: bounded in time and size, and silent about what is in them."""

import asyncio
import json
import ssl
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import httpx2

from sidecar.credentials.port import CredentialRefused, ProviderDown

_TIMEOUT = 10.0
_MOST_BYTES = 1024 * 1024
_SUCCESS = range(200, 300)
_REDIRECT = range(300, 400)
# Too early, too late, too often: not a word on what was asked.
_LATER = frozenset((408, 425, 429))
_SERVER_FAILED = 500


class Reply(NamedTuple):
    """What was answered, whole."""

    status: int
    body: bytes

    @property
    def is_success(self) -> bool:
        """Whether it was done."""
        return self.status in _SUCCESS

    def json(self) -> Any:
        """The body as JSON; `None` where it is none."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None


class Http:
    """Sends requests, and follows no redirect: a secret goes where the settings say, and nowhere else.

    The text of its failures says whom they are about by a word of ours, and quotes nothing that was sent or answered.
    """

    def __init__(self, *, timeout: float = _TIMEOUT, ca_file: Path | None = None) -> None:
        """`timeout`: seconds for a whole request. `ca_file`: certificates to trust, in place of the system's."""
        self._timeout = timeout
        self._ca_file = ca_file
        self._clients: dict[bool, asyncio.Task[httpx2.AsyncClient]] = {}
        """By whether they speak TLS."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes the connections. Closing again does nothing."""
        opened, self._clients = self._clients, {}
        for opening in opened.values():
            await asyncio.wait({opening})
            if opening.exception() is None:
                await opening.result().aclose()

    async def post(self, whom: str, url: str, form: Mapping[str, str], headers: Mapping[str, str]) -> Reply:
        """Posts a form. `whom`: who is asked, for the text of a failure.

        :raises ProviderDown: if there is no answer in time, or one that is none: an error of the server, a request to
            come later, or too much.
        :raises CredentialRefused: if it answers with a redirect.
        """
        return await self._send(whom, "POST", url, form, headers)

    async def get(self, whom: str, url: str, headers: Mapping[str, str]) -> Reply:
        """Gets a resource. Raises as `post` does."""
        return await self._send(whom, "GET", url, None, headers)

    async def _send(
        self, whom: str, method: str, url: str, form: Mapping[str, str] | None, headers: Mapping[str, str]
    ) -> Reply:
        try:
            async with asyncio.timeout(self._timeout):
                client = await self._opened(tls=not url.lower().startswith("http:"))
                sending = client.stream(method, url, data=form, headers={"accept": "application/json", **headers})
                async with sending as response:
                    reply = Reply(response.status_code, await _body(whom, response))
        except TimeoutError:
            raise ProviderDown(f"{whom} did not answer within {self._timeout:g} s; try again in a moment.") from None
        except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError, OSError) as error:
            raise ProviderDown(
                f"{whom} could not be asked ({type(error).__name__}); try again when it can be reached."
            ) from None
        if reply.status in _REDIRECT:
            raise CredentialRefused(f"{whom} answered with a redirect ({reply.status}); name its final address.")
        if reply.status in _LATER or reply.status >= _SERVER_FAILED:
            raise ProviderDown(f"{whom} answered with status {reply.status}; try again in a moment.")
        return reply

    async def _opened(self, *, tls: bool) -> httpx2.AsyncClient:
        client = self._clients.get(tls)
        if client is None or (client.done() and client.exception() is not None):
            client = asyncio.get_running_loop().create_task(asyncio.to_thread(self._open, tls=tls))
            self._clients[tls] = client
        # Who waits may give up; the client is for all.
        return await asyncio.shield(client)

    def _open(self, *, tls: bool) -> httpx2.AsyncClient:
        # Reading certificates takes a tenth of a second, so it is done where there is TLS, and not on the event loop.
        context: ssl.SSLContext | bool = tls
        if tls and self._ca_file is not None:
            context = ssl.create_default_context(cafile=str(self._ca_file))
        return httpx2.AsyncClient(verify=context, timeout=self._timeout, follow_redirects=False)


async def _body(whom: str, response: httpx2.Response) -> bytes:
    body = bytearray()
    async for part in response.aiter_bytes():
        body += part
        if len(body) > _MOST_BYTES:
            raise ProviderDown(f"{whom} answered with over 1 MiB; look after it.")
    return bytes(body)
