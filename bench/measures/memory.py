"""How much memory the sidecar takes: beside a reader that stalls, with many calls, with many idle streams."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack

from bench import tools
from bench.measures import Found, Rounds, median, say
from bench.processes import Child, ProcessError
from bench.sidecar import SUPERVISED, Sidecar, sidecar

STALLED_PROGRESS = 1_500_000
"""Reports of the tool, of which a million and more reach the sidecar: the SDK's worker coalesces at most a third."""
STALLED_WITHIN = 55.0
IN_FLIGHT = 1000
INSTANCES = 4
IDLE_STREAMS = 1000


async def stalled(rounds: Rounds) -> Found:
    """The most that the sidecar grew while a tool reported to a caller that never reads."""
    async with AsyncExitStack() as stack:
        host = await stack.enter_async_context(sidecar({"bench": [tools.BURST, tools.ECHO]}, bare=rounds.bare))
        worker = await stack.enter_async_context(host.worker("bench", 64))
        caller = await stack.enter_async_context(host.caller())
        await caller.ask("latency", tool=tools.ECHO, calls=100, arguments=tools.ARGUMENTS)
        before = host.rss_mib()
        await caller.ask("stall", count=STALLED_PROGRESS)
        peak, seconds = await _watch(host, worker)
        say(f"{before:.1f} MiB before, {peak:.1f} at most, {STALLED_PROGRESS / seconds:,.0f} progress/s")
        await caller.ask("drop")
    return Found(figures={"stalled_reader_rss_growth_mib": peak - before})


async def _watch(host: Sidecar, worker: Child) -> tuple[float, float]:
    """The highest memory until the worker has handed over every report and 1 s longer, and how long it took."""
    peak, began, sent = 0.0, time.perf_counter(), 0
    while sent < STALLED_PROGRESS - 128:
        if time.perf_counter() - began > STALLED_WITHIN:
            raise ProcessError(f"only {sent} progress frames were taken within {STALLED_WITHIN:.0f} s")
        await asyncio.sleep(0.05)
        sent = (await worker.ask("bursts"))["sent"]
        peak = max(peak, host.rss_mib())
    seconds = time.perf_counter() - began
    for _ in range(20):
        await asyncio.sleep(0.05)
        peak = max(peak, host.rss_mib())
    return peak, seconds


async def in_flight(rounds: Rounds) -> Found:
    """The sidecar with 1,000 calls in flight on one stream, spread over four instances."""
    async with (
        sidecar({"bench": [tools.HOLD]}, bare=rounds.bare) as host,
        host.caller() as caller,
        AsyncExitStack() as stack,
    ):
        workers = [await stack.enter_async_context(host.worker("bench", 256)) for _ in range(INSTANCES)]
        await caller.ask("hold", calls=IN_FLIGHT)
        held = [(await worker.ask("held"))["held"] for worker in workers]
        mib = host.rss_mib()
        say(f"{sum(held)} calls held by {INSTANCES} instances ({held}): {mib:.1f} MiB")
        await caller.ask("drop")
    return Found(figures={"inflight_1000_rss_mib": mib})


async def idle(rounds: Rounds) -> Found:
    """What 1,000 open streams without a call add, over one connection and over a connection each.

    A connection of the SDK has one stream, so the former is driven by the bare caller.
    """
    found = {}
    for name, connections in (("streams", 1), ("connections", IDLE_STREAMS)):
        async with AsyncExitStack() as stack:
            host = await stack.enter_async_context(sidecar({"bench": [tools.ECHO]}, bare=rounds.bare))
            caller = await stack.enter_async_context(host.bare_caller() if connections == 1 else host.caller())
            before = host.rss_mib()
            await caller.ask("idle", streams=IDLE_STREAMS, connections=connections)
            growth = host.rss_mib() - before
            found[f"idle_{name}_1000_rss_growth_mib"] = growth
            say(f"{IDLE_STREAMS} streams over {connections} connections: {growth:.1f} MiB more")
            await caller.ask("drop")
    return Found(figures=found)


async def start(rounds: Rounds) -> Found:
    """How long a start takes, and what an idle sidecar and its guardian weigh, with a worker that it has started."""
    seconds, mib = [], []
    for _ in range(rounds.count):
        async with sidecar({}, bare=rounds.bare, supervised=True) as host:
            await host.attached(SUPERVISED)
            seconds.append(host.start_seconds)
            await asyncio.sleep(0.5)
            mib.append(host.rss_mib())
            say(f"serving after {seconds[-1]:.3f} s; {mib[-1]:.1f} MiB idle")
    return Found(figures={"start_seconds": median(seconds), "idle_rss_mib": median(mib)})
