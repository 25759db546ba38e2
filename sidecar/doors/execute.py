"""The door of streams: one caller's `Execute`."""

import time
from collections.abc import Callable, Collection, Mapping
from typing import Final

from sidecar._gen.pillion.v1.call_pb2 import StreamErrorReason
from sidecar._gen.pillion.v1.context_pb2 import CancelReason
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind
from sidecar.calls.call import Call
from sidecar.calls.detached_call import Following
from sidecar.calls.outcome import Refusal
from sidecar.calls.pipeline import Pipeline
from sidecar.calls.questions import Question
from sidecar.doors.access import EXPIRED
from sidecar.scope import Principal
from sidecar.wire.batch import FrameHead
from sidecar.wire.limits import WireLimits
from sidecar.wire.outbox import Lane
from sidecar.wire.protocol import PROTOCOL, agreed_version, limits_message, stream_error
from sidecar.wire.replay import ReplayLane
from sidecar.wire.stream import FrameStream

_CONSENT: Final = "consent"
_NOT_ASKED: Final = frozenset((_CONSENT,))
"""What a caller may declare and tools may not ask: they would pass for the sidecar."""
_FORWARDED_REASONS: Final = frozenset(
    (
        CancelReason.CANCEL_REASON_PARENT,
        CancelReason.CANCEL_REASON_DEADLINE,
        CancelReason.CANCEL_REASON_DISCONNECT,
    )
)


class ExecuteSession:
    """The sidecar's end of one `Execute` stream, the caller of its calls, and the follower of detached ones."""

    detaches = False

    def __init__(
        self,
        stream: FrameStream,
        pipeline: Pipeline,
        principal: Principal,
        wire_limits: WireLimits,
        until: float | None = None,
    ) -> None:
        """`until`: when what the caller has shown expires, in seconds since the Unix epoch; `None`: it does not."""
        self.principal = principal
        self.in_flight = 0
        self.answerable: frozenset[str] | None = frozenset()
        self.takes_consent = False
        self.gone = False
        self.handlers: Mapping[str | None, Callable[[Frame], None]] = {
            "start": self._start,
            "cancel": self._cancel,
            "reply": self._reply,
            "follow": self._follow,
            "input": self._input,
            "caller_hello": self._hello,
        }
        self._stream = stream
        self._outbox = stream.outbox
        self._pipeline = pipeline
        self._wire_limits = wire_limits
        self._until = until
        self._calls: dict[int, Call] = {}
        """By their ids, those that run for it, and those that it follows."""
        self._followings: dict[int, Following] = {}
        """By their ids, its parts in detached calls, from the first frame to the last."""
        self._questions: dict[int, Question] = {}
        self._last_question = 0
        self._last_call = 0
        self.large_bodies: Collection[str] = ()
        self._greeted = False
        self._half_closed = False

    # --- the caller of calls

    @property
    def congested(self) -> bool:
        """Whether so much is undelivered that no call is to be started."""
        return self._outbox.undelivered_bytes > self._outbox.soft

    @property
    def overfull(self) -> bool:
        """Whether so much is undelivered that a large outcome is to be refused."""
        return self._outbox.undelivered_bytes > self._outbox.hard

    def finished(self, call: Call) -> None:
        """A call's outcome was queued."""
        lane = call.sink
        if isinstance(lane, Lane):
            self._calls.pop(lane.call, None)
        self._finish_if_over()

    def ask(self, question: Question) -> int:
        """Takes a question that is about to be sent; answers its number on this stream."""
        self._last_question = number = self._last_question + 1
        self._questions[number] = question
        return number

    def forget(self, number: int, question: Question) -> None:
        """A question needs no answer any more. Another follower's may have had the same number."""
        if self._questions.get(number) is question:
            del self._questions[number]

    def leaves(self, call: Call) -> None:
        """A call goes on without this caller."""
        for number, question in tuple(self._questions.items()):
            if question.call is call:
                del self._questions[number]
                question.gone()

    def took_over(self, call: Call) -> None:
        """A call that runs already is this caller's now, in place of one that had joined it."""
        lane = call.sink
        if isinstance(lane, Lane):
            self._calls[lane.call] = call

    # --- the follower of detached calls

    def follows(self, number: int, call: Call | None) -> None:
        """What comes under this call id is for this call from now on; `None`: for none."""
        if call is not None:
            self._calls[number] = call
        else:
            self._calls.pop(number, None)

    def follows_no_more(self, number: int) -> None:
        """Nothing more is sent under this call id."""
        self._calls.pop(number, None)
        self._followings.pop(number, None)
        self._finish_if_over()

    # --- frames

    def _start(self, frame: Frame) -> None:
        lane = self._open(frame.call)
        start = frame.start
        if lane is None or self._has_expired(lane, start.tool_call_id):
            return
        detached = self._pipeline.detached
        if start.detachable and detached is not None:
            self._keep(detached.start(start, self, ReplayLane(self._outbox, lane.call), lane))
            return
        call = self._pipeline.start(start, self, lane)
        if not call.done:
            self._calls[lane.call] = call

    def _follow(self, frame: Frame) -> None:
        lane = self._open(frame.call)
        if lane is None or self._has_expired(lane):
            return
        detached = self._pipeline.detached
        if detached is not None:
            self._keep(detached.follow(frame.follow, self, ReplayLane(self._outbox, lane.call), lane))
            return
        refusal = Refusal(
            FailureKind.FAILURE_KIND_UNSUPPORTED, "This sidecar does not detach calls, so there is none to follow."
        )
        self._pipeline.refuse(refusal, self, lane)

    def _keep(self, following: Following) -> None:
        if not following.is_over:
            self._followings[following.lane.call] = following

    def _has_expired(self, lane: Lane, tool_call_id: str = "") -> bool:
        """Whether what the caller has shown is good no more, which the call is refused for."""
        if self._until is None or time.time() < self._until:
            return False
        self._pipeline.refuse(Refusal(FailureKind.FAILURE_KIND_DENIED, EXPIRED), self, lane, tool_call_id)
        return True

    def _cancel(self, frame: Frame) -> None:
        reason = frame.cancel.reason
        if reason not in _FORWARDED_REASONS:
            reason = CancelReason.CANCEL_REASON_CALLER
        call = self._calls.get(frame.call)
        if call is not None:
            call.cancel(reason)
        elif (following := self._followings.get(frame.call)) is not None:
            following.cancel(reason)
        else:
            self._pipeline.counters.add("late_cancels")

    def _reply(self, frame: Frame) -> None:
        question = self._questions.get(frame.reply.request_id)
        # A reply belongs to the call that the question came in.
        if question is None or self._calls.get(frame.call) is not question.call:
            self._pipeline.counters.add("late_replies")
            return
        del self._questions[frame.reply.request_id]
        question.answered(frame.reply)

    def _input(self, frame: Frame) -> None:
        call = self._calls.get(frame.call)
        if call is not None:
            call.reserved("input")
        else:
            self.misdirected(frame, "input")

    def _hello(self, frame: Frame) -> None:
        hello = frame.caller_hello
        if self._greeted or self._last_call:
            self._complain(StreamErrorReason.STREAM_ERROR_REASON_PROTOCOL, "A caller says hello once, and first.")
            return
        self._greeted = True
        if agreed_version(hello) is None:
            self._complain(StreamErrorReason.STREAM_ERROR_REASON_VERSION, "This sidecar speaks protocol 1.0.")
            self._stream.close()
            return
        if hello.HasField("max_frame_bytes"):
            self._outbox.limit_frames(hello.max_frame_bytes)
        self.answerable = frozenset(hello.can_answer) - _NOT_ASKED
        self.takes_consent = _CONSENT in hello.can_answer
        answer = Frame()
        answer.host_hello.version.CopyFrom(PROTOCOL)
        answer.host_hello.limits.CopyFrom(limits_message(self._wire_limits, self._pipeline.limits.in_flight_per_stream))
        answer.host_hello.instance_id = self._pipeline.ids.process
        self._stream.control(answer)

    def _open(self, call: int) -> Lane | None:
        """A lane for a new call; `None`, and the stream is told, if its id does not increase."""
        if call > self._last_call:
            self._last_call = call
            return self._stream.lane(call)
        reason = (
            StreamErrorReason.STREAM_ERROR_REASON_CALL_ID_NOT_INCREASING
            if call
            else StreamErrorReason.STREAM_ERROR_REASON_CALL_ID_ZERO
        )
        self._complain(reason, f"A call's id must be over {self._last_call}, the newest of this stream.", call)
        return None

    # --- what goes wrong, and the end

    def misdirected(self, frame: Frame, body: str) -> None:
        """A frame came that a caller may not send: its call fails, or the stream is told."""
        call = self._calls.get(frame.call)
        message = f"A {body} frame is not a caller's to send."
        if call is not None:
            call.broke_protocol(message)
        else:
            self._complain(StreamErrorReason.STREAM_ERROR_REASON_PROTOCOL, message, frame.call)

    def oversized(self, head: FrameHead) -> None:
        """A frame came that is over a limit: its call alone is refused."""
        if head.body in ("start", "follow"):
            lane = self._open(head.call)
            if lane is not None:
                refusal = too_large(head.size, self._wire_limits.max_frame_bytes)
                self._pipeline.refuse(refusal, self, lane)
            return
        call = self._calls.get(head.call)
        if call is not None:
            call.broke_protocol(
                f"The caller sent a frame over the largest, {self._wire_limits.max_frame_bytes:,} bytes."
            )

    def unreadable(self, reason: "StreamErrorReason.ValueType") -> None:
        """A message came that cannot be read: the stream is told, and goes on."""
        self._complain(
            reason, f"A message is a batch of frames of at most {self._wire_limits.max_message_bytes:,} bytes."
        )

    def relieved(self) -> None:
        """The caller reads again: it may start calls."""

    def half_closed(self) -> None:
        """The caller starts no more calls, and answers nothing; running ones finish."""
        self._half_closed = self.gone = True
        self._leave_questions()
        self._finish_if_over()

    def unresponsive(self) -> None:
        """Callers are not pinged."""

    def ended(self) -> None:
        """The stream is over: its calls are cancelled, and detached ones go on without it."""
        self.gone = True
        self._leave_questions()
        for following in tuple(self._followings.values()):
            following.lost()
        # Those that have joined another first: else that one would be left to them, who are gone as well.
        for call in sorted(self._calls.values(), key=lambda call: call.joined is None):
            call.cancel(CancelReason.CANCEL_REASON_DISCONNECT)

    def _finish_if_over(self) -> None:
        if self._half_closed and not self._calls and not self._followings:
            self._stream.finish()

    def _leave_questions(self) -> None:
        for question in tuple(self._questions.values()):
            question.gone()

    def drain(self, grace: float) -> None:
        """Tells the caller that the sidecar is about to stop."""
        frame = Frame()
        frame.draining.grace.FromNanoseconds(int(grace * 1e9))
        self._stream.control(frame)

    def _complain(self, reason: "StreamErrorReason.ValueType", message: str, call: int | None = None) -> None:
        self._stream.control(stream_error(reason, message, call), droppable=True)


def too_large(size: int, largest: int) -> Refusal:
    """What is said to a call that is over the largest frame."""
    return Refusal(
        FailureKind.FAILURE_KIND_INVALID_ARGUMENTS,
        f"The call has {size:,} bytes, and one has at most {largest:,}; hand large data over as an artifact.",
    )
