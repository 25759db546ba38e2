"""What the sidecar tells of itself."""

from sidecar.telemetry.counters import Counters
from sidecar.telemetry.durations import Durations

__all__ = ("Counters", "Durations")
