"""How long things took, in buckets."""

from bisect import bisect_left
from collections.abc import Sequence


class Durations:
    """A histogram of seconds with fixed bounds."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float] = (0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0, 600.0)) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        """How many fell at or under each bound and over the one before; the last counts the rest."""
        self.total = 0.0

    def add(self, seconds: float) -> None:
        """Counts one duration."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.total += seconds
