"""Credentials, as a tool gets them."""

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pillion import _refusals
from pillion._facts import Secret, seconds_of
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


@dataclass(frozen=True, slots=True)
class ApiKey:
    """An API key, and the header that carries it."""

    key: Secret
    header: str = "x-api-key"
    expires_in: float | None = None


@dataclass(frozen=True, slots=True)
class Basic:
    """A user name and password."""

    username: str
    password: Secret
    expires_in: float | None = None


@dataclass(frozen=True, slots=True)
class Headers:
    """Headers to send as they are."""

    headers: Mapping[str, Secret]
    expires_in: float | None = None


class SecretBytes:
    """A secret that is bytes. It neither prints nor serialises."""

    __slots__ = ("_value",)

    def __init__(self, value: bytes) -> None:
        self._value = value

    def reveal(self) -> bytes:
        """The bytes themselves."""
        return self._value

    def __repr__(self) -> str:
        return "<SecretBytes withheld>"

    def __reduce_ex__(self, _: object) -> str:
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
        return self._pushed[service]

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
        """A credential, now.

        :raises CredentialRefused: if none is issued.
        :raises RequestRefused: as for every request.
        """
        asked = CredentialGet(service=service, scopes=scopes, force_refresh=force_refresh)
        asked.mode = mode.value  # type: ignore[assignment]  # the same numbers
        reply = await self._port.ask(OutboundRequest(credential_get=asked))
        if reply.credential.WhichOneof("answer") == "issued":
            return read_credential(reply.credential.issued)
        return AuthorizationRequired(reply.credential.authorization_required.service or service)


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
