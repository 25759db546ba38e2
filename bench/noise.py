"""Noise beside the calls that are measured, whichever stubs make it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

from bench.control import Answer


class Noise:
    """What makes noise until `quiet`, and how much of it there was."""

    def __init__(self) -> None:
        self.reports = 0
        """Reports that came, those lost to coalescing included."""
        self.bulk_calls = 0
        """Large calls that ended."""
        self._makers: list[asyncio.Future[None]] = []
        self._began = 0.0

    def start(self, maker: Coroutine[Any, Any, None]) -> None:
        """Adds something that makes noise until it is cancelled."""
        if not self._makers:
            self._began = time.perf_counter()
        self._makers.append(asyncio.ensure_future(maker))

    async def quiet(self) -> Answer:
        """Ends the noise and says how much of it there was, reports lost to coalescing included."""
        makers, self._makers = self._makers, []
        seconds = time.perf_counter() - self._began
        for maker in makers:
            maker.cancel()
        failures = [
            str(end) for end in await asyncio.gather(*makers, return_exceptions=True) if isinstance(end, Exception)
        ]
        answer = {"reports_per_second": self.reports / seconds, "bulk_per_second": self.bulk_calls / seconds}
        self.reports = self.bulk_calls = 0
        return {"error": failures[0]} if failures else answer
