"""Many streams with one call each: where batching cannot help."""

from __future__ import annotations

import tempfile
from contextlib import AsyncExitStack
from typing import Any

from bench import tools
from bench.measures import Found, Rounds, median, say
from bench.processes import Child, child
from bench.sidecar import sidecar

STREAMS = 128


async def measure(rounds: Rounds) -> Found:
    """128 open streams on one channel, one call at a time each, no progress; beside a bare host, no sidecar.

    Both are driven by the bare caller: a connection of the SDK has one stream, as no program needs another.
    """
    async with AsyncExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="pillion-bench-"))
        target = f"unix:{directory}/host.sock"
        bare_host = await stack.enter_async_context(child("bench.baselines.host", target))
        bare_caller = await stack.enter_async_context(child("bench.bare.caller", target))
        host = await stack.enter_async_context(sidecar({"bench": [tools.ECHO]}, bare=rounds.bare))
        await stack.enter_async_context(host.worker("bench", 256))
        caller = await stack.enter_async_context(host.bare_caller())
        ratios, rates, bare_rates = [], [], []
        for number in range(rounds.count):
            bare = await _drive(bare_caller, bare_host.pid, rounds.seconds)
            ours = await _drive(caller, host.pid, rounds.seconds)
            rates.append(ours["calls_per_second"])
            bare_rates.append(bare["calls_per_second"])
            ratios.append(rates[-1] / bare_rates[-1])
            cost = ours["cpu_us_per_call"]
            say(f"round {number + 1}: {rates[-1]:,.0f}/s ({cost:.0f} us); bare {bare_rates[-1]:,.0f}/s")
    return Found(
        figures={"streams_128x1_ratio": median(ratios)},
        behind={"streams_128x1_calls_per_second": median(rates), "bare_host_calls_per_second": median(bare_rates)},
    )


async def _drive(caller: Child, watch: int, seconds: float) -> dict[str, Any]:
    return await caller.ask(
        "streams", tool=tools.ECHO, streams=STREAMS, seconds=seconds, arguments=tools.ARGUMENTS, watch=watch
    )
