"""Open-loop load: calls go out at a fixed rate whether or not earlier ones were answered."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

from bench.control import Answer, quantile


class Lane(Protocol):
    """One stream of a paced load. One coroutine writes to it and another reads from it."""

    def message(self) -> tuple[int, bytes]:
        """The next call's id and what starts it."""

    async def write(self, message: bytes) -> None:
        """Hands a message to gRPC."""

    async def results(self) -> list[int]:
        """The ids of the calls that the next message ends."""


async def paced(lanes: list[Lane], per_second: float, seconds: float) -> Answer:
    """Drives `per_second` calls in all, spread evenly over `lanes`, for `seconds`; the first tenth is warm-up.

    A call's time runs from when it is written, or from when it was due if the lane was still busy with an earlier
    write: a peer that stops taking messages cannot hide it by slowing the load. (The loop's timers tick in
    milliseconds, so a wake-up itself is up to one late, which is not counted.)
    """
    interval = len(lanes) / per_second
    took: list[float] = []
    begin = time.perf_counter()
    drivers = [
        _drive(lane, begin + interval * number / len(lanes), interval, int(seconds / interval), took)
        for number, lane in enumerate(lanes)
    ]
    await asyncio.gather(*drivers)
    took = took[len(took) // 10 :]
    return {
        "calls": len(took),
        "p50_ms": quantile(took, 0.5) * 1e3,
        "p99_ms": quantile(took, 0.99) * 1e3,
        "max_ms": max(took) * 1e3,
    }


async def _drive(lane: Lane, first: float, interval: float, calls: int, took: list[float]) -> None:
    clock = time.perf_counter
    sent: dict[int, float] = {}

    async def send() -> None:
        for number in range(calls):
            due = at = first + number * interval
            if (wait := due - clock()) > 0:
                await asyncio.sleep(wait)
                at = clock()
            call, message = lane.message()
            sent[call] = at
            await lane.write(message)

    async def receive() -> None:
        left = calls
        while left:
            ended = await lane.results()
            now = clock()
            left -= len(ended)
            took.extend(now - sent.pop(call) for call in ended)

    async with asyncio.TaskGroup() as group:
        group.create_task(receive())
        group.create_task(send())
