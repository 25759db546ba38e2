"""What is measured of the sidecar on the way, and the line through it."""

import time
from collections.abc import Sequence
from typing import NamedTuple

import psutil

_MIB = 1 << 20


class Reading(NamedTuple):
    """The sidecar's process at one moment."""

    seconds: float
    """Since the soak began."""
    rss_mib: float
    threads: int
    files: int
    cpu_seconds: float
    zombies: frozenset[int]
    """Ended processes below the sidecar that nobody has waited for."""


class Readings:
    """All readings, in order."""

    def __init__(self, pid: int) -> None:
        self.all: list[Reading] = []
        self.lasting_zombies: set[int] = set()
        """Those that were there at two readings in a row."""
        self._process = psutil.Process(pid)
        self._began = time.monotonic()

    def take(self) -> Reading:
        """Takes one."""
        process = self._process
        with process.oneshot():
            times = process.cpu_times()
            reading = Reading(
                time.monotonic() - self._began,
                process.memory_info().rss / _MIB,
                process.num_threads(),
                process.num_fds(),
                times.user + times.system,
                frozenset(self._zombies()),
            )
        if self.all:
            self.lasting_zombies |= reading.zombies & self.all[-1].zombies
        self.all.append(reading)
        return reading

    def _zombies(self) -> list[int]:
        found = []
        for child in self._process.children(recursive=True):
            try:
                if child.status() == psutil.STATUS_ZOMBIE:
                    found.append(child.pid)
            except psutil.NoSuchProcess:
                continue
        return found

    def growth_per_second(self, skip: float) -> float:
        """The slope of the line through the memory readings, without those of the first share, in MiB a second."""
        rest = [reading for reading in self.all if reading.seconds >= skip * self.all[-1].seconds]
        return slope([reading.seconds for reading in rest], [reading.rss_mib for reading in rest])


def slope(xs: Sequence[float], ys: Sequence[float]) -> float:
    """The slope of the line of least squares through points; 0 where they do not tell one."""
    count = len(xs)
    if count < 2:
        return 0.0
    mean_x, mean_y = sum(xs) / count, sum(ys) / count
    spread = sum((x - mean_x) ** 2 for x in xs)
    return sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread if spread else 0.0
