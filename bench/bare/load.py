"""Steady load on a sidecar: the calls that are measured at a fixed rate, and the noise beside them."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import grpc.aio

from bench import tools
from bench.bare.streams import Stream, start
from bench.control import Answer
from bench.noise import Noise
from bench.pacing import Schedule, paced


class _Lane:
    """A stream that opens one kind of call. One coroutine writes to it and another reads from it."""

    def __init__(self, channel: grpc.aio.Channel, tool: str, arguments: dict[str, Any]) -> None:
        self.stream = Stream(channel)
        self._template = start(tool, arguments)

    async def drive(self, schedule: Schedule, took: list[float]) -> None:
        """Opens calls by a schedule and adds how long each took."""
        sent: dict[int, float] = {}

        async def send() -> None:
            async for at in schedule.begins():
                call, message = self.stream.open(self._template)
                sent[call] = at
                await self.stream.write(message)

        async def receive() -> None:
            left = schedule.calls
            while left:
                ended = await self.stream.results()
                now = time.perf_counter()
                left -= len(ended)
                took.extend(now - sent.pop(call) for call in ended)

        async with asyncio.TaskGroup() as group:
            group.create_task(receive())
            group.create_task(send())


class Load(Noise):
    """Paced calls, and two kinds of noise that last until `quiet`."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        super().__init__()
        self._channel = channel

    async def paced(
        self, *, tool: str, arguments: dict[str, Any], streams: int, per_second: float, seconds: float
    ) -> Answer:
        """`per_second` calls in all over `streams` streams, in an open loop."""
        lanes = [_Lane(self._channel, tool, arguments) for _ in range(streams)]
        answer = await paced(lanes, _Lane.drive, per_second, seconds)
        for lane in lanes:
            await lane.stream.close()
        return answer

    async def flood(self, *, per_second: int) -> Answer:
        """Starts a call that reports `per_second` times a second, and reads it."""
        stream = Stream(self._channel)
        await stream.write(stream.open_many(start(tools.FLOOD, {"per_second": per_second}), 1))
        self.start(self._read_flood(stream))
        return {}

    async def bulk(self, *, per_second: float) -> Answer:
        """Starts calls with one large string each, `per_second` of them, in an open loop."""
        self.start(self._send_bulk(Stream(self._channel), 1 / per_second))
        return {}

    async def _read_flood(self, stream: Stream) -> None:
        try:
            while True:
                for frame in await stream.read():
                    self.reports += frame.HasField("progress") + frame.coalesced
        finally:
            stream.cancel()

    async def _send_bulk(self, stream: Stream, interval: float) -> None:
        template = start(tools.SINK, {"text": tools.BULK_TEXT})
        due = time.perf_counter()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._read_bulk(stream))
                while True:
                    await asyncio.sleep(max(0.0, due - time.perf_counter()))
                    due += interval
                    await stream.write(stream.open_many(template, 1))
        finally:
            stream.cancel()

    async def _read_bulk(self, stream: Stream) -> None:
        while True:
            self.bulk_calls += len(await stream.results())
