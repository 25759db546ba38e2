"""Credentials, as a tool gets them."""

import base64
import enum
import hmac
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from pillion import _refusals
from pillion._facts import Secret, seconds_of, set_seconds
from pillion._gen.pillion.v1 import context_pb2
from pillion._gen.pillion.v1.outbound_pb2 import CredentialGet, OutboundRequest
from pillion._worker.port import Port


class CredentialMode(enum.IntEnum):
    """Whose credential."""

    MACHINE = 1
    """The worker's own."""
    USER = 2
    """The subject's."""


@dataclass(frozen=True, slots=True)
class Bearer:
    """A bearer token."""

    token: Secret
    expires_in: float | None = None
    """Seconds it works for, from when it was sent; `None` is not known."""

    def http_headers(self) -> dict[str, str]:
        """The header that shows it, revealed: to be sent, and nothing else."""
        return {"authorization": f"Bearer {self.token.reveal()}"}


@dataclass(frozen=True, slots=True)
class ApiKey:
    """An API key, and the header that carries it."""

    key: Secret
    header: str = "x-api-key"
    expires_in: float | None = None

    def http_headers(self) -> dict[str, str]:
        """The header that shows it, revealed: to be sent, and nothing else."""
        return {self.header: self.key.reveal()}


@dataclass(frozen=True, slots=True)
class Basic:
    """A user name and password."""

    username: str
    password: Secret
    expires_in: float | None = None

    def http_headers(self) -> dict[str, str]:
        """The header that shows it, revealed: to be sent, and nothing else."""
        shown = base64.b64encode(f"{self.username}:{self.password.reveal()}".encode()).decode()
        return {"authorization": f"Basic {shown}"}


@dataclass(frozen=True, slots=True)
class Headers:
    """Headers to send as they are."""

    headers: Mapping[str, Secret]
    expires_in: float | None = None

    def http_headers(self) -> dict[str, str]:
        """The headers themselves, revealed: to be sent, and nothing else."""
        return {name: value.reveal() for name, value in self.headers.items()}


class SecretBytes:
    """A secret that is bytes. It neither prints nor serialises, and is not copied."""

    __slots__ = ("_value",)

    def __init__(self, value: bytes) -> None:
        self._value = value

    def reveal(self) -> bytes:
        """The bytes themselves."""
        return self._value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SecretBytes) and hmac.compare_digest(other._value, self._value)

    __hash__ = None  # type: ignore[assignment]  # a hash is of the value, and shows when it is the same

    def __repr__(self) -> str:
        return "<SecretBytes withheld>"

    def __format__(self, _: str) -> str:
        return repr(self)

    def __reduce_ex__(self, _: object) -> NoReturn:
        raise TypeError("A SecretBytes is not serialised.")


@dataclass(frozen=True, slots=True)
class Custom:
    """Named values that a provider defines."""

    values: Mapping[str, SecretBytes]
    expires_in: float | None = None


Credential = Bearer | ApiKey | Basic | Headers | Custom
"""A credential. Its secrets neither print nor serialise: `reveal` is the only way to them."""


@dataclass(frozen=True, slots=True)
class AuthorizationRequired:
    """A person must authorise the service first. An answer, not an error; only the caller learns where."""

    service: str


class Credentials(Mapping[str, Credential]):
    """The credentials of the tool's declared needs, by service, and a way to ask for others or for fresh ones."""

    def __init__(self, port: Port, pushed: Mapping[str, Credential]) -> None:
        self._port = port
        self._pushed = pushed

    def __getitem__(self, service: str) -> Credential:
        try:
            return self._pushed[service]
        except KeyError:
            raise KeyError(
                f"{service} is none of the tool's needs: declare it by needs=, or await ctx.credentials.request."
            ) from None

    def __repr__(self) -> str:
        return f"<Credentials for {', '.join(self._pushed) or 'nothing'}>"

    def __iter__(self) -> Iterator[str]:
        return iter(self._pushed)

    def __len__(self) -> int:
        return len(self._pushed)

    async def request(
        self,
        service: str,
        *,
        scopes: Sequence[str] = (),
        mode: CredentialMode = CredentialMode.MACHINE,
        force_refresh: bool = False,
    ) -> Credential | AuthorizationRequired:
        """A credential, now. With `force_refresh` one that is remembered does not do, however good it looks.

        :raises RequestDenied: if this worker may not be issued it.
        :raises CredentialUnconfigured: if none is configured for the service, or not in this mode.
        :raises CredentialProviderDown: if the provider does not answer; the same may work in a moment.
        :raises CredentialRefused: if none is issued for another reason.
        :raises RequestRefused: as for every request.
        """
        asked = CredentialGet(service=service, scopes=scopes, force_refresh=force_refresh)
        asked.mode = mode.value  # type: ignore[assignment]  # the same numbers
        reply = await self._port.ask(OutboundRequest(credential_get=asked))
        answer = reply.credential.WhichOneof("answer")
        if answer == "issued":
            return read_credential(reply.credential.issued)
        if answer == "authorization_required":
            return AuthorizationRequired(reply.credential.authorization_required.service or service)
        raise _refusals.CredentialRefused(
            _refusals.ReplyCode.UNSUPPORTED, "The answer is of a kind that this SDK does not know."
        )


def write_credential(credential: Credential) -> context_pb2.Credential:
    """A message of the same, revealed. For whoever plays the sidecar."""
    message = context_pb2.Credential()
    if isinstance(credential, Bearer):
        message.bearer.token = credential.token.reveal()
    elif isinstance(credential, ApiKey):
        message.api_key.key, message.api_key.header = credential.key.reveal(), credential.header
    elif isinstance(credential, Basic):
        message.basic.username, message.basic.password = credential.username, credential.password.reveal()
    elif isinstance(credential, Headers):
        message.headers.headers.update({name: value.reveal() for name, value in credential.headers.items()})
    else:
        message.custom.values.update({name: value.reveal() for name, value in credential.values.items()})
    if credential.expires_in is not None:
        set_seconds(message.expires_in, credential.expires_in)
    return message


def read_credential(credential: context_pb2.Credential) -> Credential:
    """The same from a message.

    :raises CredentialRefused: if it is of a kind that is not known.
    """
    expires = seconds_of(credential.expires_in) if credential.HasField("expires_in") else None
    kind = credential.WhichOneof("kind")
    if kind == "bearer":
        return Bearer(Secret(credential.bearer.token), expires)
    if kind == "api_key":
        key = credential.api_key
        return ApiKey(Secret(key.key), key.header if key.HasField("header") else "x-api-key", expires)
    if kind == "basic":
        return Basic(credential.basic.username, Secret(credential.basic.password), expires)
    if kind == "headers":
        headers = credential.headers.headers
        return Headers({name: Secret(value) for name, value in headers.items()}, expires)
    if kind == "custom":
        return Custom({name: SecretBytes(value) for name, value in credential.custom.values.items()}, expires)
    raise _refusals.CredentialRefused(
        _refusals.ReplyCode.UNSUPPORTED, "The credential is of a kind that this SDK does not know."
    )
