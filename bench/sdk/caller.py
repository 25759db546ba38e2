"""A caller on the SDK: `python -m bench.sdk.caller TARGET` drives a sidecar by the commands of `bench.control`.

A connection of the SDK has one stream, so many streams are many connections here. What needs many streams on one
connection is driven by `bench.bare.caller`.
"""

from __future__ import annotations

import asyncio
import select
import sys
import time
from contextlib import AsyncExitStack
from typing import Any

import pillion
from bench import tools
from bench.control import Answer, Window, quantile, run, serve
from bench.sdk.bulk import Bulk
from bench.sdk.load import Load

CONNECTIONS_AT_ONCE = 50


class Caller:
    """Drives one sidecar over one connection. Every command ends by itself, and leaves no call behind but kept ones."""

    def __init__(self, target: str, host: pillion.Host) -> None:
        self._target = target
        self._host = host
        self._kept = AsyncExitStack()

    async def closed(
        self, *, tool: str, in_flight: int, seconds: float, arguments: dict[str, Any], watch: int
    ) -> Answer:
        """`in_flight` calls at a time for `seconds`, all of their progress read, after a warm-up of a fifth of that."""
        running, done, seen = True, 0, 0

        async def loop() -> None:
            nonlocal done, seen
            while running:
                async with self._host.start(tool, arguments) as call:
                    async for _ in call:
                        seen += 1
                    await call.result()
                done += 1

        loops = [asyncio.ensure_future(loop()) for _ in range(in_flight)]
        await asyncio.sleep(seconds / 5)
        window, before = Window(watch), done
        await asyncio.sleep(seconds)
        answer = window.close(done - before)
        running = False
        await asyncio.gather(*loops)
        return answer | {"progress": seen / done}

    async def latency(
        self, *, tool: str, calls: int, arguments: dict[str, Any], keys: str = "", session: str | None = None
    ) -> Answer:
        """Calls one at a time, each with a key of its own if `keys` is a prefix; a tenth is warm-up."""
        clock = time.perf_counter
        took: list[float] = []
        for number in range(calls):
            options: pillion.CallOptions = {"session_id": session}
            if keys:
                options["idempotency_key"] = f"{keys}-{number}"
            begin = clock()
            await self._host.call(tool, arguments, **options)
            took.append(clock() - begin)
        took = took[calls // 10 :]
        return {"p50_ms": quantile(took, 0.5) * 1e3, "p99_ms": quantile(took, 0.99) * 1e3}

    async def run(self, *, tool: str, arguments: dict[str, Any], session: str | None = None) -> Answer:
        """One call, and what it returned."""
        answer: Answer = await self._host.call(tool, arguments, session_id=session)
        return answer

    async def asked(self, *, count: int) -> Answer:
        """One call that asks its caller `count` times, on a connection of its own that answers at once."""

        async def echo(question: pillion.Question) -> Any:
            return question.params

        async with pillion.connect(self._target, can_answer={tools.ASKED: echo}) as host:
            answer: Answer = await host.call(tools.ASK, {"count": count})
            return answer

    async def cancels(self, *, calls: int) -> Answer:
        """Cancels `calls` held calls, one at a time, and says when each cancel was sent."""
        sent: list[float] = []
        for _ in range(calls):
            async with self._host.start(tools.HOLD) as call:
                await anext(call)
                sent.append(time.perf_counter())
                await call.cancel()
                await call.ended()
        return {"at": sent}

    async def hold(self, *, calls: int) -> Answer:
        """Begins `calls` calls on one stream, waits until all have been invoked, and keeps them."""
        begun = [await self._kept.enter_async_context(self._host.start(tools.HOLD)) for _ in range(calls)]
        for call in begun:
            await anext(call)
        return {}

    async def idle(self, *, streams: int, connections: int) -> Answer:
        """Opens `connections` connections, each with its stream, and keeps them."""
        if streams != connections:
            raise ValueError("a connection of the SDK has one stream")
        turn = asyncio.Semaphore(CONNECTIONS_AT_ONCE)

        async def open_one() -> None:
            async with turn:
                await self._kept.enter_async_context(pillion.connect(self._target))

        await asyncio.gather(*(open_one() for _ in range(connections)))
        return {}

    async def drop(self) -> Answer:
        """Drops every kept call and connection."""
        await self._kept.aclose()
        return {}

    async def stall(self, *, count: int) -> Answer:
        """Begins a call that reports `count` times, and reads nothing until the next command."""
        call = await self._kept.enter_async_context(self._host.start(tools.BURST, {"count": count}))
        await anext(call)
        # The SDK reads whenever the event loop runs. So it does not run, as in a program that blocks it.
        asyncio.get_running_loop().call_soon(select.select, [sys.stdin], [], [])
        return {}


async def main(target: str) -> None:
    """Connects to `target` and answers commands until stdin ends."""
    async with pillion.connect(target) as host:
        caller, load, bulk = Caller(target, host), Load(target, host), Bulk(host)
        try:
            await serve(
                {
                    "closed": caller.closed,
                    "latency": caller.latency,
                    "paced": load.paced,
                    "run": caller.run,
                    "asked": caller.asked,
                    "cancels": caller.cancels,
                    "hold": caller.hold,
                    "idle": caller.idle,
                    "drop": caller.drop,
                    "stall": caller.stall,
                    "flood": load.flood,
                    "bulk": load.bulk,
                    "quiet": load.quiet,
                    "upload": bulk.upload,
                    "download": bulk.download,
                }
            )
        finally:
            await load.quiet()
            await caller.drop()


if __name__ == "__main__":
    run(main(sys.argv[1]))
