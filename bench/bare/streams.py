"""One `Execute` stream over bare stubs, and the templates of what is sent on it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import grpc.aio

from bench import tools
from bench.bare.frames import Template, batch
from bench.bare.stubs import (
    CANCEL_REASON_CALLER,
    EXECUTE,
    CallerAnswer,
    CallerHello,
    Cancel,
    ExecuteResponse,
    Frame,
    Reply,
    Start,
)


class CallFailed(RuntimeError):
    """A call of the benchmark ended in something else than a result: what was measured means nothing."""


def start(tool: str, arguments: dict[str, Any] | None = None, **fields: Any) -> Template:
    """The frame that opens a call of `tool`, with further `fields` of `Start`."""
    text = json.dumps(arguments or {}, separators=(",", ":")).encode()
    return Template(Frame(start=Start(tool=tool, arguments=text, **fields)))


CANCEL = Template(Frame(cancel=Cancel(reason=CANCEL_REASON_CALLER)))
HELLO = batch(Frame(caller_hello=CallerHello()))
ANSWERING = batch(Frame(caller_hello=CallerHello(can_answer=[tools.ASKED])))


class Stream:
    """One `Execute` stream. Call ids count up from 1; one coroutine reads, one writes."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._call: grpc.aio.StreamStreamCall[bytes, bytes] = channel.stream_stream(EXECUTE)()
        self._last = 0
        self.progress = 0
        """How many progress frames `results` has seen."""

    def open(self, template: Template) -> tuple[int, bytes]:
        """A new call's id and the message that starts it, not yet sent."""
        self._last += 1
        return self._last, template.fill(self._last)

    def open_many(self, template: Template, count: int) -> bytes:
        """One message that starts `count` new calls."""
        first = self._last + 1
        self._last += count
        return b"".join([template.fill(call) for call in range(first, first + count)])

    async def write(self, message: bytes) -> None:
        """Hands `message` to gRPC."""
        await self._call.write(message)

    async def read(self) -> Iterator[Frame]:
        """The frames of the next message; raises CallFailed when the stream ended."""
        message = await self._call.read()
        if not isinstance(message, bytes):
            raise CallFailed(f"the stream ended: {await self._call.code()}")
        return iter(ExecuteResponse.FromString(message).frames)

    async def results(self) -> list[int]:
        """The ids of the calls that the next message ends; raises CallFailed for one that did not return."""
        ended = []
        for frame in await self.read():
            if frame.HasField("outcome"):
                if not frame.outcome.HasField("result"):
                    raise CallFailed(str(frame.outcome.failure)[:200])
                ended.append(frame.call)
            elif frame.HasField("progress"):
                self.progress += 1
            elif frame.HasField("stream_error"):
                raise CallFailed(frame.stream_error.message)
        return ended

    async def outcome(self) -> None:
        """Reads until a call ended with a result."""
        while not await self.results():
            pass

    async def returned(self) -> Any:
        """Reads until the one call that runs has returned, and answers what it asks with what it asks."""
        while True:
            for frame in await self.read():
                if frame.HasField("caller_request"):
                    asked = frame.caller_request
                    answer = CallerAnswer(result=asked.params)
                    reply = Reply(request_id=asked.request_id, caller=answer)
                    await self.write(batch(Frame(call=frame.call, reply=reply)))
                elif frame.HasField("outcome"):
                    if not frame.outcome.HasField("result"):
                        raise CallFailed(str(frame.outcome.failure)[:200])
                    return json.loads(frame.outcome.result.json)

    async def ended(self, count: int) -> None:
        """Reads until `count` calls have ended, whatever their outcome."""
        while count > 0:
            count -= sum(frame.HasField("outcome") for frame in await self.read())

    async def reported(self, count: int) -> None:
        """Reads until `count` progress frames have come."""
        while count > 0:
            count -= sum(frame.HasField("progress") for frame in await self.read())

    async def close(self) -> None:
        """Half-closes, if the stream is still open."""
        if not self._call.done():
            await self._call.done_writing()

    def cancel(self) -> None:
        """Drops the stream with all its calls."""
        self._call.cancel()
