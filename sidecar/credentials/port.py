"""What is asked of a provider of credentials, and what it answers.

An answer is a closed union: a credential was issued, or a person must authorise the service first. All else is raised::

    CredentialFailed                 its text may reach a model: it quotes no secret and nothing of a vendor's
    ├── CredentialUnconfigured       there is none for this service, or not in this mode
    ├── CredentialDenied             the worker's grant does not hold it
    ├── CredentialRefused            the provider says no, or what is configured cannot be used
    └── ProviderDown                 the provider did not answer, or not so that it could be used: try again
"""

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol, runtime_checkable

from sidecar.credentials.secret import Secret
from sidecar.scope import Principal, Scope


class Mode(enum.IntEnum):
    """Whose credential. The numbers are those of the protocol."""

    MACHINE = 1
    """The worker's own."""
    USER = 2
    """The subject's."""


class Need(NamedTuple):
    """One credential that a tool needs."""

    service: str
    """As configuration names it."""
    scopes: tuple[str, ...] = ()
    """OAuth scopes. None: the provider's default."""
    mode: Mode = Mode.MACHINE


@dataclass(frozen=True, slots=True)
class Bearer:
    """A bearer token."""

    token: Secret[str]
    kind: Literal["bearer"] = "bearer"

    def secrets(self) -> Iterator[Secret[str]]:
        """What is secret of it."""
        yield self.token


@dataclass(frozen=True, slots=True)
class ApiKey:
    """An API key, and the header that carries it."""

    key: Secret[str]
    header: str | None = None
    """None: `x-api-key`."""
    kind: Literal["api_key"] = "api_key"

    def secrets(self) -> Iterator[Secret[str]]:
        """What is secret of it."""
        yield self.key


@dataclass(frozen=True, slots=True)
class Basic:
    """A user name and password."""

    username: str
    password: Secret[str]
    kind: Literal["basic"] = "basic"

    def secrets(self) -> Iterator[Secret[str]]:
        """What is secret of it."""
        yield self.password


@dataclass(frozen=True, slots=True)
class Headers:
    """Headers to send as they are."""

    headers: Mapping[str, Secret[str]]
    kind: Literal["headers"] = "headers"

    def secrets(self) -> Iterator[Secret[str]]:
        """What is secret of it."""
        return iter(self.headers.values())


@dataclass(frozen=True, slots=True)
class Custom:
    """Named values that a provider defines."""

    values: Mapping[str, Secret[bytes]]
    kind: Literal["custom"] = "custom"

    def secrets(self) -> Iterator[Secret[bytes]]:
        """What is secret of it."""
        return iter(self.values.values())


Credential = Bearer | ApiKey | Basic | Headers | Custom
"""A credential. Its secrets neither print nor serialise."""

Kind = Literal["bearer", "api_key", "basic", "headers", "custom"]
"""The kinds of credentials there are."""


@dataclass(frozen=True, slots=True)
class Issued:
    """A credential was issued."""

    credential: Credential
    expires_at: float | None = None
    """When it stops working, in seconds of the wall clock; `None` is not known."""


@dataclass(frozen=True, slots=True)
class AuthorizationRequired:
    """A person must authorise the service first. An answer, not an error."""

    service: str
    url: Secret[str]
    """Where the person does so. For the caller alone: who has it may authorise for this subject."""


Answer = Issued | AuthorizationRequired
"""What a provider answers."""


@dataclass(frozen=True, slots=True)
class Request:
    """One credential asked for, by a call of this scope."""

    scope: Scope
    """Whom it is for: tenant and subject address it, and nothing else of the scope does."""
    principal: Principal
    """The caller principal. It alone may complete an authorisation that this request begins."""
    need: Need
    force_refresh: bool = False
    """Whether one that is stored, and still looks good, must not do."""
    user_token: Secret[str] | None = field(default=None, compare=False)
    """The token by which the caller proved who the user is, where it did; never echoed."""
    execution: str | None = field(default=None, compare=False)
    """The execution that asks, for the record of it."""


NOT_BEGUN = (
    "That is not the answer to an authorisation that was begun here by this caller for this subject, or it came too "
    "late; ask for the credential again, and authorise at the address that then comes."
)
"""What whoever completes an authorisation is told, whatever is wrong with what they hand in."""


class CredentialFailed(Exception):
    """No credential. The text is one sentence that says what would work; it may reach a model."""

    retryable = False
    """Whether the same may work in a moment."""


class CredentialUnconfigured(CredentialFailed):
    """None is configured for this service, or not in this mode."""


class CredentialDenied(CredentialFailed):
    """The worker may not be issued it."""


class CredentialRefused(CredentialFailed):
    """The provider refuses, or what is configured cannot be used."""


class ProviderDown(CredentialFailed):
    """The provider did not answer in time, or not in a way that can be used."""

    retryable = True


class Provider(Protocol):
    """Issues the credentials of one configured service."""

    modes: frozenset[Mode]
    """Whose credentials it issues."""
    keeps_for: float
    """How long, in seconds, a credential that does not say when it expires may be remembered. 0: the provider is asked
    each time, whatever its credentials say."""
    takes_user_token: bool
    """Whether what it issues depends on the user's token."""

    async def issue(self, request: Request) -> Answer:
        """A credential for the scope's tenant and subject, from the source itself.

        Asked once at a time for the same tenant, subject, mode and scopes, and not cancelled by callers that leave.

        :raises CredentialFailed: if there is none.
        """
        ...


@runtime_checkable
class Consenting(Provider, Protocol):
    """A provider that a person authorises."""

    async def complete(self, scope: Scope, principal: Principal, callback: Mapping[str, str]) -> Need:
        """Takes what the person was sent back with, and answers what is issued from now on, synced on return.

        :raises CredentialFailed: if it answers no authorisation that this principal began for this subject.
        """
        ...
