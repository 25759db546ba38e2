"""Steady load on a sidecar: the calls that are measured at a fixed rate, and the noise beside them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any

import pillion
from bench import tools
from bench.control import Answer
from bench.pacing import Schedule, paced


class Load:
    """Paced calls, and two kinds of noise that last until `quiet`."""

    def __init__(self, target: str, host: pillion.Host) -> None:
        self._target = target
        self._host = host
        self._noise: list[asyncio.Task[None]] = []
        self._reports = 0
        self._bulk_calls = 0
        self._began = 0.0

    async def paced(
        self, *, tool: str, arguments: dict[str, Any], streams: int, per_second: float, seconds: float
    ) -> Answer:
        """`per_second` calls in all over `streams` streams, each of a connection of its own, in an open loop."""

        async def drive(host: pillion.Host, schedule: Schedule, took: list[float]) -> None:
            async def one(at: float) -> None:
                await host.call(tool, arguments)
                took.append(time.perf_counter() - at)

            async with asyncio.TaskGroup() as group:
                async for at in schedule.begins():
                    group.create_task(one(at))

        async with AsyncExitStack() as stack:
            hosts = [await stack.enter_async_context(pillion.connect(self._target)) for _ in range(streams)]
            return await paced(hosts, drive, per_second, seconds)

    async def flood(self, *, per_second: int) -> Answer:
        """Starts a call that reports `per_second` times a second, and reads it."""
        self._start(self._read_flood(per_second))
        return {}

    async def bulk(self, *, per_second: float) -> Answer:
        """Starts calls with one large string each, `per_second` of them, in an open loop."""
        self._start(self._send_bulk(1 / per_second))
        return {}

    async def quiet(self) -> Answer:
        """Ends the noise and says how much of it there was, reports lost to coalescing included."""
        noise, self._noise = self._noise, []
        seconds = time.perf_counter() - self._began
        for task in noise:
            task.cancel()
        failures = [
            str(end) for end in await asyncio.gather(*noise, return_exceptions=True) if isinstance(end, Exception)
        ]
        answer = {"reports_per_second": self._reports / seconds, "bulk_per_second": self._bulk_calls / seconds}
        self._reports = self._bulk_calls = 0
        return {"error": failures[0]} if failures else answer

    def _start(self, noise: Coroutine[Any, Any, None]) -> None:
        if not self._noise:
            self._began = time.perf_counter()
        self._noise.append(asyncio.ensure_future(noise))

    async def _read_flood(self, per_second: int) -> None:
        async with self._host.start(tools.FLOOD, {"per_second": per_second}) as call:
            async for report in call:
                self._reports += 1 + report.coalesced

    async def _send_bulk(self, interval: float) -> None:
        due = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            while True:
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                due += interval
                group.create_task(self._one_bulk())

    async def _one_bulk(self) -> None:
        await self._host.call(tools.SINK, {"text": tools.BULK_TEXT})
        self._bulk_calls += 1
