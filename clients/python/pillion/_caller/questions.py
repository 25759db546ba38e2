"""What a caller is asked on behalf of a running tool, and how it answers."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pillion import _json
from pillion._facts import seconds_of
from pillion._failures import PillionError
from pillion._gen.pillion.v1.frame_pb2 import Frame
from pillion._gen.pillion.v1.outbound_pb2 import ReplyErrorCode
from pillion._wire.stream import FrameStream

_log = logging.getLogger("pillion")

_AT_ONCE = 256
_CONSENT = "consent"


@dataclass(frozen=True, slots=True)
class Question:
    """One thing that the caller is asked."""

    method: str
    """The JSON-RPC method, or `consent`."""
    params: Any
    """The parameters; `None` where there are none. From the tool, not trusted."""
    timeout: float
    """How many seconds an answer is waited for."""
    tool: str | None
    """The inner tool that really asks; `None` for the call's own."""


class PeerError(PillionError):
    """Raised by a handler: the answer is this JSON-RPC error, which the tool gets unaltered."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


Handler = Callable[[Question], Awaitable[Any]]
"""Answers a question with a JSON value; `None` is an answer without a value."""


class Questions:
    """The handlers of a caller. Each question has a task, and there are at most 256 at a time."""

    def __init__(self, handlers: Mapping[str, Handler]) -> None:
        self._handlers = dict(handlers)
        self._open: dict[asyncio.Task[None], tuple[FrameStream, int] | None] = {}
        """By the stream and the call that they answer in, if they do."""

    @property
    def methods(self) -> tuple[str, ...]:
        """What can be asked."""
        return tuple(self._handlers)

    def ask(self, frame: Frame, stream: FrameStream) -> None:
        """Answers a question on the stream that it came on."""
        request = frame.caller_request
        handler = self._handlers.get(request.method)
        if handler is None or len(self._open) >= _AT_ONCE:
            code = (
                ReplyErrorCode.REPLY_ERROR_CODE_UNSUPPORTED_BY_CALLER
                if handler is None
                else ReplyErrorCode.REPLY_ERROR_CODE_OVERLOADED
            )
            stream.send(_refusal(frame.call, request.request_id, code, "The caller does not answer this now."))
            return
        try:
            params = _json.decode(request.params) if request.HasField("params") else None
        except _json.JsonRefused as refused:
            code = ReplyErrorCode.REPLY_ERROR_CODE_PEER_MALFORMED
            stream.send(_refusal(frame.call, request.request_id, code, str(refused)))
            return
        tool = request.origin.tool if request.HasField("origin") else None
        question = Question(request.method, params, seconds_of(request.timeout), tool)
        self._spawn(self._answer(handler, question, frame.call, request.request_id, stream), (stream, frame.call))

    def consent(self, frame: Frame) -> None:
        """Tells the caller where a person authorises a service. There is no answer."""
        handler = self._handlers.get(_CONSENT)
        if handler is not None and len(self._open) < _AT_ONCE:
            consent = frame.consent
            question = Question(_CONSENT, {"service": consent.service, "url": consent.url}, 0.0, None)
            self._spawn(self._tell(handler, question), None)

    def withdraw(self, stream: FrameStream, call: int | None = None) -> None:
        """A stream is gone, or a call on it is over: nobody waits for answers there any more."""
        for task, where in self._open.items():
            if where is not None and where[0] is stream and call in (None, where[1]):
                task.cancel()

    async def close(self) -> None:
        """Ends the handlers that run."""
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    def _spawn(self, work: Any, where: tuple[FrameStream, int] | None) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._open[task] = where
        task.add_done_callback(self._open.pop)

    async def _tell(self, handler: Handler, question: Question) -> None:
        try:
            await handler(question)
        except Exception:  # noqa: BLE001  # a caller's handler harms no stream
            _log.exception("the handler of %s failed", question.method)

    async def _answer(
        self, handler: Handler, question: Question, call: int, request_id: int, stream: FrameStream
    ) -> None:
        try:
            frame = await _answered(handler, question, call, request_id)
        except TimeoutError:
            frame = _refusal(call, request_id, ReplyErrorCode.REPLY_ERROR_CODE_PEER_TIMEOUT, "No answer came in time.")
        except Exception:  # noqa: BLE001  # as above
            _log.exception("the handler of %s failed", question.method)
            code = ReplyErrorCode.REPLY_ERROR_CODE_INTERNAL
            frame = _refusal(call, request_id, code, "The caller failed to answer.")
        data = frame.SerializeToString()
        if len(data) > stream.outbox.limits.frame_bytes:
            code = ReplyErrorCode.REPLY_ERROR_CODE_PEER_MALFORMED
            data = _refusal(call, request_id, code, "The answer is over the largest frame.").SerializeToString()
        stream.outbox.control(data)


async def _answered(handler: Handler, question: Question, call: int, request_id: int) -> Frame:
    """A handler's answer, or its error."""
    frame = Frame(call=call)
    frame.reply.request_id = request_id
    try:
        async with asyncio.timeout(question.timeout or None):
            answer = await handler(question)
    except PeerError as error:
        frame.reply.error.code = ReplyErrorCode.REPLY_ERROR_CODE_PEER_ERROR
        frame.reply.error.peer.code = error.code
        frame.reply.error.peer.message = error.message[:1_024]
        if error.data is not None:
            frame.reply.error.peer.data = _json.encode(error.data)
        return frame
    frame.reply.caller.SetInParent()
    if answer is not None:
        frame.reply.caller.result = _json.encode(answer)
    return frame


def _refusal(call: int, request_id: int, code: "ReplyErrorCode.ValueType", message: str) -> Frame:
    frame = Frame(call=call)
    frame.reply.request_id = request_id
    frame.reply.error.code = code
    frame.reply.error.message = message
    return frame
