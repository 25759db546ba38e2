"""What the catalogue of a sidecar is, from snapshot to snapshot."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import grpc.aio

from sidecar._gen.pillion.v1.execute_pb2 import WatchToolsRequest, WatchToolsResponse

_PATIENCE = 30.0


class Watch:
    """The names of the tools that there were, and waiting for those that are to come."""

    def __init__(self) -> None:
        self.seen: list[set[str]] = []
        self._news = asyncio.Event()

    async def run(self, channel: grpc.aio.Channel) -> None:
        """Watches until it is cancelled."""
        watch: grpc.aio.UnaryStreamMultiCallable[WatchToolsRequest, WatchToolsResponse] = channel.unary_stream(
            "/pillion.v1.ToolHostService/WatchTools",
            WatchToolsRequest.SerializeToString,
            WatchToolsResponse.FromString,
        )
        async for answer in watch(WatchToolsRequest()):
            self.seen.append({tool.name for tool in answer.tools})
            self._news.set()

    async def until(self, *names: str) -> None:
        """Returns once exactly these tools are there."""
        await self._until(lambda now: now == set(names))

    async def has(self, name: str) -> None:
        """Returns once this tool is there, among whatever else."""
        await self._until(lambda now: name in now)

    async def _until(self, condition: Callable[[set[str]], bool]) -> None:
        async with asyncio.timeout(_PATIENCE):
            while not self.seen or not condition(self.seen[-1]):
                self._news.clear()
                await self._news.wait()


@asynccontextmanager
async def watched(callers_at: str) -> AsyncIterator[Watch]:
    """Watches inside the block."""
    watch = Watch()
    async with grpc.aio.insecure_channel(callers_at) as channel:
        task = asyncio.ensure_future(watch.run(channel))
        try:
            yield watch
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
