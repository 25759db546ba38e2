"""The policy of a sidecar without rules: the local user may do everything, nobody else anything."""

from collections.abc import Collection

from sidecar.policy.port import Decision
from sidecar.scope import Principal, Scope

_ALLOWED = Decision(allowed=True, listed=True)
_DENIED = Decision(allowed=False, listed=False)


class LocalPolicy:
    """Allows the named principals every tool, for every tenant and subject."""

    def __init__(self, allowed: Collection[str]) -> None:
        self._allowed = frozenset(allowed)

    def decide(self, principal: Principal, scope: Scope, tool: str) -> Decision:  # noqa: ARG002  # the port's signature; this policy has no rules
        """Whether this principal may act for this tenant and subject, with this tool."""
        return _ALLOWED if principal.name in self._allowed else _DENIED
