"""How a listener knows who connects."""

import hashlib
import hmac
import logging
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import grpc
import grpc.aio

from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind
from sidecar.calls.outcome import Refusal
from sidecar.policy import Policy
from sidecar.scope import Principal, Scope, local_principal
from sidecar.telemetry import Counters

_log = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]

NOBODY = Principal("nobody", authenticated=False)
"""Who is not known. No policy allows it anything."""

EXPIRED = "The token that this stream was opened with has expired; open another one, with a newer token."
"""What is said on a stream from when what its peer has shown expires."""

_SCHEME = "bearer "
_SPIFFE = re.compile(r"spiffe://[a-z0-9._-]{1,255}(?:/[a-zA-Z0-9._-]+)+")
_DNS = re.compile(r"(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?)(?:\.[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?)*\.?")
_LONGEST_NAME = 2_048


class TurnedAway(NamedTuple):
    """Why somebody is not let in."""

    message: str
    """What would do. It quotes nothing that was shown."""
    code: grpc.StatusCode = grpc.StatusCode.UNAUTHENTICATED


class Access(ABC):
    """Whom a listener lets in."""

    refusal = ""
    """What is said to who is not known."""

    @abstractmethod
    def principal_of(self, context: Context) -> Principal | None:
        """Who is at the other end, by what the connection proves; `None`: nobody who is let in."""

    async def turned_away(self, context: Context) -> TurnedAway | None:
        """Why who is at the other end is not let in; `None`: it is. Asked before anything else of an RPC."""
        return None if self.principal_of(context) is not None else TurnedAway(self.refusal)

    def expiry_of(self, _context: Context) -> float | None:
        """When what was shown expires, in seconds since the Unix epoch; `None`: it does not while the RPC lasts."""
        return None

    def renew(self, other: Any) -> None:  # noqa: B027  # some have nothing that could be renewed
        """Takes over what another one of its kind goes by. Streams that are open stay so."""

    async def run(self, counters: Counters) -> None:  # noqa: B027  # most are told by the settings alone
        """Keeps what it goes by up to date until cancelled, where that changes by itself."""


def bearer_of(context: Context) -> str | None:
    """The one token that is shown; `None` where there is none, or more."""
    shown = [value for key, value in context.invocation_metadata() or () if key == "authorization"]
    if len(shown) != 1 or not isinstance(shown[0], str) or not shown[0].lower().startswith(_SCHEME):
        return None
    return shown[0][len(_SCHEME) :].strip()


class LocalAccess(Access):
    """By a unix socket, which only those may open who are meant to: they are its owner."""

    def __init__(self) -> None:
        self._principal = local_principal(os.getuid())

    def principal_of(self, _context: Context) -> Principal | None:
        """The owner of the socket."""
        return self._principal


class InsecureAccess(Access):
    """To whoever connects, whom nothing vouches for."""

    principal = Principal("insecure:loopback", authenticated=False)

    def principal_of(self, _context: Context) -> Principal | None:
        """Somebody."""
        return self.principal


class TokenAccess(Access):
    """By tokens, each of a name. They are kept as digests alone."""

    refusal = "Show a token that this listener knows, as metadata: authorization: Bearer TOKEN."

    def __init__(self, tokens: Mapping[str, Iterable[str]]) -> None:
        self._digests = tuple((_digest(token), name) for name, many in tokens.items() for token in many)
        self._principals = {name: Principal(f"token:{name}", authenticated=True) for name in tokens}

    def renew(self, other: "TokenAccess") -> None:
        """Takes over the other's tokens for its own. Streams that are open stay so."""
        self._digests, self._principals = other._digests, other._principals  # noqa: SLF001  # of the same class

    def principal_of(self, context: Context) -> Principal | None:
        """The one whose token is shown. Takes the same time whichever it is, and for each that is none."""
        token = bearer_of(context)
        if token is None:
            return None
        digest = _digest(token)
        found = None
        for known, name in self._digests:
            if hmac.compare_digest(known, digest):
                found = name
        return None if found is None else self._principals[found]


class CertificateAccess(Access):
    """By certificates, which gRPC has checked already: they say who their holder is."""

    refusal = "The certificate names nobody: it needs a SPIFFE id or a DNS name as its subject's alternative name."

    def principal_of(self, context: Context) -> Principal | None:
        """Whom the certificate names."""
        return certified(context.auth_context())


def tell_expired(context: Context) -> None:
    """Ends an RPC that goes on beyond what its peer has shown; its handler must return now."""
    # An abort would wait behind what the peer has not read.
    context.set_code(grpc.StatusCode.UNAUTHENTICATED)
    context.set_details(EXPIRED)


def check_admitted(policy: Policy, principal: Principal, scope: Scope) -> None:
    """Goes on if this principal may act for the scope's tenant and subject.

    :raises Refusal: if not, or if policy cannot say.
    """
    try:
        is_admitted = policy.admits(principal, scope)
    except Exception as error:  # noqa: BLE001  # one that fails denies
        _log.error("policy failed", exc_info=error)
        is_admitted = False
    if not is_admitted:
        raise Refusal(
            FailureKind.FAILURE_KIND_DENIED,
            "This caller may not act for this tenant and subject; the rules say who.",
        )


def certified(facts: Mapping[str, Iterable[bytes]]) -> Principal | None:
    """The principal that a checked certificate names: `spiffe://…` as it is, else `mtls:` and its first DNS name.

    No two names become the same principal. A certificate with a SPIFFE id has no other URI beside it, as SPIFFE has it;
    one that has is not taken. Names of many, with a `*`, and other kinds of names are passed over.
    """
    uris = [_text(value) for value in facts.get("peer_uri", ())]
    if any(uri.lower().startswith("spiffe:") for uri in uris):
        (uri, *more) = uris
        steps = set(uri.split("/"))
        taken = not more and len(uri) <= _LONGEST_NAME and _SPIFFE.fullmatch(uri) and steps.isdisjoint((".", ".."))
        return Principal(uri, authenticated=True) if taken else None
    for value in facts.get("peer_dns", ()):
        name = _text(value).lower()
        if len(name) <= _LONGEST_NAME and _DNS.fullmatch(name):
            return Principal(f"mtls:{name.removesuffix('.')}", authenticated=True)
    return None


def _text(value: bytes) -> str:
    return value.decode("ascii", "replace")


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
