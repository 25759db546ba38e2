"""One cleanup that a tool has registered for the end of a scope."""

from typing import NamedTuple

from sidecar._gen.pillion.v1.context_pb2 import TeardownScope
from sidecar.scope.keys import ScopeKey
from sidecar.scope.principal import Principal


class CleanupCall(NamedTuple):
    """What is run when the instance that registered a cleanup is gone."""

    tool: str
    arguments: bytes
    caller: Principal
    """Who had the registering call made: the cleanup may do what that may."""


class Address(NamedTuple):
    """What a registration is known by: the same again is the same registration."""

    key: ScopeKey
    instance_id: str
    tool: str
    name: str | None


class Registration:
    """A cleanup that an instance keeps for the end of a scope. It fires at most once."""

    __slots__ = ("address", "cleanup", "count", "id", "is_stored", "label", "worker")

    def __init__(
        self,
        registration_id: str,
        address: Address,
        worker: str,
        label: str | None = None,
        cleanup: CleanupCall | None = None,
    ) -> None:
        self.id = registration_id
        self.address = address
        self.worker = worker
        """The worker set that the instance is of."""
        self.label = label
        """A name for people."""
        self.cleanup = cleanup
        self.count = 1
        """How often it was registered."""
        self.is_stored = address.key.kind != TeardownScope.TEARDOWN_SCOPE_CALL
        """Whether the store knows of it, or is about to: it outlasts its call, or its call has paused."""

    @property
    def key(self) -> ScopeKey:
        """The scope."""
        return self.address.key

    @property
    def instance_id(self) -> str:
        """The instance that keeps the cleanup."""
        return self.address.instance_id
