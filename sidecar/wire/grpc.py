"""A transport over one bidirectional RPC of grpc.aio, on the serving side.

The only place where the sidecar awaits a gRPC stream. Messages are bytes on both ways: the method handlers are made
without (de)serialisers.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

import grpc
import grpc.aio

from sidecar.wire.transport import StreamLost

MIB = 1024 * 1024

SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    # Beyond this a message is a lost stream of unknown cause, so it is far above the limit that is refused by name.
    ("grpc.max_receive_message_length", 64 * MIB),
    ("grpc.max_send_message_length", 64 * MIB),
    # With bandwidth probing on, a stalled reader makes gRPC buffer up to 20 MiB a stream.
    ("grpc.http2.bdp_probe", 0),
    # A second server on the same TCP port must fail to start rather than share it.
    ("grpc.so_reuseport", 0),
    # Clients that ping every 10 s, also without calls, are welcome.
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 20_000),
)


class GrpcTransport:
    """The server's end of one RPC."""

    def __init__(self, context: "grpc.aio.ServicerContext[bytes, bytes]") -> None:
        self._context: Any = context

    async def read(self) -> bytes | None:
        """The peer's next message; `None` once it has half-closed.

        :raises StreamLost: if the RPC is gone.
        """
        try:
            message = await self._context.read()
        except (grpc.RpcError, grpc.aio.BaseError) as error:
            raise StreamLost from error
        return None if message is grpc.aio.EOF else message

    async def tell(self, facts: Mapping[str, str]) -> None:
        """Sends the metadata that comes before all messages. Once, and first.

        :raises StreamLost: if the RPC is gone.
        """
        try:
            await self._context.send_initial_metadata(tuple(facts.items()))
        except (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError) as error:
            raise StreamLost from error

    async def write(self, message: bytes) -> None:
        """Hands a message to gRPC; returns when flow control took it.

        :raises StreamLost: if the RPC is gone.
        """
        try:
            await self._context.write(message)
        except (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError) as error:
            raise StreamLost from error
