"""A worker over bare stubs: `python -m bench.bare.worker TARGET SET TOKEN_FILE CONCURRENCY TOOL...`.

It attaches, then talks the control line of `bench.control`. No task and no await belongs to one call, except in the
tools that last.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Callable, Coroutine
from itertools import pairwise
from pathlib import Path
from typing import Any

import grpc.aio

from bench import tools
from bench.bare.descriptors import descriptors
from bench.bare.frames import Template, batch
from bench.bare.outbound import Repeated
from bench.bare.stubs import (
    ATTACH,
    FAILURE_KIND_CANCELLED,
    TEARDOWN_SCOPE_SESSION,
    AttachResponse,
    CallerAsk,
    Failure,
    Frame,
    Goodbye,
    OutboundRequest,
    Outcome,
    Pong,
    Progress,
    RegisterTeardown,
    Result,
    TeardownDone,
    ToolsCall,
    WorkerHello,
)
from bench.control import Answer, Window, quantile, run, serve
from bench.grpc_options import CHANNEL_OPTIONS

MESSAGE_FRAMES = 128

_REPORTS = tuple(Frame(progress=Progress(payload=json.dumps(payload).encode())) for payload in tools.PROGRESS)


def _returning(result: bytes) -> Template:
    """The outcome of a call that returns this."""
    return Template(Frame(outcome=Outcome(result=Result(json=result))))


_DONE = _returning(b"{}")
_CANCELLED = Template(Frame(outcome=Outcome(failure=Failure(kind=FAILURE_KIND_CANCELLED, message="cancelled"))))
_ONE_REPORT = Template(_REPORTS[0])


class Worker:
    """One attached instance.

    A tool that lasts ends by itself when its call leaves `_lasting`: cancelling its task inside a write would cancel
    the whole stream.
    """

    def __init__(self, stream: grpc.aio.StreamStreamCall[bytes, bytes]) -> None:
        self._stream = stream
        self._queue: list[bytes] = []
        self._flushed = asyncio.Event()
        self._flushed.set()
        self._answers: dict[tuple[str, bytes], Template] = {}
        self._lasting: dict[int, asyncio.Task[None]] = {}
        self._asking: dict[int, Repeated] = {}
        self._held: set[int] = set()
        self._cancelled_at: list[float] = []
        self._sent_in_bursts = 0
        self._instant: dict[str, Callable[[int, bytes], bytes]] = {
            tools.REPORT: self._report,
            tools.ECHO: self._echo,
            tools.SIGNED: self._echo,
            tools.HELD: self._echo,
            tools.SINK: self._sink,
            tools.HOLD: self._hold,
        }
        self._slow: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {
            tools.FLOOD: self._flood,
            tools.BURST: self._burst,
            tools.NEST: self._nest,
            tools.ASK: self._ask,
            tools.KEEP: self._keep,
        }

    async def read(self) -> None:
        """Answers the sidecar until it ends the stream."""
        while isinstance(message := await self._stream.read(), bytes):
            for frame in AttachResponse.FromString(message).frames:
                if frame.HasField("invoke"):
                    self._invoke(frame)
                elif frame.HasField("reply"):
                    self._asking[frame.call].replied(frame.reply)
                elif frame.HasField("run_teardown"):
                    done = TeardownDone(registration_id=frame.run_teardown.registration_id)
                    self._queue.append(batch(Frame(teardown_done=done)))
                elif frame.HasField("cancel"):
                    self._cancel(frame.call)
                elif frame.HasField("ping"):
                    self._queue.append(batch(Frame(pong=Pong(nonce=frame.ping.nonce))))
            await self.flush()

    async def flush(self) -> None:
        """Sends what is queued, all of it in the next message; returns at once when another flush is on its way."""
        if not self._flushed.is_set():
            return
        self._flushed.clear()
        try:
            while self._queue:
                message = b"".join(self._queue)
                self._queue.clear()
                await self._stream.write(message)
        finally:
            self._flushed.set()

    def _invoke(self, frame: Frame) -> None:
        invoke = frame.invoke
        instant = self._instant.get(invoke.tool)
        if instant is not None:
            self._queue.append(instant(frame.call, invoke.arguments))
        else:
            arguments = json.loads(invoke.arguments)
            self._lasting[frame.call] = asyncio.ensure_future(self._slow[invoke.tool](frame.call, **arguments))

    def _cancel(self, call: int) -> None:
        if call in self._held:
            self._cancelled_at.append(time.perf_counter())
            self._held.remove(call)
            self._queue.append(_CANCELLED.fill(call))
        elif self._lasting.pop(call, None) is not None:
            self._queue.append(_CANCELLED.fill(call))

    def _report(self, call: int, arguments: bytes) -> bytes:
        return self._answer(tools.REPORT, arguments, *_REPORTS).fill(call)

    def _echo(self, call: int, arguments: bytes) -> bytes:
        return self._answer(tools.ECHO, arguments).fill(call)

    def _sink(self, call: int, _arguments: bytes) -> bytes:
        return _DONE.fill(call)

    def _hold(self, call: int, _arguments: bytes) -> bytes:
        self._held.add(call)
        return _ONE_REPORT.fill(call)

    def _answer(self, tool: str, arguments: bytes, *reports: Frame) -> Template:
        template = self._answers.get((tool, arguments))
        if template is None:
            if len(self._answers) >= 64:
                self._answers.clear()
            template = Template(*reports, Frame(outcome=Outcome(result=Result(json=arguments))))
            self._answers[(tool, arguments)] = template
        return template

    async def _flood(self, call: int, per_second: int) -> None:
        report = _ONE_REPORT.fill(call)
        start, sent = time.perf_counter(), 0
        while call in self._lasting and (elapsed := time.perf_counter() - start) < tools.LONGEST_FLOOD_SECONDS:
            due = int(elapsed * per_second) - sent
            self._queue.extend([report] * due)
            sent += due
            await self.flush()
            await asyncio.sleep(0.001)
        await self._finish(call)

    async def _burst(self, call: int, count: int) -> None:
        reports = _ONE_REPORT.fill(call) * MESSAGE_FRAMES
        for _ in range(count // MESSAGE_FRAMES):
            await self._flushed.wait()
            self._queue.append(reports)
            await self.flush()
            self._sent_in_bursts += MESSAGE_FRAMES
            if call not in self._lasting:
                break
        await self._finish(call)

    async def _nest(self, call: int, width: int, seconds: float, watch: int) -> None:
        asked = OutboundRequest(tools_call=ToolsCall(tool=tools.ECHO, arguments=json.dumps(tools.ARGUMENTS).encode()))
        messages = [b""]
        for asked.request_id in range(1, width + 1):
            messages.append(batch(Frame(call=call, outbound_request=asked)))  # the id is set in place
        repeated = await self._repeat(call, lambda request_id, _: messages[request_id], width)
        await asyncio.sleep(seconds / 5)
        window, before = Window(watch), len(repeated.answered_at)
        await asyncio.sleep(seconds)
        answer = window.close(len(repeated.answered_at) - before)
        await repeated.stop()
        await self._finish(call, answer)

    async def _ask(self, call: int, count: int) -> None:
        asked = CallerAsk(method=tools.ASKED, params=json.dumps(tools.ARGUMENTS).encode())
        message = batch(Frame(call=call, outbound_request=OutboundRequest(request_id=1, caller_request=asked)))
        await self._one_by_one(call, count, lambda *_: message)

    async def _keep(self, call: int, count: int) -> None:
        def message(request_id: int, answered: int) -> bytes:
            registration = RegisterTeardown(request_id=request_id, scope=TEARDOWN_SCOPE_SESSION, name=str(answered))
            return batch(Frame(call=call, register_teardown=registration))

        await self._one_by_one(call, count, message)

    async def _one_by_one(self, call: int, count: int, message: Callable[[int, int], bytes]) -> None:
        repeated = await self._repeat(call, message, 1)
        await repeated.answered(count + 1)
        await repeated.stop()
        took = [end - begin for begin, end in pairwise(repeated.answered_at[: count + 1])]
        await self._finish(call, {"p50_ms": quantile(took[count // 10 :], 0.5) * 1e3})

    async def _repeat(self, call: int, message: Callable[[int, int], bytes], width: int) -> Repeated:
        repeated = self._asking[call] = Repeated(message, width, self._queue.append)
        await self.flush()
        return repeated

    async def _finish(self, call: int, result: Answer | None = None) -> None:
        """Ends a lasting call with its result, unless a cancel has ended it."""
        self._asking.pop(call, None)
        if self._lasting.pop(call, None) is not None:
            done = _DONE if result is None else _returning(json.dumps(result).encode())
            self._queue.append(done.fill(call))
            await self.flush()

    async def held(self) -> Answer:
        """How many calls wait for a cancel."""
        return {"held": len(self._held)}

    async def cancels(self) -> Answer:
        """When each cancel of a held call arrived, in order, on the clock that all processes share; forgets them."""
        stamps, self._cancelled_at = self._cancelled_at, []
        return {"at": stamps}

    async def bursts(self) -> Answer:
        """How many reports `burst` has handed over so far."""
        return {"sent": self._sent_in_bursts}

    async def leave(self) -> None:
        """Says goodbye and half-closes, as far as the stream still can."""
        self._lasting.clear()
        self._queue.append(batch(Frame(goodbye=Goodbye())))
        with contextlib.suppress(TimeoutError, grpc.aio.AioRpcError, asyncio.InvalidStateError):
            async with asyncio.timeout(2):
                await self.flush()
                await self._stream.done_writing()


async def main(target: str, name: str, token_file: str, concurrency: str, *names: str) -> None:
    """Attaches, announces the instance id, and serves until stdin or the stream ends."""
    token = (await asyncio.to_thread(Path(token_file).read_text)).strip()
    hello = WorkerHello(
        worker=name, token=token, tools=descriptors(list(names)), concurrency=int(concurrency), sdk="bench"
    )
    async with grpc.aio.insecure_channel(target, options=CHANNEL_OPTIONS) as channel:
        stream: grpc.aio.StreamStreamCall[bytes, bytes] = channel.stream_stream(ATTACH)(wait_for_ready=True)
        await stream.write(batch(Frame(worker_hello=hello)))
        message = await stream.read()
        if not isinstance(message, bytes):
            raise ConnectionError(f"not admitted: {await stream.code()} {await stream.details()}")
        welcome = AttachResponse.FromString(message).frames[0].welcome
        if welcome.refused:
            raise ConnectionError(f"refused: {welcome.refused}")
        worker = Worker(stream)
        reading = asyncio.ensure_future(worker.read())
        serving = asyncio.ensure_future(
            serve(
                {"held": worker.held, "cancels": worker.cancels, "bursts": worker.bursts},
                instance=welcome.instance_id,
            )
        )
        try:
            await asyncio.wait({reading, serving}, return_when=asyncio.FIRST_COMPLETED)
            await worker.leave()
        finally:
            reading.cancel()
            serving.cancel()


if __name__ == "__main__":
    run(main(*sys.argv[1:]))
