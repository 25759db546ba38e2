"""What is asked of policy."""

from typing import NamedTuple, Protocol

from sidecar.scope import Principal, Scope


class Decision(NamedTuple):
    """What policy says of one call."""

    allowed: bool
    """Whether it may run."""
    listed: bool
    """Whether the caller may know of the tool."""


class Policy(Protocol):
    """Who may do what. An exception denies."""

    def decide(self, principal: Principal, scope: Scope, tool: str) -> Decision:
        """Whether this principal may act for this tenant and subject, with this tool."""
        ...

    def admits(self, principal: Principal, scope: Scope) -> bool:
        """Whether this principal may act for this tenant and subject at all, whatever it is about."""
        ...
