"""Where a call stands."""

from enum import Enum, auto
from typing import Final


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


# An enumeration looks its members up in Python, and a call asks often.
GATES: Final = CallState.GATES
WAITING: Final = CallState.WAITING
RUNNING: Final = CallState.RUNNING
CANCELLING: Final = CallState.CANCELLING
JOINED: Final = CallState.JOINED
SETTLING: Final = CallState.SETTLING
DONE: Final = CallState.DONE

ENDED: Final = (SETTLING, DONE)
"""Its tool runs no more, and how it ends is known."""
NEEDING: Final = (GATES, RUNNING, CANCELLING)
"""It may need what only its caller can give."""
BOUNDED: Final = (WAITING, CANCELLING, SETTLING)
"""It stands there at most until a time of that state's own."""
