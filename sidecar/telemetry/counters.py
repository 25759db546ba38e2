"""Counts of what happened, by name."""

from collections import defaultdict
from collections.abc import Mapping


class Counters:
    """Numbers that only grow, since the process started. Names are words of the code, so their number is bounded."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: defaultdict[str, int] = defaultdict(int)

    def add(self, name: str, count: int = 1) -> None:
        """Counts something that happened."""
        self._counts[name] += count

    def __getitem__(self, name: str) -> int:
        return self._counts.get(name, 0)

    def snapshot(self) -> Mapping[str, int]:
        """All counts at this moment."""
        return dict(self._counts)
