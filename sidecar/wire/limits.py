"""The bounds of a stream of frames."""

from dataclasses import dataclass

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True)
class WireLimits:
    """Bounds of one stream. Sizes are in bytes, times in seconds."""

    max_frame_bytes: int = MIB
    """The largest frame; a larger one is refused alone, as a failure of its call."""
    max_inline_bytes: int = 64 * KIB
    """The largest payload that rides inside a frame: progress, inline artifacts, bus messages."""
    envelope_bytes: int = 16 * KIB
    """What stamps and a call's context may add to a frame that came at the limit."""
    max_message_bytes: int = 16 * MIB
    """The largest message; a larger one is refused whole, and each of its calls with it."""
    message_bytes: int = 256 * KIB
    """A writer closes a message here; a single larger frame rides alone."""
    message_frames: int = 256
    """A writer closes a message at this many frames."""
    turn_bytes: int = 64 * KIB
    """What a lane earns each turn towards its next frames."""
    turn_frames: int = 8
    """How many frames a lane writes in a turn at most."""
    frames_per_turn: int = 256
    """A reader hands on this many frames before others get the event loop."""
    bytes_per_turn: int = 256 * KIB
    """And about this many bytes of them."""
    progress_kept: int = 32
    """Undelivered progress frames kept a call."""
    undelivered_soft: int = 8 * MIB
    """Over this, new starts are refused and one progress frame a call is kept."""
    undelivered_hard: int = 64 * MIB
    """Over this, progress is dropped, large outcomes are refused, and nothing more is read from the peer."""
    stall_after: float = 60.0
    """A write that takes longer ends the stream's calls and drops its queue."""
    control_kept: int = 256
    """Undelivered answers on call 0 (pongs, stream errors) before further ones are dropped."""
