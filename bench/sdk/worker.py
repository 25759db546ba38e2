"""A worker on the SDK: `python -m bench.sdk.worker TARGET SET TOKEN_FILE CONCURRENCY TOOL...`.

It attaches, then talks the control line of `bench.control`.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import pillion
from bench import tools
from bench.control import Answer, Window, quantile, run, serve

REPORTS_A_TURN = 16
"""What `burst` reports before others get the event loop: half of what is kept where nobody takes it."""


class Tools:
    """The tools, by their names in `bench.tools`, and what they count."""

    def __init__(self) -> None:
        self._held = 0
        self._cancelled_at: list[float] = []
        self._sent_in_bursts = 0

    async def report(self, name: str, count: int, ctx: pillion.ToolContext) -> dict[str, Any]:
        """Reports progress three times, then returns its arguments."""
        for report in tools.PROGRESS:
            ctx.progress(report)
        return {"name": name, "count": count}

    async def echo(self, name: str, count: int) -> dict[str, Any]:
        """Returns its arguments."""
        return {"name": name, "count": count}

    async def signed(self, name: str, count: int, ctx: pillion.ToolContext) -> dict[str, Any]:
        """Needs a credential, looks at it, and returns its arguments."""
        if ctx.credential is None:
            raise pillion.ToolError("There is no credential.")
        return {"name": name, "count": count}

    async def sink(self, text: str) -> dict[str, Any]:
        """Takes a large text and returns nothing of it."""
        del text
        return {}

    async def hold(self, ctx: pillion.ToolContext) -> None:
        """Reports progress once, then waits for a cancel."""
        self._held += 1
        ctx.progress(tools.PROGRESS[0])
        try:
            await ctx.wait_cancelled()
        except asyncio.CancelledError:
            self._cancelled_at.append(time.perf_counter())
            raise
        finally:
            self._held -= 1

    async def flood(self, per_second: int, ctx: pillion.ToolContext) -> None:
        """Reports progress at a steady rate until it is cancelled."""
        start, sent = time.perf_counter(), 0
        while (elapsed := time.perf_counter() - start) < tools.LONGEST_FLOOD_SECONDS:
            due = int(elapsed * per_second) - sent
            for _ in range(due):
                ctx.progress(tools.PROGRESS[0])
            sent += due
            await asyncio.sleep(0.001)

    async def burst(self, count: int, ctx: pillion.ToolContext) -> None:
        """Reports progress as fast as it is taken, a number of times."""
        for number in range(1, count + 1):
            ctx.progress(tools.PROGRESS[0])
            self._sent_in_bursts = number
            if not number % REPORTS_A_TURN:
                await asyncio.sleep(0)

    async def nest(self, width: int, seconds: float, watch: int, ctx: pillion.ToolContext) -> dict[str, Any]:
        """Has `echo` run, `width` times at once: a fifth of `seconds` to warm up, and `seconds` that are measured."""
        running, done = True, 0

        async def loop() -> None:
            nonlocal done
            while running:
                await ctx.tools.call(tools.ECHO, tools.ARGUMENTS)
                done += 1

        loops = [asyncio.ensure_future(loop()) for _ in range(width)]
        await asyncio.sleep(seconds / 5)
        window, before = Window(watch), done
        await asyncio.sleep(seconds)
        answer = window.close(done - before)
        running = False
        await asyncio.gather(*loops)
        return answer

    async def ask(self, count: int, ctx: pillion.ToolContext) -> dict[str, float]:
        """Asks its caller `count` times, one after the other; a tenth is warm-up."""
        took = []
        for _ in range(count):
            begin = time.perf_counter()
            await ctx.caller.request(tools.ASKED, tools.ARGUMENTS)
            took.append(time.perf_counter() - begin)
        return {"p50_ms": quantile(took[count // 10 :], 0.5) * 1e3}

    async def keep(self, count: int, ctx: pillion.ToolContext) -> dict[str, float]:
        """Registers `count` cleanups for its session, one after the other; a tenth is warm-up."""
        took = []
        for number in range(count):
            begin = time.perf_counter()
            await ctx.on_teardown(_clean_nothing, scope=pillion.TeardownScope.SESSION, name=str(number))
            took.append(time.perf_counter() - begin)
        return {"p50_ms": quantile(took[count // 10 :], 0.5) * 1e3}

    async def held(self, name: str, count: int) -> dict[str, Any]:
        """Holds something for its session, and returns its arguments."""
        return {"name": name, "count": count}

    def named(self, name: str) -> pillion.Tool[..., Any]:
        """The tool of this name. It declares no output schema, as those of the baselines do not."""
        needs = [pillion.Need(tools.SERVICE)] if name == tools.SIGNED else []
        holds = pillion.TeardownScope.SESSION if name == tools.HELD else None
        return pillion.tool(output=None, needs=needs, holds=holds)(getattr(self, name))

    # --- the control line

    async def waiting(self) -> Answer:
        """How many calls wait for a cancel."""
        return {"held": self._held}

    async def cancels(self) -> Answer:
        """When each cancel of a held call arrived, in order, on the clock that all processes share; forgets them."""
        stamps, self._cancelled_at = self._cancelled_at, []
        return {"at": stamps}

    async def bursts(self) -> Answer:
        """How many times `burst` has reported so far."""
        return {"sent": self._sent_in_bursts}


async def _clean_nothing(_reason: pillion.TeardownReason) -> None:
    """A cleanup with nothing to do."""


async def main(target: str, name: str, token_file: str, concurrency: str, *names: str) -> None:
    """Attaches, announces the instance id, and serves until stdin or the worker ends."""
    hosted = Tools()
    token = (await asyncio.to_thread(Path(token_file).read_text)).strip()
    worker = pillion.Worker(
        map(hosted.named, names), target=target, worker=name, token=token, concurrency=int(concurrency)
    )
    running = asyncio.ensure_future(worker.run())
    attached = asyncio.ensure_future(worker.attached.wait())
    await asyncio.wait({running, attached}, return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        return running.result()
    serving = asyncio.ensure_future(
        serve(
            {"held": hosted.waiting, "cancels": hosted.cancels, "bursts": hosted.bursts},
            instance=worker.instance_id,
        )
    )
    await asyncio.wait({running, serving}, return_when=asyncio.FIRST_COMPLETED)
    serving.cancel()
    worker.hurry()
    return await running


if __name__ == "__main__":
    run(main(*sys.argv[1:]))
