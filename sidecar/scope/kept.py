"""What outlives the sidecar of its live scopes: the instances that keep something, the cleanups and the pins."""

import hashlib
import hmac
from typing import NamedTuple

from sidecar._gen.pillion.v1.context_pb2 import TeardownReason
from sidecar.scope.keys import ScopeKey
from sidecar.scope.registrations import Registration


class KeptInstance(NamedTuple):
    """An instance that keeps something."""

    worker: str
    """The worker set that it is of."""
    id: str
    digest: bytes
    """Of the secret that it may come back with: see `digest_of_secret`. Nothing else is known of that."""
    returns: bool
    """Whether it may come back after the sidecar has ended: what the sidecar itself had started ends with it."""

    def knows(self, secret: str) -> bool:
        """Whether this is its secret. Takes the same time for each wrong one."""
        return hmac.compare_digest(self.digest, digest_of_secret(secret))


class KeptRegistration(NamedTuple):
    """A cleanup that was acknowledged, and of which was not heard that it is over."""

    registration: Registration
    reason: "TeardownReason.ValueType | None"
    """Why it was to fire; `None`: it was not. One that was claimed may have run."""


class KeptPin(NamedTuple):
    """A scope that is pinned to an instance."""

    key: ScopeKey
    worker: str
    instance_id: str


class Kept(NamedTuple):
    """All that was kept."""

    instances: tuple[KeptInstance, ...] = ()
    registrations: tuple[KeptRegistration, ...] = ()
    """Oldest first."""
    pins: tuple[KeptPin, ...] = ()


def digest_of_secret(secret: str) -> bytes:
    """What stands for a secret where it is stored."""
    return hashlib.sha256(secret.encode(errors="surrogatepass")).digest()
