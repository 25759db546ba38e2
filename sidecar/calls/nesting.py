"""Calls that running tools make: through every gate, inside the call that made them."""

import asyncio
from typing import TYPE_CHECKING, Final

from sidecar._gen.pillion.v1.call_pb2 import Start
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outbound_pb2 import OutboundRequest, ReplyErrorCode
from sidecar._gen.pillion.v1.outcome_pb2 import Ask
from sidecar.calls.outbound import Pending, call_over, refused
from sidecar.calls.paused import Resumption, digest_of_arguments
from sidecar.calls.questions import Question
from sidecar.calls.request import NO_ARGUMENTS
from sidecar.calls.restart import facts_of
from sidecar.scope import Principal

if TYPE_CHECKING:
    from sidecar.calls.call import Call
    from sidecar.calls.pipeline import Pipeline

_UNSUPPORTED: Final = ReplyErrorCode.REPLY_ERROR_CODE_UNSUPPORTED


class Nesting:
    """Answers `tools_call` and `tools_has`.

    An inner call has the scope, subject, anchor, trace, iteration and caller of the one that made it, at most the time
    that is left to that, and never outlives it. It takes none of the caller's places, and slots of its own.
    """

    def __init__(self, pipeline: "Pipeline") -> None:
        self._pipeline = pipeline
        self._callers: dict[Call, _OuterCaller] = {}
        """Whom the inner calls of each call are for, of those that made any."""

    def call(self, outer: "Call", request: OutboundRequest) -> Frame | Pending:
        """The answer to `tools_call`: how the inner call ended."""
        if not outer.levels:
            return self._too_deep(request.request_id)
        if outer.invocation is None:
            return call_over(request.request_id)
        caller = self._callers.get(outer)
        if caller is None:
            caller = self._callers[outer] = _OuterCaller(
                outer, facts_of(outer.invocation.invoke.context).SerializeToString()
            )
            outer.at_end(lambda: self._callers.pop(outer, None))
        start = _start(request, caller.facts, f"{outer.tool_call_id}#inner-{caller.calls + 1}")
        resumption = _resumption(outer, start) if outer.resumption is not None else None
        if isinstance(resumption, Ask):
            return _still_paused(request.request_id, resumption)
        answer = _Answer(outer, request.request_id)
        caller.calls += 1
        inner = self._pipeline.start(start, caller, answer, outer, resumption)
        if answer.refusal is not None:
            # Refused, which takes no number.
            caller.calls -= 1
            return answer.refusal
        if outer.inner is None:
            outer.inner = set()
        outer.inner.add(inner)
        answer.inner = inner
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


def _resumption(outer: "Call", start: Start) -> Resumption | Ask | None:
    """How a call that a tool makes goes on from one that paused before the outer one did.

    The `Ask` of one that the answer was not for: it still waits. `None`: nothing of the kind has paused.
    """
    kept, resumption = outer.paused_inner, outer.resumption
    if not kept or resumption is None:
        return None
    digest = digest_of_arguments(start.arguments if start.HasField("arguments") else NO_ARGUMENTS)
    for inner in kept:
        if inner.tool == start.tool and inner.digest == digest and inner in resumption.pause.inner:
            if inner is not resumption.answered:
                return Ask.FromString(inner.ask)
            kept.remove(inner)
            return Resumption(inner, resumption.answer)
    return None


def _still_paused(request_id: int, ask: Ask) -> Frame:
    """The answer where what is called has paused, and what came meanwhile was the answer to another."""
    answer = Frame()
    answer.reply.request_id = request_id
    answer.reply.tool_outcome.paused.ask.CopyFrom(ask)
    return answer


class _OuterCaller:
    """Whom an inner call is for: the caller of the outer one, without taking its places."""

    def __init__(self, outer: "Call", facts: bytes) -> None:
        self.facts = facts
        """What its calls are started with, serialised."""
        self.in_flight = 0
        self.congested = False
        self.overfull = False
        self.takes_consent = False
        self.calls = 0
        """How many calls it has made that were not refused."""
        self.detaches = False
        self._outer = outer

    @property
    def principal(self) -> Principal:
        """Who the caller is."""
        return self._outer.caller.principal

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


class _Answer(Pending):
    """How an inner call ends, and where its frames go: reports and the outcome to the outer tool."""

    __slots__ = ("_outer", "inner", "refusal")

    def __init__(self, outer: "Call", request_id: int) -> None:
        super().__init__(request_id)
        self.inner: Call | None = None
        """The call, while it runs."""
        self.refusal: Frame | None = None
        """The answer where the call was over at once."""
        self._outer = outer

    def send(self, frame: Frame) -> bool:
        """Takes the outcome."""
        if not frame.HasField("outcome"):
            return True
        reply = Frame()
        reply.reply.request_id = self._number
        reply.reply.tool_outcome.CopyFrom(frame.outcome)
        inner, self.inner = self.inner, None
        if inner is None:
            self.refusal = reply
            return True
        if self._outer.inner is not None:
            self._outer.inner.discard(inner)
        self.answer(reply)
        return True

    def report(self, frame: Frame) -> None:
        """Passes progress on."""
        self._outer.keep_alive()
        told = Frame()
        told.progress.payload = frame.progress.payload
        told.progress.request_id = self._number
        told.coalesced = frame.coalesced
        self._outer.told(told)

    def cancel(self) -> None:
        """The outer call is over, or its tool is: soon the inner call is, too."""
        super().cancel()
        # Not in the middle of what ends the outer one: where an instance is lost, it may have run both.
        asyncio.get_running_loop().call_soon(self._end)

    def _end(self) -> None:
        if self.inner is not None:
            self.inner.end_with_parent()


def _start(request: OutboundRequest, facts: bytes, tool_call_id: str) -> Start:
    """What an inner call is started with."""
    asked = request.tools_call
    start = Start.FromString(facts)
    start.tool = asked.tool
    start.tool_call_id = tool_call_id
    if asked.HasField("arguments"):
        start.arguments = asked.arguments
    if request.HasField("timeout"):
        start.timeout.CopyFrom(request.timeout)
    return start
