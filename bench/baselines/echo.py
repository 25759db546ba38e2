"""A bare grpc.aio echo, unary and bidirectional, server and client: what gRPC itself costs.

Messages are raw bytes on both sides, so nothing but gRPC is measured. `python -m bench.baselines.echo server TARGET`
and `client` in its place talk the control line of `bench.control`.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import grpc.aio

from bench.control import Answer, Window, quantile, run, serve
from bench.grpc_options import CHANNEL_OPTIONS
from bench.pacing import paced

UNARY = "/bench.Echo/Unary"
BIDI = "/bench.Echo/Bidi"


async def _unary(request: bytes, _context: Any) -> bytes:
    return request


async def _bidi(_requests: Any, context: Any) -> None:
    while (message := await context.read()) is not grpc.aio.EOF:
        await context.write(message)


async def server(target: str) -> None:
    """Echoes on `target` until stdin ends."""
    instance = grpc.aio.server(options=CHANNEL_OPTIONS)
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "Unary": grpc.unary_unary_rpc_method_handler(_unary),
        "Bidi": grpc.stream_stream_rpc_method_handler(_bidi),
    }
    instance.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Echo", handlers),))
    instance.add_insecure_port(target)
    await instance.start()
    try:
        await serve({})
    finally:
        await instance.stop(0)


class Client:
    """Drives one echo server over one channel."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._unary: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(UNARY)
        self._bidi: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(BIDI)

    async def unary(self, *, in_flight: int, seconds: float, payload: str, watch: int) -> Answer:
        """Unary calls, `in_flight` at a time, for `seconds` after a warm-up of a fifth of that."""
        call, message = self._unary, payload.encode()
        counter = _Counter()

        async def loop() -> None:
            while counter.running:
                await call(message)
                counter.done += 1

        return await counter.measure([loop() for _ in range(in_flight)], seconds, watch)

    async def latency(self, *, calls: int, payload: str) -> Answer:
        """Unary calls one at a time; the first tenth is warm-up."""
        call, message = self._unary, payload.encode()
        clock = time.perf_counter
        took: list[float] = []
        for _ in range(calls):
            start = clock()
            await call(message)
            took.append(clock() - start)
        took = took[calls // 10 :]
        return {"p50_ms": quantile(took, 0.5) * 1e3, "p99_ms": quantile(took, 0.99) * 1e3}

    async def bidi(self, *, streams: int, seconds: float, payload: str, watch: int) -> Answer:
        """Round trips over `streams` open streams of one channel, one at a time on each."""
        message = payload.encode()
        counter = _Counter()

        async def loop() -> None:
            stream = self._bidi()
            while counter.running:
                await stream.write(message)
                await stream.read()
                counter.done += 1
            await stream.done_writing()
            await stream.read()

        return await counter.measure([loop() for _ in range(streams)], seconds, watch)

    async def paced(self, *, payload: str, streams: int, per_second: float, seconds: float) -> Answer:
        """Round trips at a fixed rate in all, spread over `streams` open streams, in an open loop."""
        lanes = [_Lane(self._bidi(), payload.encode()) for _ in range(streams)]
        answer = await paced(list(lanes), per_second, seconds)
        for lane in lanes:
            await lane.close()
        return answer


class _Lane:
    """A bidi stream whose echoes come back in order."""

    def __init__(self, stream: grpc.aio.StreamStreamCall[bytes, bytes], payload: bytes) -> None:
        self._stream = stream
        self._payload = payload
        self._sent = self._ended = 0

    def message(self) -> tuple[int, bytes]:
        self._sent += 1
        return self._sent, self._payload

    async def write(self, message: bytes) -> None:
        await self._stream.write(message)

    async def results(self) -> list[int]:
        await self._stream.read()
        self._ended += 1
        return [self._ended]

    async def close(self) -> None:
        await self._stream.done_writing()
        await self._stream.read()


class _Counter:
    """Counts what a set of closed loops completes inside the measured window."""

    def __init__(self) -> None:
        self.running = True
        self.done = 0

    async def measure(self, loops: list[Any], seconds: float, watch: int) -> Answer:
        tasks = [asyncio.ensure_future(loop) for loop in loops]
        await asyncio.sleep(seconds / 5)
        window, before = Window(watch), self.done
        await asyncio.sleep(seconds)
        answer = window.close(self.done - before)
        self.running = False
        await asyncio.gather(*tasks)
        return answer


async def client(target: str) -> None:
    """Answers the commands `unary`, `latency`, `bidi` and `paced` against the server at `target` until stdin ends."""
    async with grpc.aio.insecure_channel(target, options=CHANNEL_OPTIONS) as channel:
        await channel.channel_ready()
        driver = Client(channel)
        await serve({"unary": driver.unary, "latency": driver.latency, "bidi": driver.bidi, "paced": driver.paced})


if __name__ == "__main__":
    run({"server": server, "client": client}[sys.argv[1]](sys.argv[2]))
