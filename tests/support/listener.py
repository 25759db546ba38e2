"""A sidecar to whom workers attach, and whose every frame is the test's."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

import pillion
from pillion._gen.pillion.v1 import context_pb2, worker_pb2
from pillion._gen.pillion.v1.attach_pb2 import AttachRequest, AttachResponse
from pillion._gen.pillion.v1.frame_pb2 import Frame

Hosting = Callable[..., pillion.Worker]
"""Runs a worker with these tools, by its other settings."""


class Stream:
    """The sidecar's end of one `Attach`."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._kept: list[Frame] = []
        self.status: asyncio.Future[tuple[grpc.StatusCode, str]] = asyncio.get_running_loop().create_future()

    async def send(self, *frames: Frame) -> None:
        await self._context.write(AttachResponse(frames=frames).SerializeToString())

    async def next(self, body: str) -> Frame:
        """The next frame with this body; what comes before it is skipped."""
        async with asyncio.timeout(10):
            while True:
                while self._kept:
                    frame = self._kept.pop(0)
                    if frame.WhichOneof("body") == body:
                        return frame
                message = await self._context.read()
                assert message is not grpc.aio.EOF, f"the stream ended before a {body}"
                self._kept += AttachRequest.FromString(message).frames

    async def ended(self) -> bool:
        """Whether the worker half-closes next, with nothing more to say."""
        async with asyncio.timeout(10):
            return not self._kept and await self._context.read() is grpc.aio.EOF

    async def welcome(self, instance: str = "ins_1", window: float = 60) -> worker_pb2.WorkerHello:
        hello = (await self.next("worker_hello")).worker_hello
        frame = Frame()
        frame.welcome.instance_id, frame.welcome.reattach_secret = instance, f"secret of {instance}"
        frame.welcome.limits.max_frame_bytes, frame.welcome.limits.max_inline_bytes = 1 << 20, 1 << 16
        frame.welcome.reattach_window.FromMilliseconds(int(window * 1_000))
        await self.send(frame)
        return hello

    async def invoke(self, call: int, tool: str, arguments: bytes = b"{}", **context: Any) -> None:
        frame = Frame(call=call)
        frame.invoke.tool, frame.invoke.arguments = tool, arguments
        frame.invoke.context.CopyFrom(context_pb2.ToolContext(execution_id=f"exe_{call}", **context))
        frame.invoke.context.remaining.seconds = 60
        await self.send(frame)

    def end(self, code: grpc.StatusCode = grpc.StatusCode.OK, details: str = "") -> None:
        self.status.set_result((code, details))


class WorkerListener:
    """A listener for workers."""

    def __init__(self, path: Path) -> None:
        self.target = f"unix:{path}"
        self.streams: asyncio.Queue[Stream] = asyncio.Queue()
        self._server = grpc.aio.server()
        handler: Any = grpc.stream_stream_rpc_method_handler(self._attach)
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("pillion.v1.WorkerHostService", {"Attach": handler}),)
        )
        self._server.add_insecure_port(self.target)

    async def _attach(self, _requests: Any, context: Any) -> None:
        stream = Stream(context)
        self.streams.put_nowait(stream)
        code, details = await stream.status
        context.set_code(code)
        context.set_details(details)

    async def start(self) -> None:
        await self._server.start()

    async def stream(self) -> Stream:
        """The next stream that a worker opens."""
        async with asyncio.timeout(10):
            return await self.streams.get()

    async def stop(self) -> None:
        await self._server.stop(0)
