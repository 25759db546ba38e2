"""What a connection shows of itself, and whom it believes: tokens and certificates."""

import asyncio
import inspect
import ipaddress
import logging
import os
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, NoReturn

import grpc

from pillion._facts import Secret
from pillion._failures import CannotConnect

_log = logging.getLogger("pillion")

StrPath = str | os.PathLike[str]
_SOURCE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Tls:
    """Certificates for a listener by TCP, as PEM files, which are read again for each connection.

    `ca` has the authorities whose certificate the sidecar may show; without it, those of the system. `certificate` and
    `key` are this side's own, which the sidecar asks for. `server_name` is the name that the sidecar's certificate is
    for, where that is not the host of the target.
    """

    ca: StrPath | None = None
    certificate: StrPath | None = None
    key: StrPath | None = None
    server_name: str | None = None


TokenSource = Callable[[], str | Secret | Awaitable[str | Secret]]
"""What answers the token to show, newly each time or the same one while that is good."""


class Token:
    """A token: as it was given, as it is in a file, whose first line is read again for each stream, or of a source."""

    def __init__(self, given: str | Secret | TokenSource | None, file: StrPath | None) -> None:
        if given is not None and file is not None:
            raise CannotConnect("There is a token and a token_file; pass one of them.")
        self._given = Secret(given) if isinstance(given, str) else given if isinstance(given, Secret) else None
        self._source = given if callable(given) else None
        self._file = Path(file) if file is not None else None
        self._last: Secret | None = None

    @property
    def exists(self) -> bool:
        """Whether there is one at all."""
        return self._given is not None or self.renewable

    @property
    def renewable(self) -> bool:
        """Whether it may be another one later."""
        return self._source is not None or self._file is not None

    async def shown(self) -> str | None:
        """The token now; `None` where there is none. A file or source that fails later leaves it as it was.

        :raises CannotConnect: if it could not be had from the start.
        """
        if not self.renewable:
            return None if self._given is None else self._given.reveal()
        try:
            self._last = await self._read()
        except CannotConnect as error:
            if self._last is None:
                raise
            _log.warning("the token of before is used on: %s", error)
        return self._last.reveal()

    async def _read(self) -> Secret:
        if self._source is None:
            return await asyncio.to_thread(_first_line, self._file or Path())
        try:
            async with asyncio.timeout(_SOURCE_SECONDS):
                # One that is not a coroutine function may take its time, so it does not on the event loop.
                is_async = inspect.iscoroutinefunction(self._source)
                answer = self._source() if is_async else await asyncio.to_thread(self._source)
                if inspect.isawaitable(answer):
                    answer = await answer
        except TimeoutError:
            raise CannotConnect(f"The token source did not answer within {_SOURCE_SECONDS:g} s.") from None
        except Exception as error:
            raise CannotConnect(f"The token source failed: {type(error).__name__}.") from error
        # Whatever its type says.
        text: object = answer.reveal() if isinstance(answer, Secret) else answer
        if not isinstance(text, str) or not text.strip():
            raise CannotConnect("The token source answered no token.")
        return Secret(text.strip())


_Pem = tuple[bytes | None, bytes | None, bytes | None]


class Shown(NamedTuple):
    """What one connection shows. It holds secrets: it is not printed."""

    token: str | None
    pem: _Pem | None
    """Authorities, key and certificate; `None`: nothing is encrypted."""

    def __repr__(self) -> str:
        return "Shown(…)"

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What says with each request who asks."""
        return () if self.token is None else (("authorization", f"Bearer {self.token}"),)

    @property
    def credentials(self) -> grpc.ChannelCredentials | None:
        """What a channel is made with; `None`: nothing."""
        return None if self.pem is None else grpc.ssl_channel_credentials(*self.pem)


class Security:
    """Everything of a connection that is secret, or keeps it so."""

    def __init__(self, target: str, token: Token | None = None, tls: Tls | None = None) -> None:
        """`token` goes with every request; one that goes otherwise is to be checked by `keep_token`.

        :raises CannotConnect: if a secret would go over the network in the clear, or what is given does not fit.
        """
        self._token = token or Token(None, None)
        self._tls = tls
        self._target = target
        self._pem: _Pem | None = None
        if tls is not None:
            if target.startswith("unix"):
                raise CannotConnect("tls is for TCP, and the target is a unix socket; leave it away.")
            if (tls.certificate is None) != (tls.key is None):
                raise CannotConnect("A certificate and its key belong together; pass both.")
        if self._token.exists:
            self.keep_token()

    @property
    def renewable(self) -> bool:
        """Whether the token may be another one later."""
        return self._token.renewable

    @property
    def options(self) -> tuple[tuple[str, str], ...]:
        """Options of the channel."""
        name = self._tls.server_name if self._tls is not None else None
        return () if name is None else (("grpc.ssl_target_name_override", name),)

    def keep_token(self) -> None:
        """Sees to it that no token goes over the network in the clear.

        :raises CannotConnect: if it would.
        """
        if self._tls is None and not _is_here(self._target):
            raise CannotConnect("A token would go over the network in the clear: pass tls, or connect by loopback.")

    async def shown(self) -> Shown:
        """What is shown now. Files that cannot be used any more leave it as it was, and the log says so.

        :raises CannotConnect: if they could not be used from the start.
        """
        token = await self._token.shown()
        if self._tls is not None:
            try:
                self._pem = await asyncio.to_thread(_read, self._tls)
            except CannotConnect as error:
                if self._pem is None:
                    raise
                _log.warning("the certificates of before are used on: %s", error)
        return Shown(token, self._pem)


def _first_line(file: Path) -> Secret:
    try:
        lines = file.read_text("ascii").split("\n")
    except (OSError, ValueError) as error:
        raise CannotConnect(f"The token file {file} cannot be read: {type(error).__name__}.") from None
    token = next((line.strip() for line in lines if line.strip()), None)
    if token is None:
        raise CannotConnect(f"The token file {file} is empty.")
    return Secret(token)


def _is_here(target: str) -> bool:
    """Whether a target is on this machine, where nothing goes over a network."""
    if target.startswith("unix"):
        return True
    for scheme in ("dns:", "ipv4:", "ipv6:"):
        target = target.removeprefix(scheme)
    host = target.removeprefix("///").rpartition(":")[0].removeprefix("[").removesuffix("]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _read(tls: Tls) -> _Pem:
    ca, key, certificate = (_bytes(path) for path in (tls.ca, tls.key, tls.certificate))
    # gRPC would only say that no connection came to be.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        if ca is not None:
            context.load_verify_locations(cadata=ca.decode("ascii"))
    except (OSError, ValueError):  # those of TLS are such
        raise CannotConnect(f"{tls.ca} holds no certificate in PEM.") from None
    if tls.certificate is not None and tls.key is not None:
        try:
            context.load_cert_chain(tls.certificate, tls.key, _no_password)
        except (OSError, ValueError):
            raise CannotConnect(f"{tls.certificate} and {tls.key} are no certificate with its key in PEM.") from None
    return ca, key, certificate


def _bytes(path: StrPath | None) -> bytes | None:
    try:
        return None if path is None else Path(path).read_bytes()
    except OSError as error:
        raise CannotConnect(f"{path} cannot be read: {type(error).__name__}.") from None


def _no_password() -> NoReturn:
    raise ValueError("a key with a password")
