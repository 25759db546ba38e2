"""Many streams with one call each: where batching cannot help."""

from __future__ import annotations

import json
import tempfile
from contextlib import AsyncExitStack

from bench import tools
from bench.measures import Found, Rounds, median, say
from bench.processes import child
from bench.sidecar import sidecar

STREAMS = 128


async def measure(rounds: Rounds) -> Found:
    """128 open streams on one channel, one call at a time each, no progress; beside a bare bidi echo, no sidecar."""
    async with AsyncExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="pillion-bench-"))
        target = f"unix:{directory}/echo.sock"
        echo_server = await stack.enter_async_context(child("bench.baselines.echo", "server", target))
        echo_client = await stack.enter_async_context(child("bench.baselines.echo", "client", target))
        host = await stack.enter_async_context(sidecar({"bench": [tools.ECHO]}))
        await stack.enter_async_context(host.worker("bench", 256))
        caller = await stack.enter_async_context(host.caller())
        ratios, rates, bare_rates = [], [], []
        for number in range(rounds.count):
            bare = await echo_client.ask(
                "bidi",
                streams=STREAMS,
                seconds=rounds.seconds,
                payload=json.dumps(tools.ARGUMENTS),
                watch=echo_server.pid,
            )
            ours = await caller.ask(
                "streams",
                tool=tools.ECHO,
                streams=STREAMS,
                seconds=rounds.seconds,
                arguments=tools.ARGUMENTS,
                watch=host.pid,
            )
            rates.append(ours["calls_per_second"])
            bare_rates.append(bare["calls_per_second"])
            ratios.append(rates[-1] / bare_rates[-1])
            cost = ours["cpu_us_per_call"]
            say(f"round {number + 1}: {rates[-1]:,.0f}/s ({cost:.0f} us); bare {bare_rates[-1]:,.0f}/s")
    return Found(
        figures={"streams_128x1_ratio": median(ratios)},
        behind={"streams_128x1_calls_per_second": median(rates), "bidi_echo_calls_per_second": median(bare_rates)},
    )
