"""What one caller's noise does to another caller's calls."""

from __future__ import annotations

from contextlib import AsyncExitStack

from bench import tools
from bench.measures import Found, Rounds, median, say
from bench.processes import Child
from bench.sidecar import sidecar

ARGUMENTS_1_KIB = {"name": "x" * 1000, "count": 3}
RATE = 500
PROGRESS_A_SECOND = 10_000
BULK_A_SECOND = 10


async def measure(rounds: Rounds) -> Found:
    """1 KiB calls at 500/s alone, beside a flood of progress, and beside that and large calls.

    The quiet pair, the flooding pair and the pair with large calls are each a caller and a worker of their own.
    """
    sets = {"quiet": [tools.ECHO], "flood": [tools.FLOOD], "bulk": [tools.SINK]}
    async with AsyncExitStack() as stack:
        host = await stack.enter_async_context(sidecar(sets, bare=rounds.bare))
        for name in sets:
            await stack.enter_async_context(host.worker(name, 64))
        quiet, flood, bulk = [await stack.enter_async_context(host.caller()) for _ in sets]
        beside_flood, beside_both, alone_p99, reports, large = [], [], [], [], []
        for number in range(rounds.count):
            alone = await _p99(quiet, rounds.seconds)
            await flood.ask("flood", per_second=PROGRESS_A_SECOND)
            flooded = await _p99(quiet, rounds.seconds)
            await bulk.ask("bulk", per_second=BULK_A_SECOND)
            both = await _p99(quiet, rounds.seconds)
            large.append((await bulk.ask("quiet"))["bulk_per_second"])
            reports.append((await flood.ask("quiet"))["reports_per_second"])
            alone_p99.append(alone)
            beside_flood.append(flooded / alone)
            beside_both.append(both / alone)
            say(
                f"round {number + 1}: p99 {alone:.2f} ms alone; {flooded:.2f} beside {reports[-1]:,.0f} progress/s; "
                f"{both:.2f} with {large[-1]:.1f} large calls/s"
            )
    return Found(
        figures={
            "noisy_neighbour_p99_ratio": median(beside_flood),
            "noisy_neighbour_1mib_p99_ratio": median(beside_both),
        },
        behind={
            "quiet_p99_ms": median(alone_p99),
            "noise_progress_per_second": median(reports),
            "noise_1mib_calls_per_second": median(large),
        },
    )


async def _p99(caller: Child, seconds: float) -> float:
    answer = await caller.ask(
        "paced", tool=tools.ECHO, arguments=ARGUMENTS_1_KIB, streams=1, per_second=RATE, seconds=seconds
    )
    return float(answer["p99_ms"])
