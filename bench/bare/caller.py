"""A caller over bare stubs: `python -m bench.bare.caller TARGET` drives a sidecar, told how by `bench.control`."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import grpc.aio

from bench import tools
from bench.bare.frames import Template
from bench.bare.load import Load
from bench.bare.streams import ANSWERING, CANCEL, HELLO, Stream, start
from bench.control import Answer, Window, quantile, run, serve
from bench.grpc_options import CHANNEL_OPTIONS


class Caller:
    """Drives one sidecar over one channel. Every command ends by itself and leaves no call behind."""

    def __init__(self, target: str, channel: grpc.aio.Channel) -> None:
        self._target = target
        self._channel = channel
        self._kept: list[Stream] = []
        self._channels: list[grpc.aio.Channel] = []

    async def closed(
        self, *, tool: str, in_flight: int, seconds: float, arguments: dict[str, Any], watch: int
    ) -> Answer:
        """`in_flight` calls at a time on one stream for `seconds`, after a warm-up of a fifth of that."""
        stream, template = Stream(self._channel), start(tool, arguments)
        clock, done, before = time.perf_counter, 0, 0
        window: Window | None = None
        warm = clock() + seconds / 5
        end = warm + seconds
        await stream.write(stream.open_many(template, in_flight))
        while (now := clock()) < end:
            if window is None and now >= warm:
                window, before = Window(watch), done
            ended = len(await stream.results())
            done += ended
            if ended:
                await stream.write(stream.open_many(template, ended))
        if window is None:
            raise RuntimeError("no answer in the warm-up")
        answer = window.close(done - before)
        done += in_flight
        while in_flight:
            in_flight -= len(await stream.results())
        await stream.close()
        return answer | {"progress": stream.progress / done}

    async def streams(
        self, *, tool: str, streams: int, seconds: float, arguments: dict[str, Any], watch: int
    ) -> Answer:
        """One call at a time on each of `streams` open streams of the channel."""
        template = start(tool, arguments)
        running, done = True, 0

        async def loop() -> None:
            nonlocal done
            stream = Stream(self._channel)
            while running:
                await stream.write(stream.open_many(template, 1))
                await stream.outcome()
                done += 1
            await stream.close()

        loops = [asyncio.ensure_future(loop()) for _ in range(streams)]
        await asyncio.sleep(seconds / 5)
        window, before = Window(watch), done
        await asyncio.sleep(seconds)
        answer = window.close(done - before)
        running = False
        await asyncio.gather(*loops)
        return answer

    async def latency(
        self, *, tool: str, calls: int, arguments: dict[str, Any], keys: str = "", session: str | None = None
    ) -> Answer:
        """Calls one at a time on one stream, each with a key of its own if `keys` is a prefix; a tenth is warm-up."""
        stream, template = Stream(self._channel), start(tool, arguments, session_id=session)
        clock = time.perf_counter
        took: list[float] = []
        for number in range(calls):
            if keys:
                template = start(tool, arguments, idempotency_key=f"{keys}-{number}")
            message = stream.open_many(template, 1)
            begin = clock()
            await stream.write(message)
            await stream.outcome()
            took.append(clock() - begin)
        await stream.close()
        took = took[calls // 10 :]
        return {"p50_ms": quantile(took, 0.5) * 1e3, "p99_ms": quantile(took, 0.99) * 1e3}

    async def run(self, *, tool: str, arguments: dict[str, Any], session: str | None = None) -> Answer:
        """One call, and what it returned."""
        return await self._returned(Stream(self._channel), start(tool, arguments, session_id=session))

    async def asked(self, *, count: int) -> Answer:
        """One call that asks its caller `count` times, on a stream that answers at once."""
        stream = Stream(self._channel)
        await stream.write(ANSWERING)
        return await self._returned(stream, start(tools.ASK, {"count": count}))

    async def _returned(self, stream: Stream, template: Template) -> Answer:
        await stream.write(stream.open_many(template, 1))
        answer: Answer = await stream.returned()
        await stream.close()
        return answer

    async def cancels(self, *, calls: int) -> Answer:
        """Cancels `calls` held calls, one at a time, and says when each cancel was sent."""
        stream, template = Stream(self._channel), start(tools.HOLD)
        sent: list[float] = []
        for _ in range(calls):
            call, message = stream.open(template)
            await stream.write(message)
            await stream.reported(1)
            message = CANCEL.fill(call)
            sent.append(time.perf_counter())
            await stream.write(message)
            await stream.ended(1)
        await stream.close()
        return {"at": sent}

    async def hold(self, *, calls: int) -> Answer:
        """Opens `calls` calls on one stream, waits until all have been invoked, and keeps them."""
        stream = Stream(self._channel)
        await stream.write(stream.open_many(start(tools.HOLD), calls))
        await stream.reported(calls)
        self._kept.append(stream)
        return {}

    async def idle(self, *, streams: int, connections: int) -> Answer:
        """Opens `streams` streams, spread over `connections` new connections, and keeps them."""
        for number in range(connections):
            options = (*CHANNEL_OPTIONS, ("bench.connection", number))
            self._channels.append(grpc.aio.insecure_channel(self._target, options=options))
        for number in range(streams):
            stream = Stream(self._channels[number % connections])
            await stream.write(HELLO)
            await stream.read()
            self._kept.append(stream)
        return {}

    async def drop(self) -> Answer:
        """Drops every kept stream and connection."""
        for stream in self._kept:
            stream.cancel()
        for channel in self._channels:
            await channel.close()
        self._kept.clear()
        self._channels.clear()
        return {}

    async def stall(self, *, count: int) -> Answer:
        """Opens a call that reports `count` times and never reads; kept until `drop`."""
        stream = Stream(self._channel)
        await stream.write(stream.open_many(start(tools.BURST, {"count": count}), 1))
        self._kept.append(stream)
        return {}


async def main(target: str) -> None:
    """Connects to `target` and answers commands until stdin ends."""
    async with grpc.aio.insecure_channel(target, options=CHANNEL_OPTIONS) as channel:
        await channel.channel_ready()
        caller, load = Caller(target, channel), Load(channel)
        try:
            await serve(
                {
                    "closed": caller.closed,
                    "streams": caller.streams,
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
                }
            )
        finally:
            await load.quiet()
            await caller.drop()


if __name__ == "__main__":
    run(main(sys.argv[1]))
