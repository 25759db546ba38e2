"""One bulk transfer over grpc.aio, on the serving side: messages of bytes one way, under flow control.

Beside `sidecar.wire.grpc` the only place where the sidecar awaits a gRPC stream.
"""

import asyncio
from typing import Any

import grpc
import grpc.aio

from sidecar.wire.limits import MIB
from sidecar.wire.transport import StreamLost

_DRAIN_SECONDS = 1.0
_DRAIN_BYTES = 16 * MIB


class Stalled(Exception):
    """The peer sent or took nothing for too long."""


class BulkStream:
    """The server's end of one RPC. What is read or written is one message at a time, so that no more is in memory."""

    def __init__(self, context: "grpc.aio.ServicerContext[Any, Any]", stall_after: float) -> None:
        self._context: Any = context
        self._stall_after = stall_after
        self.is_begun = False
        """Whether anything was written, so that the RPC can only be ended behind it."""

    async def tell(self, facts: dict[str, str]) -> None:
        """Sends initial metadata, before anything is written.

        :raises StreamLost: if the RPC is gone.
        """
        try:
            await self._context.send_initial_metadata(tuple(facts.items()))
        except (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError) as error:
            raise StreamLost from error

    async def read(self) -> bytes | None:
        """The peer's next message; `None` once it has half-closed.

        :raises StreamLost: if the RPC is gone.
        :raises Stalled: if nothing came for too long.
        """
        try:
            async with asyncio.timeout(self._stall_after):
                message = await self._context.read()
        except TimeoutError:
            raise Stalled from None
        except (grpc.RpcError, grpc.aio.BaseError) as error:
            raise StreamLost from error
        return None if message is grpc.aio.EOF else message

    async def write(self, message: bytes) -> None:
        """Hands a message to gRPC; returns when flow control took it.

        :raises StreamLost: if the RPC is gone.
        :raises Stalled: if the peer took nothing for too long.
        """
        self.is_begun = True
        try:
            async with asyncio.timeout(self._stall_after):
                await self._context.write(message)
        except TimeoutError:
            raise Stalled from None
        except (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError) as error:
            raise StreamLost from error

    async def drain(self) -> None:
        """Reads on for a little, and forgets what comes: until the peer has half-closed, or it is too much.

        Where an RPC ends while its peer writes, some peers take the failed write for the end, and not the status.
        """
        left = _DRAIN_BYTES
        try:
            async with asyncio.timeout(_DRAIN_SECONDS):
                while left > 0 and (message := await self._context.read()) is not grpc.aio.EOF:
                    left -= len(message)
        except (TimeoutError, grpc.RpcError, grpc.aio.BaseError):
            return
