"""Where a call stands."""

from enum import Enum, auto


class CallState(Enum):
    """Where a call stands. `docs/protocol.md` has the diagram."""

    GATES = auto()
    """In the gates, or waiting for what they need."""
    WAITING = auto()
    """Waiting for a tool's worker, or for a free slot of one."""
    RUNNING = auto()
    """Given to an instance."""
    CANCELLING = auto()
    """Its end is decided, and the tool was asked to stop."""
    JOINED = auto()
    """Follows another call with the same idempotency key."""
    SETTLING = auto()
    """Its tool has ended: a large result is being put, the outcome recorded."""
    DONE = auto()
    """Its outcome was sent."""
