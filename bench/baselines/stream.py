"""Bytes over a bare grpc.aio stream, server and client: what gRPC itself costs a download.

`python -m bench.baselines.stream server TARGET` and `client` in its place talk the control line of `bench.control`.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import grpc.aio

from bench.baselines.server import serve_until_told
from bench.control import Answer, run, serve
from bench.grpc_options import CHANNEL_OPTIONS

BYTES = "/bench.Stream/Bytes"
CHUNK_BYTES = 256 * 1024
"""What the sidecar sends a download by."""
_CHUNK = bytes(CHUNK_BYTES)


async def _bytes(request: bytes, context: Any) -> None:
    for _ in range(int(request) // CHUNK_BYTES):
        await context.write(_CHUNK)


async def server(target: str) -> None:
    """Streams on `target` until stdin ends."""
    await serve_until_told(target, "bench.Stream", {"Bytes": grpc.unary_stream_rpc_method_handler(_bytes)})


async def client(target: str) -> None:
    """Answers the command `download` against the server at `target` until stdin ends."""
    async with grpc.aio.insecure_channel(target, options=CHANNEL_OPTIONS) as channel:
        await channel.channel_ready()
        stream: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(BYTES)

        async def download(*, size: int) -> Answer:
            """Reads so many bytes."""
            began, taken = time.perf_counter(), 0
            call = stream(str(size).encode())
            while isinstance(chunk := await call.read(), bytes):
                taken += len(chunk)
            if taken != size:
                raise ValueError(f"{taken} bytes came")
            return {"seconds": time.perf_counter() - began}

        await serve({"download": download})


if __name__ == "__main__":
    run({"server": server, "client": client}[sys.argv[1]](sys.argv[2]))
