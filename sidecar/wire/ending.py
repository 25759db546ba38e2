"""Why the sidecar ended a stream."""

from enum import Enum, auto
from typing import NamedTuple


class EndingReason(Enum):
    """Why the sidecar, and not the peer, ended a stream."""

    UNAUTHENTICATED = auto()
    """The peer is not who it says."""
    PROTOCOL = auto()
    """The peer broke the protocol before anything could be started."""
    QUARANTINED = auto()
    """The peer hangs, or sends what cannot be read."""
    STALLED = auto()
    """The peer stopped reading."""
    FULL = auto()
    """There is no room for another stream."""


class Ending(NamedTuple):
    """What the peer is told."""

    reason: EndingReason
    message: str
    """A sentence that says what would work."""
