"""What a teardown scope is known by, and the digest that stands for it outside the sidecar."""

import hashlib
from functools import lru_cache
from typing import NamedTuple

from sidecar._gen.pillion.v1.context_pb2 import TeardownScope
from sidecar.scope.scope import Owner

_RUN = TeardownScope.TEARDOWN_SCOPE_RUN
_SESSION = TeardownScope.TEARDOWN_SCOPE_SESSION
_DIGEST_BYTES = 6
_LENGTH_BYTES = 4
_REMEMBERED = 1_024
_NOBODY = Owner(None, "")

LASTING = {_RUN: "run_id", _SESSION: "session_id"}
"""The scopes that end when the caller says so, and grow cold; each with the fact of a call that it goes by."""


class ScopeKey(NamedTuple):
    """One teardown scope: of a tenant and subject, and a fact of their calls. Never seen outside the sidecar."""

    kind: "TeardownScope.ValueType"
    owner: Owner
    fact: str
    """The run, the session or the execution; empty for what lasts until the sidecar stops."""

    def digest(self, secret: bytes) -> str:
        """Twelve hexadecimal digits that stand for it; the secret, of at most 64 bytes, keeps others from guessing."""
        return _digest(self, secret)


UNTIL_THE_STOP = ScopeKey(TeardownScope.TEARDOWN_SCOPE_SHUTDOWN, _NOBODY, "")
"""The one scope that ends with the sidecar. It is nobody's: what is kept for it is kept for all."""


def call_scope(owner: Owner, execution_id: str) -> ScopeKey:
    """The scope of one call, by its execution: by the first of them where it has paused."""
    return ScopeKey(TeardownScope.TEARDOWN_SCOPE_CALL, owner, execution_id)


def lasting_scopes(owner: Owner, run_id: str | None, session_id: str | None) -> list[ScopeKey]:
    """The scopes of a run and a session, where there are any."""
    keys = []
    if run_id:
        keys.append(ScopeKey(_RUN, owner, run_id))
    if session_id:
        keys.append(ScopeKey(_SESSION, owner, session_id))
    return keys


@lru_cache(_REMEMBERED)
def _digest(key: ScopeKey, secret: bytes) -> str:
    tenant, subject = key.owner
    mac = hashlib.blake2b(key=secret, digest_size=_DIGEST_BYTES)
    for part in (str(key.kind), "none" if tenant is None else "tenant:" + tenant, subject, key.fact):
        encoded = part.encode()
        # With its length before it no part runs into the next.
        mac.update(len(encoded).to_bytes(_LENGTH_BYTES, "big") + encoded)
    return mac.hexdigest()
