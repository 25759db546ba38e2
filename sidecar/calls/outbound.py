"""What a running tool asks of the sidecar, and how it is answered."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outbound_pb2 import OutboundRequest, ReplyErrorCode
from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind
from sidecar._gen.pillion.v1.worker_pb2 import RegisterTeardown
from sidecar.calls.context import set_seconds
from sidecar.calls.outcome import POSSIBLE, failure
from sidecar.calls.waiting import reply_with

if TYPE_CHECKING:
    from sidecar.calls.call import Call
    from sidecar.calls.pipeline import Pipeline

_log = logging.getLogger(__name__)

_HARMLESS: Final = frozenset(("artifact_head", "artifact_get", "credential_get"))
_INVALID: Final = ReplyErrorCode.REPLY_ERROR_CODE_INVALID
_OVERLOADED: Final = ReplyErrorCode.REPLY_ERROR_CODE_OVERLOADED
_LATE: Final = {
    "credential_get": ReplyErrorCode.REPLY_ERROR_CODE_CREDENTIAL_PROVIDER_DOWN,
}
_TIMED: Final = frozenset(("caller_request", "tools_call"))
"""Requests that have clocks of their own."""
_RETRY_AFTER: Final = 1.0


class Pending:
    """An answer that comes by itself, once, without a task that waits for it."""

    __slots__ = ("_number", "_requests")

    def __init__(self, number: int) -> None:
        self._number = number
        self._requests: OutboundRequests | None = None

    def awaited(self, requests: "OutboundRequests") -> None:
        """Its tool waits for it."""
        self._requests = requests

    def answer(self, reply: Frame) -> None:
        """It is there; the tool gets it if that still waits."""
        requests, self._requests = self._requests, None
        if requests is not None:
            requests.answered(self._number, reply)

    def done(self) -> bool:
        """Whether it came, or is waited for no more."""
        return self._requests is None

    def cancel(self) -> None:
        """It is waited for no more."""
        self._requests = None


class OutboundRequests:
    """The requests of one running tool that are not answered yet.

    Each is answered or refused exactly once while its tool runs, at the latest when its own time or the call's is up.
    One that is answered at once costs no task.
    """

    __slots__ = ("_call", "_open", "_pipeline")

    def __init__(self, call: "Call", pipeline: "Pipeline") -> None:
        self._call = call
        self._pipeline = pipeline
        self._open: dict[int, asyncio.Task[None] | Pending] = {}

    def ask(self, request: OutboundRequest) -> None:
        """Answers a request, now or when its answer is there."""
        kind = request.WhichOneof("request")
        responder = self._pipeline.responders.get(kind) if kind is not None else None
        if responder is None:
            self._reply(unsupported(request))
            return
        patience = None if kind in _TIMED else self._patience(request)
        late = _LATE.get(kind or "", _OVERLOADED)
        self._answer(request.request_id, partial(responder, self._call, request), patience, late)

    def register(self, registration: RegisterTeardown) -> None:
        """Answers a registration likewise."""
        register = partial(self._pipeline.teardowns.register, self._call, registration)
        self._answer(registration.request_id, register, max(self._call.remaining, 0.0), _OVERLOADED)

    def _answer(
        self,
        number: int,
        respond: Callable[[], Frame | Pending | Coroutine[Any, Any, Frame]],
        patience: float | None,
        late: "ReplyErrorCode.ValueType",
    ) -> None:
        """Answers what has a number; where that takes longer than `patience`, in seconds, with the code for `late`."""
        if not number or number in self._open:
            what = "A request needs an id that is not 0" if not number else "A request of this id is still open"
            self._reply(refused(number, _INVALID, f"{what}; number them from 1."))
            return
        most = self._pipeline.limits.open_requests
        if len(self._open) >= most:
            self._reply(
                refused(
                    number,
                    _OVERLOADED,
                    f"The call has {most:,} requests open, which is the most; wait for one of them.",
                    retry_after=_RETRY_AFTER,
                )
            )
            return
        try:
            answer = respond()
        except Exception as error:  # noqa: BLE001  # whatever it was, the tool has an answer
            self._reply(self._failed(number, error))
            return
        if isinstance(answer, Frame):
            self._reply(answer)
            return
        if isinstance(answer, Pending):
            self._open[number] = answer
            answer.awaited(self)
            return
        failed, too_late = partial(self._failed, number), partial(_too_late, number, late)
        wait = reply_with(answer, patience, self._reply, failed, too_late)
        task = self._pipeline.loop.create_task(wait)
        self._open[number] = task
        task.add_done_callback(lambda _: self._settled(number, answer))

    def answered(self, number: int, reply: Frame) -> None:
        """The answer to a request that was pending is there."""
        del self._open[number]
        self._reply(reply)

    def refuse(self) -> None:
        """The call ends while its tool still runs: what is open is refused."""
        for number, answer in self._open.items():
            if not answer.done():
                self._reply(call_over(number))
        self.cancel()

    def cancel(self) -> None:
        """The tool is gone, and nobody waits for an answer any more."""
        for answer in self._open.values():
            answer.cancel()

    def _reply(self, reply: Frame) -> None:
        if not self._call.reply(reply):
            self._call.reply(_instead_of_large(reply))

    def _settled(self, number: int, answer: Coroutine[Any, Any, Frame]) -> None:
        del self._open[number]
        # One that was cancelled before it began would be warned of.
        answer.close()

    def _patience(self, request: OutboundRequest) -> float:
        patience = self._call.remaining
        if request.HasField("timeout"):
            patience = min(patience, request.timeout.seconds + request.timeout.nanos / 1e9)
        return max(patience, 0.0)

    def _failed(self, number: int, error: BaseException) -> Frame:
        self._pipeline.counters.add("internal_errors")
        _log.error("a tool's request could not be answered", exc_info=error)
        return refused(
            number, ReplyErrorCode.REPLY_ERROR_CODE_INTERNAL, "The sidecar failed; its log says more of this request."
        )


def _too_late(number: int, code: "ReplyErrorCode.ValueType") -> Frame:
    return refused(number, code, "The time for this request is up; nothing is known of its end.", retry_after=0.0)


def _instead_of_large(reply: Frame) -> Frame:
    """The reply in place of one that the worker does not take."""
    message = "The answer is over the largest frame that this worker takes; ask for less."
    if not reply.reply.HasField("tool_outcome"):
        return refused(reply.reply.request_id, _INVALID, message)
    outcome = reply.reply.tool_outcome
    effects = outcome.failure.side_effects if outcome.HasField("failure") else POSSIBLE
    instead = Frame()
    instead.reply.request_id = reply.reply.request_id
    instead.reply.tool_outcome.failure.CopyFrom(failure(FailureKind.FAILURE_KIND_RESULT_TOO_LARGE, message, effects))
    return instead


def harmless(request: OutboundRequest) -> bool:
    """Whether a lost tool that asked this may still be run again: it only looked."""
    return request.WhichOneof("request") in _HARMLESS


def unsupported(request: OutboundRequest) -> Frame:
    """The reply to a request of a kind that is not answered here."""
    asked = request.WhichOneof("request") or "this kind of request"
    return refused(
        request.request_id,
        ReplyErrorCode.REPLY_ERROR_CODE_UNSUPPORTED,
        f"This sidecar does not answer {asked}; the context says what it does.",
    )


def call_over(request_id: int) -> Frame:
    """The reply to a tool that asks while its call is over."""
    return refused(
        request_id,
        ReplyErrorCode.REPLY_ERROR_CODE_CANCELLED,
        "The call has ended; its tool is to stop, and ask no more.",
    )


def refused(
    request_id: int, code: "ReplyErrorCode.ValueType", message: str, *, retry_after: float | None = None
) -> Frame:
    """A reply that refuses. With `retry_after`, in seconds, the same request may work later."""
    frame = Frame()
    frame.reply.request_id = request_id
    error = frame.reply.error
    error.code = code
    error.message = message
    if retry_after is not None:
        error.retryable = True
        if retry_after:
            set_seconds(error.retry_after, retry_after)
    return frame
