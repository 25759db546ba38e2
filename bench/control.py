"""The child's half of the control line: commands in on stdin, answers out on stdout, one JSON object a line."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import psutil
import uvloop

LONGEST_LINE = 4 << 20

Answer = dict[str, Any]
Handler = Callable[..., Awaitable[Answer]]


async def serve(handlers: Mapping[str, Handler], **ready: object) -> None:
    """Announces itself with `ready`, then answers commands one after the other until stdin ends.

    The end of stdin is the end of the process: a parent that is killed leaves no child behind. A handler's exception
    is answered as `{"error": ...}` and does not end the process.
    """
    loop = asyncio.get_running_loop()
    commands = asyncio.StreamReader(limit=LONGEST_LINE)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    _say({"ready": ready})
    while line := await commands.readline():
        request = json.loads(line)
        try:
            answer = await handlers[request["command"]](**request["arguments"])
        except Exception as error:  # noqa: BLE001  # the parent decides what a failed measurement means
            answer = {"error": f"{type(error).__name__}: {error}"}
        _say(answer)


def _say(message: object) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def run(main: Awaitable[None]) -> None:
    """Runs a child's `main` under uvloop: every process of the benchmark has the same loop."""

    async def body() -> None:
        await main

    uvloop.run(body())


class Window:
    """One measured stretch of time, with the CPU that another process spent in it."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._cpu = _cpu_seconds(self._process)
        self._start = time.perf_counter()

    def close(self, calls: int) -> Answer:
        """The rate of `calls` in the window and the watched process's CPU (user and system) for each of them."""
        seconds = time.perf_counter() - self._start
        cpu = _cpu_seconds(self._process) - self._cpu
        return {
            "calls": calls,
            "seconds": seconds,
            "calls_per_second": calls / seconds,
            "cpu_us_per_call": cpu / max(calls, 1) * 1e6,
            "cpu_share": cpu / seconds,
        }


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def quantile(values: list[float], q: float) -> float:
    """The value below which the share `q` of `values` lies (nearest rank); `values` must not be empty."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]
