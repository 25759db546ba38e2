"""How fast artifacts are read beside a bare stream of bytes, and what a large one costs in memory."""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import AsyncExitStack

from bench.measures import Found, Rounds, median, say
from bench.processes import Child, child, rss_mib
from bench.sidecar import Sidecar, sidecar

MIB = 1 << 20
DOWNLOAD_BYTES = 256 * MIB
LARGE_BYTES = 1024 * MIB
WITHIN = 120.0


async def downloads(rounds: Rounds) -> Found:
    """Downloads by the SDK and over a bare stream, alternating; same transport, size, chunks and loop."""
    async with AsyncExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="pillion-bench-"))
        target = f"unix:{directory}/stream.sock"
        await stack.enter_async_context(child("bench.baselines.stream", "server", target))
        bare = await stack.enter_async_context(child("bench.baselines.stream", "client", target))
        host = await stack.enter_async_context(sidecar({}))
        caller = await stack.enter_async_context(host.caller())
        put = await caller.ask("upload", within=WITHIN, size=DOWNLOAD_BYTES)
        ours, theirs = [], []
        for number in range(rounds.count):
            theirs.append(_rate(await bare.ask("download", within=WITHIN, size=DOWNLOAD_BYTES)))
            reference = put["reference"]
            ours.append(_rate(await caller.ask("download", within=WITHIN, reference=reference, size=DOWNLOAD_BYTES)))
            say(f"round {number + 1}: {ours[-1]:,.0f} MiB/s; bare {theirs[-1]:,.0f} MiB/s")
    return Found(
        figures={"artifact_download_ratio_vs_stream": median(a / b for a, b in zip(ours, theirs, strict=True))},
        behind={"artifact_download_mib_per_second": median(ours), "stream_mib_per_second": median(theirs)},
    )


def _rate(answer: dict[str, float]) -> float:
    return DOWNLOAD_BYTES / MIB / answer["seconds"]


async def memory(rounds: Rounds) -> Found:
    """The most that the sidecar grew while one artifact of a GiB was put and then read; once, whatever the rounds."""
    del rounds
    async with sidecar({}) as host, host.caller() as caller:
        warm = await caller.ask("upload", size=MIB)
        await caller.ask("download", reference=warm["reference"], size=MIB)
        before, before_caller = host.rss_mib(), rss_mib(caller.pid)
        work = asyncio.ensure_future(_there_and_back(caller))
        peak, peak_caller = await _watch(host, caller, work)
        await work
    say(f"{before:.1f} MiB before, {peak:.1f} at most; the caller {before_caller:.1f} and {peak_caller:.1f}")
    return Found(
        figures={"artifact_1gib_rss_growth_mib": peak - before},
        behind={"artifact_1gib_caller_rss_growth_mib": peak_caller - before_caller},
    )


async def _there_and_back(caller: Child) -> None:
    put = await caller.ask("upload", within=WITHIN, size=LARGE_BYTES)
    await caller.ask("download", within=WITHIN, reference=put["reference"], size=LARGE_BYTES)


async def _watch(host: Sidecar, caller: Child, work: asyncio.Future[None]) -> tuple[float, float]:
    """The highest memory of sidecar and caller until the work is done."""
    peak = peak_caller = 0.0
    while not work.done():
        peak, peak_caller = max(peak, host.rss_mib()), max(peak_caller, rss_mib(caller.pid))
        await asyncio.sleep(0.02)
    return peak, peak_caller
