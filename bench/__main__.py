"""`python -m bench [--only NAME,NAME] [--quick] [--bare]`: measures, prints a table, writes `bench/out.json`.

The measured calls go through the public SDK, at both ends, and a sidecar that `pillion serve` runs with default
settings; with `--bare` through peers on bare stubs, which leave the sidecar more of the machine.
Ends with code 0 only if every bar was met.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import resource
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import psutil

from bench.figures import FIGURES, report, table
from bench.measures import (
    Found,
    Rounds,
    artifacts,
    lasting,
    latency,
    memory,
    neighbours,
    nesting,
    say,
    streams,
    throughput,
)
from bench.processes import ProcessError

OUTPUT: Final = Path(__file__).parent / "out.json"
LONGEST_SECONDS: Final = 1200.0
OPEN_FILES: Final = 8192
FULL: Final = Rounds(count=5, seconds=3.0)
QUICK: Final = Rounds(count=3, seconds=1.0)

MEASURES: Final[dict[Callable[[Rounds], Awaitable[Found]], tuple[str, ...]]] = {
    throughput.measure: (
        "throughput_ratio_vs_mcp",
        "mcp_cpu_ratio",
        "cpu_ratio_vs_unary_echo",
        "calls_per_second",
        "sidecar_cpu_us_per_call",
    ),
    latency.single: ("latency_ratio_vs_unary_echo", "keyed_call_overhead_us", "credential_push_overhead_us"),
    nesting.calls: ("nested_call_ratio_vs_top_level",),
    nesting.questions: ("caller_request_p50_ms",),
    streams.measure: ("streams_128x1_ratio",),
    neighbours.measure: ("noisy_neighbour_p99_ratio", "noisy_neighbour_1mib_p99_ratio"),
    artifacts.downloads: ("artifact_download_ratio_vs_stream",),
    artifacts.memory: ("artifact_1gib_rss_growth_mib",),
    memory.stalled: ("stalled_reader_rss_growth_mib",),
    memory.start: ("start_seconds", "idle_rss_mib"),
    lasting.registrations: ("teardown_register_p50_ms",),
    lasting.sticky: ("sticky_overhead_us",),
    latency.at_rate: ("added_p50_ms_at_1000_qps",),
    latency.cancel: ("cancel_to_tool_p99_ms",),
    memory.in_flight: ("inflight_1000_rss_mib",),
    memory.idle: ("idle_streams_1000_rss_growth_mib", "idle_connections_1000_rss_growth_mib"),
}
"""Each measurement, in the order they run, with the figures it finds."""


async def measure(wanted: set[str], rounds: Rounds) -> tuple[dict[str, float], dict[str, float], list[str]]:
    """Runs what finds any of the `wanted` figures: their values, the numbers behind them, and what failed."""
    values: dict[str, float] = {}
    behind: dict[str, float] = {}
    failed: list[str] = []
    for measurement, names in MEASURES.items():
        if wanted.isdisjoint(names):
            continue
        print(", ".join(names), flush=True)
        try:
            found = await measurement(rounds)
        except (ProcessError, OSError, psutil.Error) as error:
            say(f"failed: {error}")
            failed += names
            continue
        values |= found.figures
        behind |= found.behind
    return values, behind, failed


def conditions(rounds: Rounds, behind: dict[str, float], began: float, load: list[float]) -> dict[str, Any]:
    """Where and how it was measured, how busy the machine was before, and the baselines' own numbers."""
    packages = ("grpcio", "protobuf", "uvloop", "mcp", "uvicorn")
    return {
        "rounds": rounds.count,
        "seconds_each": rounds.seconds,
        "took_seconds": round(time.perf_counter() - began, 1),
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "peers": "bare stubs" if rounds.bare else "the Python SDK; bare stubs for many streams on one connection",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "packages": {name: metadata.version(name) for name in packages},
        "load_average_before": load,
        "transport": "unix sockets; HTTP on loopback for MCP",
        "arguments": "about 25 bytes of JSON; 1 KiB where a rate is fixed",
        "measured": {name: round(value, 4) for name, value in behind.items()},
    }


async def run(wanted: set[str], rounds: Rounds) -> int:
    """Measures, prints and writes; returns the exit code."""
    began, load = time.perf_counter(), [round(average, 2) for average in os.getloadavg()]
    task = asyncio.current_task()
    if task is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with asyncio.timeout(LONGEST_SECONDS):
        values, behind, failed = await measure(wanted, rounds)
    figures = report(values)
    written = {"figures": figures, "conditions": conditions(rounds, behind, began, load)}
    await asyncio.to_thread(OUTPUT.write_text, json.dumps(written, indent=2) + "\n")
    lines = [table(figures), *(f"{name:38} not measured" for name in failed)]
    print("\n" + "\n".join(lines), flush=True)
    return 1 if failed or any(entry["ok"] is False for entry in figures.values()) else 0


def main() -> int:
    """Reads the command line and runs the benchmark."""
    names = [figure.name for figure in FIGURES]
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measures the sidecar and its baselines.")
    parser.add_argument("--only", metavar="NAME,NAME", help=f"only what finds these figures: {', '.join(names)}")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds: for a first look")
    parser.add_argument("--bare", action="store_true", help="with peers on bare stubs in place of the SDK")
    options = parser.parse_args()
    wanted = set(options.only.split(",")) if options.only else set(names)
    if unknown := wanted.difference(names):
        parser.error(f"no such figure: {', '.join(sorted(unknown))}")
    _allow_open_files()
    with contextlib.suppress(KeyboardInterrupt, asyncio.CancelledError):
        return asyncio.run(run(wanted, replace(QUICK if options.quick else FULL, bare=options.bare)))
    return 130


def _allow_open_files() -> None:
    """Lets this process and those it starts hold a thousand connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


if __name__ == "__main__":
    sys.exit(main())
