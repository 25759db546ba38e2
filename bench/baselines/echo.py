"""A bare grpc.aio unary echo, server and client: what gRPC itself costs.

Messages are raw bytes on both sides, so nothing but gRPC is measured. `python -m bench.baselines.echo server TARGET`
and `client` in its place talk the control line of `bench.control`.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import grpc.aio

from bench.baselines.server import serve_until_told
from bench.control import Answer, Window, quantile, run, serve
from bench.grpc_options import CHANNEL_OPTIONS

UNARY = "/bench.Echo/Unary"


async def _unary(request: bytes, _context: Any) -> bytes:
    return request


async def server(target: str) -> None:
    """Echoes on `target` until stdin ends."""
    await serve_until_told(target, "bench.Echo", {"Unary": grpc.unary_unary_rpc_method_handler(_unary)})


class Client:
    """Drives one echo server over one channel."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._unary: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(UNARY)

    async def unary(self, *, in_flight: int, seconds: float, payload: str, watch: int) -> Answer:
        """Unary calls, `in_flight` at a time, for `seconds` after a warm-up of a fifth of that."""
        call, message = self._unary, payload.encode()
        running, done = True, 0

        async def loop() -> None:
            nonlocal done
            while running:
                await call(message)
                done += 1

        loops = [asyncio.ensure_future(loop()) for _ in range(in_flight)]
        await asyncio.sleep(seconds / 5)
        window, before = Window(watch), done
        await asyncio.sleep(seconds)
        answer = window.close(done - before)
        running = False
        await asyncio.gather(*loops)
        return answer

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


async def client(target: str) -> None:
    """Answers the commands `unary` and `latency` against the server at `target` until stdin ends."""
    async with grpc.aio.insecure_channel(target, options=CHANNEL_OPTIONS) as channel:
        await channel.channel_ready()
        driver = Client(channel)
        await serve({"unary": driver.unary, "latency": driver.latency})


if __name__ == "__main__":
    run({"server": server, "client": client}[sys.argv[1]](sys.argv[2]))
