"""Many sessions, each with a call that keeps something for their end."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Self

import grpc.aio

from sidecar._gen.pillion.v1.attach_pb2 import AttachRequest
from sidecar._gen.pillion.v1.attach_pb2_grpc import WorkerHostServiceStub
from sidecar._gen.pillion.v1.context_pb2 import Identity, TeardownScope
from sidecar._gen.pillion.v1.execute_pb2 import EndScopeRequest, ExecuteRequest, GetInfoRequest
from sidecar._gen.pillion.v1.execute_pb2_grpc import ToolHostServiceStub
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.worker_pb2 import WorkerHello
from tests.support.tools import tool
from tests.support.worker import token_of

_AT_ONCE = 128
_TENANTS = 8
_ENDED = 8
"""One of so many sessions is ended by its caller; the others give way, and the last grow idle."""
_PATIENCE = 60.0
_LOOK_SECONDS = 0.2


class Outgoing:
    """Frames on their way to the sidecar, as many in a message as there are."""

    def __init__(self) -> None:
        self._frames: list[Frame] = []
        self._news = asyncio.Event()

    def put(self, *frames: Frame) -> None:
        """Sends frames."""
        self._frames += frames
        self._news.set()

    async def batches(self) -> AsyncIterator[list[Frame]]:
        """What is to be sent, message by message."""
        while True:
            await self._news.wait()
            self._news.clear()
            frames, self._frames = self._frames, []
            yield frames


class Sessions:
    """A worker and a caller of their own. To be used as a context."""

    def __init__(self, callers_at: str, workers_at: str) -> None:
        self._callers = grpc.aio.insecure_channel(callers_at)
        self._workers = grpc.aio.insecure_channel(workers_at)
        self._host = ToolHostServiceStub(self._callers)
        self._to_worker, self._to_caller = Outgoing(), Outgoing()
        self._numbers = itertools.count(1)
        self._free = asyncio.Semaphore(_AT_ONCE)
        self._attached = asyncio.Event()
        self._open: set[int] = set()
        self._failed: list[str] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._ending: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._to_worker.put(Frame(worker_hello=WorkerHello(worker="main", token=token_of("main"), tools=[tool()])))
        self._tasks += [asyncio.ensure_future(self._work()), asyncio.ensure_future(self._hear())]
        await asyncio.wait_for(self._attached.wait(), _PATIENCE)
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._callers.close()
        await self._workers.close()

    async def run(self, count: int) -> None:
        """Runs so many sessions to their end, and returns once the sidecar keeps nothing for any."""
        for _ in range(count):
            await asyncio.wait_for(self._free.acquire(), _PATIENCE)
            number = next(self._numbers)
            frame = Frame(call=number)
            frame.start.tool = "echo"
            frame.start.session_id = f"session-{number}"
            frame.start.run_id = f"run-{number}"
            frame.start.identity.tenant = f"tenant-{number % _TENANTS}"
            self._open.add(number)
            self._to_caller.put(frame)
        async with asyncio.timeout(_PATIENCE):
            while self._open or self._ending or await self._kept():  # noqa: ASYNC110  # it is another process that ends them
                await asyncio.sleep(_LOOK_SECONDS)
        assert not self._failed, self._failed[:3]

    async def counters(self) -> dict[str, int]:
        """What the sidecar has counted."""
        return dict((await self._host.GetInfo(GetInfoRequest())).counters)

    async def _kept(self) -> int:
        counters = await self.counters()
        assert not counters.get("failed_teardowns", 0) + counters.get("lost_teardowns", 0), counters
        return counters.get("registrations", 0) - counters.get("teardowns", 0)

    async def _work(self) -> None:
        """Registers for the session and the call in each call, ends it, and runs what fires."""

        async def requests() -> AsyncIterator[AttachRequest]:
            async for frames in self._to_worker.batches():
                yield AttachRequest(frames=frames)

        async for message in WorkerHostServiceStub(self._workers).Attach(requests()):
            for frame in message.frames:
                match frame.WhichOneof("body"):
                    case "welcome":
                        self._attached.set()
                    case "invoke":
                        self._to_worker.put(
                            _registration(frame.call, 1, TeardownScope.TEARDOWN_SCOPE_SESSION),
                            _registration(frame.call, 2, TeardownScope.TEARDOWN_SCOPE_CALL),
                        )
                    case "reply" if frame.reply.request_id == 1:
                        ended = Frame(call=frame.call)
                        ended.outcome.result.json = b"1"
                        self._to_worker.put(ended)
                    case "run_teardown":
                        done = Frame()
                        done.teardown_done.registration_id = frame.run_teardown.registration_id
                        self._to_worker.put(done)
                    case "ping":
                        pong = Frame()
                        pong.pong.nonce = frame.ping.nonce
                        self._to_worker.put(pong)

    async def _hear(self) -> None:
        """Counts outcomes, and ends some of the sessions."""

        async def requests() -> AsyncIterator[ExecuteRequest]:
            async for frames in self._to_caller.batches():
                yield ExecuteRequest(frames=frames)

        async for message in self._host.Execute(requests()):
            for frame in message.frames:
                if not frame.HasField("outcome"):
                    continue
                if not frame.outcome.HasField("result"):
                    self._failed.append(str(frame.outcome))
                self._open.discard(frame.call)
                self._free.release()
                if frame.call % _ENDED == 0:
                    ending = asyncio.ensure_future(self._end(frame.call))
                    self._ending.add(ending)
                    ending.add_done_callback(self._ending.discard)

    async def _end(self, number: int) -> None:
        identity = Identity(tenant=f"tenant-{number % _TENANTS}")
        await self._host.EndScope(EndScopeRequest(session_id=f"session-{number}", identity=identity))


def _registration(call: int, number: int, scope: "TeardownScope.ValueType") -> Frame:
    frame = Frame(call=call)
    frame.register_teardown.request_id = number
    frame.register_teardown.scope = scope
    return frame
