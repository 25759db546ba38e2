"""Who may do what."""

from sidecar.policy.local import LocalPolicy
from sidecar.policy.port import Decision, Policy

__all__ = ("Decision", "LocalPolicy", "Policy")
