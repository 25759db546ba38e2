"""What a teardown scope is known by, and the digest that stands for it outside the sidecar."""

import hashlib
import hmac
from typing import NamedTuple

from sidecar._gen.pillion.v1.context_pb2 import TeardownScope
from sidecar.scope.scope import Owner

_DIGITS = 12
_SIZE = 32


class ScopeKey(NamedTuple):
    """One teardown scope: of a tenant and subject, and a fact of their calls. Never seen outside the sidecar."""

    kind: "TeardownScope.ValueType"
    owner: Owner
    fact: str
    """The run, the session or the execution; empty for what lasts until the sidecar stops."""

    def digest(self, secret: bytes) -> str:
        """Twelve hexadecimal digits that stand for it, and tell nobody without the secret what of."""
        tenant = "none" if self.owner.tenant is None else "tenant:" + self.owner.tenant
        mac = hmac.new(secret, digestmod=hashlib.blake2b)
        for part in (str(self.kind), tenant, self.owner.subject, self.fact):
            encoded = part.encode()
            # With its length before it no part runs into the next.
            mac.update(len(encoded).to_bytes(_SIZE // 8, "big") + encoded)
        return mac.hexdigest()[:_DIGITS]
