"""Whom stored things belong to."""

from functools import lru_cache
from typing import Final, NamedTuple

from sidecar._gen.pillion.v1.context_pb2 import Identity
from sidecar.scope.principal import Principal

_NAMED: Final = "named:"
_CALLER: Final = "caller:"
_REMEMBERED: Final = 1_024


class Owner(NamedTuple):
    """Tenant and subject: what limits, idempotency keys and tickets are bound to."""

    tenant: str | None
    """The customer as the caller named it; `None` where none was named, which no name equals."""
    subject: str
    """The named principal, or the reserved encoding of the caller principal where none was named."""

    @property
    def named(self) -> str | None:
        """The subject as the caller named it; `None` where none was named."""
        return self.subject.removeprefix(_NAMED) if self.subject.startswith(_NAMED) else None


class Scope(NamedTuple):
    """The storage scope of a call: the first argument of everything that stores.

    Always whole, and made by the sidecar alone. Two scopes are equal exactly when tenant, subject and place are; the
    encodings are injective, so a named subject never equals one that stands for a caller principal, and a session never
    equals a run of the same name.
    """

    owner: Owner
    place: str
    """Conversation, else session, else run, else execution."""

    @property
    def tenant(self) -> str | None:
        """The owner's tenant."""
        return self.owner.tenant

    @property
    def subject(self) -> str:
        """The owner's subject."""
        return self.owner.subject


def scope_of(
    caller: Principal,
    identity: Identity | None,
    session_id: str | None,
    run_id: str | None,
    execution_id: str,
) -> Scope:
    """The storage scope of a call with these facts. Empty texts inside an identity read as absent, as do empty ids."""
    if identity is None:
        owner = _owner(caller.name, None, None)
        conversation = ""
    else:
        owner = _owner(caller.name, identity.tenant or None, identity.principal or None)
        conversation = identity.conversation_id
    if conversation:
        return Scope(owner, "conversation:" + conversation)
    if session_id:
        return Scope(owner, "session:" + session_id)
    if run_id:
        return Scope(owner, "run:" + run_id)
    return Scope(owner, "execution:" + execution_id)


@lru_cache(_REMEMBERED)
def _owner(caller: str, tenant: str | None, principal: str | None) -> Owner:
    return Owner(tenant, _CALLER + caller if principal is None else _NAMED + principal)
