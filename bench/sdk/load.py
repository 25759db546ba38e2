"""Steady load on a sidecar: the calls that are measured at a fixed rate, and the noise beside them."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from typing import Any

import pillion
from bench import tools
from bench.control import Answer
from bench.noise import Noise
from bench.pacing import Schedule, paced


class Load(Noise):
    """Paced calls, and two kinds of noise that last until `quiet`."""

    def __init__(self, target: str, host: pillion.Host) -> None:
        super().__init__()
        self._target = target
        self._host = host

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
        self.start(self._read_flood(per_second))
        return {}

    async def bulk(self, *, per_second: float) -> Answer:
        """Starts calls with one large string each, `per_second` of them, in an open loop."""
        self.start(self._send_bulk(1 / per_second))
        return {}

    async def _read_flood(self, per_second: int) -> None:
        async with self._host.start(tools.FLOOD, {"per_second": per_second}) as call:
            async for report in call:
                self.reports += 1 + report.coalesced

    async def _send_bulk(self, interval: float) -> None:
        due = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            while True:
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                due += interval
                group.create_task(self._one_bulk())

    async def _one_bulk(self) -> None:
        await self._host.call(tools.SINK, {"text": tools.BULK_TEXT})
        self.bulk_calls += 1
