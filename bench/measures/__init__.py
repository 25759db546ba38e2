"""The measurements, each in a module named after what it measures.

A measurement takes `Rounds` and returns what it found: the values of figures by name, and beside them the numbers that
a reader needs to judge those.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Rounds:
    """How to measure: medians of `count` rounds of `seconds` each, through the SDK or with bare peers."""

    count: int
    seconds: float
    bare: bool = False


@dataclass(slots=True)
class Found:
    """Values of figures, and the numbers behind them."""

    figures: dict[str, float] = field(default_factory=dict)
    behind: dict[str, float] = field(default_factory=dict)


def median(values: Iterable[float]) -> float:
    """The median of `values`."""
    return float(statistics.median(values))


def say(text: str) -> None:
    """Prints a line of progress at once."""
    print(f"  {text}", flush=True)
