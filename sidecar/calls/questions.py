"""What tools ask their caller: passed on to whoever opened the call, and answered once or refused."""

import asyncio
from typing import TYPE_CHECKING

from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outbound_pb2 import CallerAsk, OutboundRequest, Reply, ReplyErrorCode
from sidecar.calls.context import set_seconds
from sidecar.calls.outbound import refused
from sidecar.calls.outcome import cut
from sidecar.calls.strict_json import JsonRefused, parse

if TYPE_CHECKING:
    from sidecar.calls.call import Call

_METHOD_BYTES = 128
_RETRY_AFTER = 1.0
_INVALID = ReplyErrorCode.REPLY_ERROR_CODE_INVALID
_MALFORMED = ReplyErrorCode.REPLY_ERROR_CODE_PEER_MALFORMED
_OF_CALLERS = frozenset(
    (
        ReplyErrorCode.REPLY_ERROR_CODE_PEER_TIMEOUT,
        ReplyErrorCode.REPLY_ERROR_CODE_UNSUPPORTED_BY_CALLER,
        _MALFORMED,
    )
)
"""What a caller may say of its own answering."""
_UNREADABLE = "The caller's answer is not JSON as it is taken here."


class CallerGone(Exception):
    """The caller will answer no more."""


class Question:
    """One question that a caller was asked, until it is answered."""

    __slots__ = ("answer", "call")

    def __init__(self, call: "Call") -> None:
        self.call = call
        """The call of the caller's own that it is asked in."""
        self.answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

    def answered(self, reply: Reply) -> None:
        """The caller answers."""
        if not self.answer.done():
            self.answer.set_result(reply)

    def gone(self) -> None:
        """The caller left, or reads on and sends no more."""
        if not self.answer.done():
            self.answer.set_exception(CallerGone())


async def ask(call: "Call", request: OutboundRequest) -> Frame:
    """The answer to `caller_request`."""
    asked, number = request.caller_request, request.request_id
    chain = (call, *call.ancestors())
    outermost = chain[-1]
    refusal = _refusal(number, asked, outermost)
    if refusal is not None:
        return refusal
    patience = min(link.people_left for link in chain)
    if request.HasField("timeout"):
        patience = min(patience, request.timeout.seconds + request.timeout.nanos / 1e9)
    if patience <= 0:
        return _too_late(number)
    caller, question = outermost.caller, Question(outermost)
    frame = Frame()
    told = frame.caller_request
    told.request_id = caller.ask(question)
    told.method = asked.method
    if asked.HasField("params"):
        told.params = asked.params
    set_seconds(told.timeout, patience)
    if call is not outermost:
        told.origin.tool = call.tool_name
        told.origin.tool_call_id = call.tool_call_id
    for link in chain:
        link.ask_people()
    try:
        if not outermost.ask(frame):
            return refused(number, _INVALID, "The question is over the largest frame that the caller takes; ask less.")
        async with asyncio.timeout(patience):
            reply = await question.answer
    except TimeoutError:
        return _too_late(number)
    except CallerGone:
        return _gone(number)
    finally:
        caller.forget(told.request_id, question)
        for link in chain:
            link.people_answered()
    return _answer(number, reply)


def _refusal(number: int, asked: CallerAsk, outermost: "Call") -> Frame | None:
    """Why this cannot be asked, if it cannot."""
    methods = outermost.caller.answerable
    if methods is None:
        return refused(
            number,
            ReplyErrorCode.REPLY_ERROR_CODE_UNSUPPORTED,
            "There is no way back to this caller: it can be asked nothing.",
        )
    if not asked.method or len(asked.method.encode()) > _METHOD_BYTES:
        return refused(number, _INVALID, f"A method has 1 to {_METHOD_BYTES} bytes.")
    if outermost.caller.gone:
        return _gone(number)
    if asked.method not in methods:
        return refused(
            number,
            ReplyErrorCode.REPLY_ERROR_CODE_UNSUPPORTED_BY_CALLER,
            "The caller did not declare that it answers this method; the context says what it answers.",
        )
    if outermost.caller.congested:
        return refused(
            number,
            ReplyErrorCode.REPLY_ERROR_CODE_OVERLOADED,
            "The caller has too much that it has not read; ask again when it reads on.",
            retry_after=_RETRY_AFTER,
        )
    try:
        if asked.HasField("params"):
            parse(asked.params)
    except JsonRefused as error:
        return refused(number, _INVALID, f"The parameters are not JSON as it is taken here: {error}")
    return None


def _answer(number: int, reply: Reply) -> Frame:
    """The caller's answer as the tool gets it."""
    frame = Frame()
    frame.reply.request_id = number
    kind = reply.WhichOneof("answer")
    try:
        if kind == "caller":
            if reply.caller.HasField("result"):
                parse(reply.caller.result)
            frame.reply.caller.CopyFrom(reply.caller)
            return frame
        if kind != "error":
            return refused(number, _MALFORMED, "The caller's answer holds neither a result nor an error.")
        said = reply.error
        if said.code in _OF_CALLERS and not said.HasField("peer"):
            return refused(number, said.code, cut(said.message))
        error = frame.reply.error
        error.code = ReplyErrorCode.REPLY_ERROR_CODE_PEER_ERROR
        error.message = "The caller answered with an error of its own."
        error.peer.code = said.peer.code
        error.peer.message = cut(said.peer.message or said.message)
        if said.peer.HasField("data"):
            parse(said.peer.data)
            error.peer.data = said.peer.data
    except JsonRefused:
        return refused(number, _MALFORMED, _UNREADABLE)
    return frame


def _too_late(number: int) -> Frame:
    return refused(
        number, ReplyErrorCode.REPLY_ERROR_CODE_PEER_TIMEOUT, "The caller did not answer in the time that it had."
    )


def _gone(number: int) -> Frame:
    return refused(number, ReplyErrorCode.REPLY_ERROR_CODE_CALLER_GONE, "The caller is gone, and answers nothing more.")
