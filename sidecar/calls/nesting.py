"""Calls that running tools make: through every gate, inside the call that made them."""

import asyncio
from typing import TYPE_CHECKING

from sidecar._gen.pillion.v1.call_pb2 import Start
from sidecar._gen.pillion.v1.context_pb2 import ToolContext
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outbound_pb2 import OutboundRequest, ReplyErrorCode
from sidecar.calls.context import set_seconds
from sidecar.calls.outbound import call_over, refused
from sidecar.calls.questions import Question
from sidecar.scope import Principal

if TYPE_CHECKING:
    from sidecar.calls.call import Call
    from sidecar.calls.pipeline import Pipeline

_LEAST_TIME = 1e-9
_UNSUPPORTED = ReplyErrorCode.REPLY_ERROR_CODE_UNSUPPORTED


class Nesting:
    """Answers `tools_call` and `tools_has`.

    An inner call has the scope, subject, anchor, trace, iteration and caller of the one that made it, at most the time
    that is left to that, and never outlives it. It takes none of the caller's places, and slots of its own.
    """

    def __init__(self, pipeline: "Pipeline") -> None:
        self._pipeline = pipeline
        self._made: dict[Call, int] = {}
        """How many calls each call has made, of those that made any."""

    async def call(self, outer: "Call", request: OutboundRequest) -> Frame:
        """The answer to `tools_call`: how the inner call ended."""
        if not outer.levels:
            return self._too_deep(request.request_id)
        if outer.invocation is None:
            return call_over(request.request_id)
        number = self._made.get(outer, 0) + 1
        if number == 1:
            outer.at_end(lambda: self._made.pop(outer, None))
        self._made[outer] = number
        sink = _Answer(outer, request.request_id)
        start = _start(request, outer, outer.invocation.invoke.context, f"{outer.tool_call_id}#inner-{number}")
        inner = self._pipeline.start(start, _OuterCaller(outer), sink, outer)
        if inner.done:
            # Refused, which takes no number.
            self._made[outer] = number - 1
        outer.inner = outer.inner or set()
        outer.inner.add(inner)
        try:
            outcome = await sink.outcome
        finally:
            outer.inner.discard(inner)
            inner.end_with_parent()
        answer = Frame()
        answer.reply.request_id = request.request_id
        answer.reply.tool_outcome.CopyFrom(outcome.outcome)
        return answer

    def has(self, outer: "Call", request: OutboundRequest) -> Frame:
        """The answer to `tools_has`: whether a call of the tool would get past policy."""
        answer = Frame()
        answer.reply.request_id = request.request_id
        may = outer.levels > 0 and self._pipeline.lets_run(outer, request.tools_has.tool)
        answer.reply.tool_available.available = may
        return answer

    def _too_deep(self, request_id: int) -> Frame:
        return refused(
            request_id,
            _UNSUPPORTED,
            f"Calls nest at most {self._pipeline.limits.nesting_depth} deep, and this one is as deep as that; have the "
            "tool further out make the call.",
        )


class _OuterCaller:
    """Whom an inner call is for: the caller of the outer one, without taking its places."""

    def __init__(self, outer: "Call") -> None:
        self.principal: Principal = outer.caller.principal
        self.in_flight = 0
        self.congested = False
        self.overfull = False
        self.takes_consent = False
        self.detaches = False
        self._outer = outer

    @property
    def answerable(self) -> frozenset[str] | None:
        """What the caller can be asked."""
        return self._outer.caller.answerable

    @property
    def gone(self) -> bool:
        """Whether the caller answers no more."""
        return self._outer.caller.gone

    def ask(self, question: Question) -> int:
        """Takes a question for the caller."""
        return self._outer.caller.ask(question)

    def forget(self, number: int, question: Question) -> None:
        """A question needs no answer any more."""
        self._outer.caller.forget(number, question)

    def leaves(self, call: "Call") -> None:
        """Inner calls are not joined, so the caller leaves none of them to others."""

    def finished(self, call: "Call") -> None:
        """The outcome went to the sink, which is all."""

    def took_over(self, call: "Call") -> None:
        """Nor does it take any over."""


class _Answer:
    """Where the frames of an inner call go: reports and the outcome to the outer tool."""

    def __init__(self, outer: "Call", request_id: int) -> None:
        self.outcome: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self._outer = outer
        self._request_id = request_id

    def send(self, frame: Frame) -> bool:
        """Takes the outcome; the outer tool knows when the call began."""
        if frame.HasField("outcome") and not self.outcome.done():
            self.outcome.set_result(frame)
        return True

    def report(self, frame: Frame) -> None:
        """Passes progress on."""
        self._outer.keep_alive()
        told = Frame()
        told.progress.payload = frame.progress.payload
        told.progress.request_id = self._request_id
        told.coalesced = frame.coalesced
        self._outer.told(told)


def _start(request: OutboundRequest, outer: "Call", context: ToolContext, tool_call_id: str) -> Start:
    """What an inner call is started with, by the facts of the outer one. What that does not name is not named."""
    asked = request.tools_call
    start = Start(tool=asked.tool, tool_call_id=tool_call_id, iteration=context.iteration)
    if asked.HasField("arguments"):
        start.arguments = asked.arguments
    if context.HasField("identity"):
        start.identity.CopyFrom(context.identity)
    for name in ("run_id", "session_id", "parent_anchor"):
        if context.HasField(name):
            setattr(start, name, getattr(context, name))
    if context.HasField("trace"):
        start.trace.CopyFrom(context.trace)
    if request.HasField("timeout"):
        start.timeout.CopyFrom(request.timeout)
    set_seconds(start.human_timeout, max(outer.people_left, _LEAST_TIME))
    return start
