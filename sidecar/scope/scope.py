"""Whom stored things belong to."""

from typing import NamedTuple

from sidecar._gen.pillion.v1.context_pb2 import Identity
from sidecar.scope.principal import Principal

_NAMED = "named:"
_CALLER = "caller:"


class Scope(NamedTuple):
    """The storage scope of a call: the first argument of everything that stores.

    Always whole, and made by the sidecar alone. Two scopes are equal exactly when tenant, subject and place are; the
    encodings are injective, so a named subject never equals one that stands for a caller principal, and a session never
    equals a run of the same name.
    """

    tenant: str | None
    """The customer as the caller named it; `None` where none was named, which no name equals."""
    subject: str
    """The named principal, or the reserved encoding of the caller principal where none was named."""
    place: str
    """Conversation, else session, else run, else execution."""

    @property
    def owner(self) -> tuple[str | None, str]:
        """Tenant and subject: what limits, idempotency keys and tickets are bound to."""
        return (self.tenant, self.subject)


def scope_of(
    caller: Principal,
    identity: Identity | None,
    session_id: str | None,
    run_id: str | None,
    execution_id: str,
) -> Scope:
    """The storage scope of a call with these facts. Empty texts inside an identity read as absent, as do empty ids."""
    if identity is None:
        tenant = None
        subject = _CALLER + caller.name
        conversation = ""
    else:
        tenant = identity.tenant or None
        subject = _NAMED + identity.principal if identity.principal else _CALLER + caller.name
        conversation = identity.conversation_id
    if conversation:
        place = "conversation:" + conversation
    elif session_id:
        place = "session:" + session_id
    elif run_id:
        place = "run:" + run_id
    else:
        place = "execution:" + execution_id
    return Scope(tenant, subject, place)
