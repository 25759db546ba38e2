"""The state of a sidecar at one moment, as its parts tell it to whoever measures."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class SetReading(NamedTuple):
    """One worker set."""

    name: str
    instances: Mapping[str, int]
    """How many there are in each state, by the word for it; states without any are there too."""
    slots: int
    """How many calls its instances run at once at most."""
    taken: int
    """How many of the slots are taken, leaked ones too."""
    leaked: int
    """How many are held by tools that ignored their cancel."""
    waiting: int
    """How many calls wait for a slot."""


class StreamsReading(NamedTuple):
    """The open streams, of callers and of workers."""

    open: int
    lingering: int
    """How many of them are given up, and wait for their peer to read or leave."""
    undelivered_bytes: int
    """What waits to be written, or is being written."""
    coalesced: int
    """Progress of streams that still run which gave way or was dropped. It is counted when a stream ends."""
    oversized: int
    """Progress of streams that still run which was too large to be sent on, likewise."""


class Reading(NamedTuple):
    """All of it."""

    in_flight: int
    """Calls without an outcome."""
    tools: int
    """Tools in the catalogue."""
    generation: int
    """Of the catalogue."""
    tasks: int
    """Of the event loop."""
    scopes: int
    """Runs and sessions that a call is in, or that something is kept for, and calls with something of their own."""
    registrations: int
    """Cleanups that wait for an end."""
    sets: Sequence[SetReading]
    streams: StreamsReading
    lost_log_lines: int
    """Lines of the sidecar's log that nobody read in time."""
