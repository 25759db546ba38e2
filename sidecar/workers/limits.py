"""The bounds of workers."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """Bounds of workers. Times are in seconds."""

    ping_interval: float = 10.0
    """How often an instance is pinged; one that misses three is given up."""
    reattach_window: float = 60.0
    """How long a lost instance may come back as itself."""
    unlist_after: float = 60.0
    """How long a tool stays listed without an instance."""
    hello_within: float = 10.0
    """How long a new stream may take to present itself."""
    drain: float = 30.0
    """How long a draining instance has."""
    concurrency: int = 64
    """Calls at once of an instance that does not say."""
    nested_headroom: int = 64
    """Calls at once of an instance, beside those, that other calls have made and wait for."""
    most_concurrency: int = 65_536
    """What an instance may say at most."""
    most_tools: int = 1_024
    """How many tools an instance may bring."""
    attach_within: float = 30.0
    """How long a started process may take to attach, and to come back when its stream is lost."""
    restart_first: float = 0.1
    """The base of the pause before a process that ended is started again; it doubles with every failure in a row."""
    restart_at_most: float = 30.0
    """The longest such pause. The pause itself is drawn at random between none and this."""
    steady_after: float = 60.0
    """A process that lasted so long is not counted as failing."""
    stop_grace: float = 5.0
    """How long a process has to end when it is asked to, before it is killed."""
    log_lines_per_second: int = 1_000
    """How many lines an instance may log a second; further ones are dropped and counted."""
    strikes: int = 2
    """How many unreadable messages before an instance is given up."""
