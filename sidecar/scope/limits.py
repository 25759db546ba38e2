"""The bounds of teardown scopes."""

from dataclasses import dataclass

KIB = 1024


@dataclass(frozen=True, slots=True)
class ScopeLimits:
    """Bounds of runs and sessions, and of what tools keep for their ends. Times are in seconds, sizes in bytes."""

    idle: float = 15 * 60.0
    """How long a run or session that something is kept for may go without a call before its cleanups run."""
    live: int = 64
    """How many runs and sessions of a tenant a worker set may keep something for; beyond them the coldest give way."""
    registrations_per_instance: int = 4_096
    """How many cleanups an instance may have registered at once."""
    registrations_per_scope: int = 256
    """How many cleanups may be registered for the end of one call, run or session, or of the sidecar."""
    cleanup_arguments: int = 64 * KIB
    """What the arguments of a cleanup call may have."""
    cleanup_patience: float = 60.0
    """How long a cleanup call is tried again while no instance can take it."""
