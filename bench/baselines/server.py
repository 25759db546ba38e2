"""A bare grpc.aio server of one service, as the baselines have it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import grpc.aio

from bench.control import serve
from bench.grpc_options import CHANNEL_OPTIONS


async def serve_until_told(target: str, service: str, handlers: Mapping[str, grpc.RpcMethodHandler[Any, Any]]) -> None:
    """Serves the methods of a service on `target` until stdin ends."""
    server = grpc.aio.server(options=CHANNEL_OPTIONS)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, dict(handlers)),))
    server.add_insecure_port(target)
    await server.start()
    try:
        await serve({})
    finally:
        await server.stop(0)
