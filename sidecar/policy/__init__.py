"""Who may do what."""

from sidecar.policy.port import Decision, Policy
from sidecar.policy.static import Rule, StaticPolicy

__all__ = ("Decision", "Policy", "Rule", "StaticPolicy")
