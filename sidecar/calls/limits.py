"""The bounds of calls."""

from dataclasses import dataclass

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True)
class CallLimits:
    """Bounds of calls. Times are in seconds, sizes in bytes."""

    timeout: float = 60.0
    """The absolute timeout where neither caller nor tool names one."""
    cancel_grace: float = 2.0
    """How long a cancelled tool has to end by itself."""
    teardown_grace: float = 5.0
    """How long what follows the tool's end may take before the outcome goes out without it."""
    worker_wait: float = 5.0
    """How long a call waits for a free instance."""
    waiting_per_set: int = 1_024
    """How many calls wait for one worker set."""
    in_flight_per_stream: int = 1_024
    """How many calls one caller's stream may have at once."""
    in_flight_per_subject: int = 1_024
    """How many calls one tenant's subject may have at once."""
    human_timeout: float = 600.0
    """How long people may take to answer, in all, in a call whose caller names no time for them."""
    nesting_depth: int = 8
    """How deep calls may be made by calls; 0: not at all."""
    pause_lifetime: float = 24 * 3_600.0
    """How long a paused call may wait for its answer."""
    paused_per_subject: int = 1_024
    """How many calls one tenant's subject may have paused."""
    open_requests: int = 64
    """How many requests a running tool may have open at once."""
    large_outcome: int = 64 * KIB
    """What an outcome may have while its stream is overfull."""
    detach_retention: float = 600.0
    """How long a detached call can be followed after its outcome."""
    detached_per_subject: int = 1_024
    """How many detached calls one tenant's subject may have, those that ended and can still be followed among them."""
    detached_frames: int = 256
    """How many frames of a detached call are kept for who follows it later; older ones give way."""
    detached_bytes: int = MIB
    """How much they may have in all of one call."""
    detached_bytes_in_all: int = 64 * MIB
    """How much the kept frames and outcomes of all detached calls may have in memory."""
