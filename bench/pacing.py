"""Open-loop load: calls go out at a fixed rate whether or not earlier ones were answered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

from bench.control import Answer, quantile

Lane = TypeVar("Lane")


class Schedule:
    """When the calls of one lane are due."""

    def __init__(self, first: float, interval: float, calls: int) -> None:
        self.calls = calls
        self._first = first
        self._interval = interval

    async def begins(self) -> AsyncIterator[float]:
        """From when each call's time runs, as soon as that has come.

        That is when it can be begun, or when it was due if the lane was still busy with an earlier one: a peer that
        stops taking messages cannot hide it by slowing the load. (The loop's timers tick in milliseconds, so a wake-up
        itself is up to one late, which is not counted.)
        """
        clock = time.perf_counter
        for number in range(self.calls):
            at = self._first + number * self._interval
            if (wait := at - clock()) > 0:
                await asyncio.sleep(wait)
                at = clock()
            yield at


async def paced(
    lanes: Sequence[Lane],
    drive: Callable[[Lane, Schedule, list[float]], Awaitable[None]],
    per_second: float,
    seconds: float,
) -> Answer:
    """`per_second` calls in all, spread evenly over `lanes`, for `seconds`; the first tenth is warm-up.

    `drive` begins a lane's calls by its schedule, and adds how long each took to the list.
    """
    interval = len(lanes) / per_second
    took: list[float] = []
    begin = time.perf_counter()
    schedules = [
        Schedule(begin + interval * number / len(lanes), interval, int(seconds / interval))
        for number in range(len(lanes))
    ]
    await asyncio.gather(*(drive(lane, schedule, took) for lane, schedule in zip(lanes, schedules, strict=True)))
    took = took[len(took) // 10 :]
    return {
        "calls": len(took),
        "p50_ms": quantile(took, 0.5) * 1e3,
        "p99_ms": quantile(took, 0.99) * 1e3,
        "max_ms": max(took) * 1e3,
    }
