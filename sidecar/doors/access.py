"""How a listener knows who connects."""

import hashlib
import hmac
import logging
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import grpc.aio

from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind
from sidecar.calls.outcome import Refusal
from sidecar.policy import Policy
from sidecar.scope import Principal, Scope, local_principal

_log = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]

NOBODY = Principal("nobody", authenticated=False)
"""Who is not known. No policy allows it anything."""

_SCHEME = "bearer "
_SPIFFE = re.compile(r"spiffe://[a-z0-9._-]{1,255}(?:/[a-zA-Z0-9._-]+)+")
_DNS = re.compile(r"(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?)(?:\.[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?)*\.?")
_LONGEST_NAME = 2_048


class Access(Protocol):
    """Whom a listener lets in."""

    refusal: str
    """What is said to who is not known."""

    def principal_of(self, context: Context) -> Principal | None:
        """Who is at the other end, by what the connection proves; `None`: nobody who is let in."""
        ...


class LocalAccess:
    """By a unix socket, which only those may open who are meant to: they are its owner."""

    refusal = ""

    def __init__(self) -> None:
        self._principal = local_principal(os.getuid())

    def principal_of(self, _context: Context) -> Principal | None:
        """The owner of the socket."""
        return self._principal


class InsecureAccess:
    """To whoever connects, whom nothing vouches for."""

    refusal = ""
    principal = Principal("insecure:loopback", authenticated=False)

    def principal_of(self, _context: Context) -> Principal | None:
        """Somebody."""
        return self.principal


class TokenAccess:
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
        shown = [value for key, value in context.invocation_metadata() or () if key == "authorization"]
        if len(shown) != 1 or not isinstance(shown[0], str) or not shown[0].lower().startswith(_SCHEME):
            return None
        digest = _digest(shown[0][len(_SCHEME) :].strip())
        found = None
        for known, name in self._digests:
            if hmac.compare_digest(known, digest):
                found = name
        return None if found is None else self._principals[found]


class CertificateAccess:
    """By certificates, which gRPC has checked already: they say who their holder is."""

    refusal = "The certificate names nobody: it needs a SPIFFE id or a DNS name as its subject's alternative name."

    def principal_of(self, context: Context) -> Principal | None:
        """Whom the certificate names."""
        return certified(context.auth_context())


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
