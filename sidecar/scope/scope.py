"""Whom stored things belong to."""

from typing import NamedTuple

from sidecar._gen.pillion.v1.context_pb2 import Identity

_NAMED = "named:"
_CALLER = "caller:"
_PLACES = ("conversation:", "session:", "run:", "execution:")


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
    caller_principal: str,
    identity: Identity | None,
    session_id: str | None,
    run_id: str | None,
    execution_id: str,
) -> Scope:
    """The storage scope of a call with these facts. Empty texts inside an identity read as absent."""
    tenant = identity.tenant or None if identity is not None else None
    principal = identity.principal if identity is not None else ""
    subject = _NAMED + principal if principal else _CALLER + caller_principal
    conversation = identity.conversation_id if identity is not None else ""
    facts = (conversation, session_id, run_id, execution_id)
    place = next(kind + fact for kind, fact in zip(_PLACES, facts, strict=True) if fact)
    return Scope(tenant, subject, place)
