"""How late the event loop is."""

import asyncio
import time
from collections.abc import Callable

from sidecar.telemetry.durations import Durations

_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


class LoopLag:
    """A histogram of how much later than it asked for a timer of the event loop fires."""

    def __init__(self, interval: float = 0.25, clock: Callable[[], float] = time.perf_counter) -> None:
        self.durations = Durations(_BOUNDS)
        self._interval = interval
        # Not the loop's own clock: that of uvloop ticks in milliseconds, and stands still within a turn.
        self._clock = clock

    async def run(self) -> None:
        """Measures once an interval, until cancelled."""
        while True:
            began = self._clock()
            await asyncio.sleep(self._interval)
            self.durations.add(max(self._clock() - began - self._interval, 0.0))
