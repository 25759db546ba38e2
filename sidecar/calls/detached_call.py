"""A call that goes on without its caller, and those who follow it."""

from time import time_ns
from typing import TYPE_CHECKING

from sidecar._gen.pillion.v1.context_pb2 import CancelReason
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outcome_pb2 import Failure, FailureKind, SideEffects
from sidecar._gen.pillion.v1.tool_pb2 import Effects
from sidecar.calls.outcome import COMMITTED, NONE, POSSIBLE, Refusal, failed, failure
from sidecar.calls.ports import Follower, FollowerLane, Sink
from sidecar.calls.replay import KeptFrames
from sidecar.calls.stores import DetachedEntry
from sidecar.scope import Principal

if TYPE_CHECKING:
    from sidecar.calls.call import Call
    from sidecar.calls.detached import Detached
    from sidecar.calls.pipeline import Pipeline
    from sidecar.calls.questions import Question

_READ = Effects.EFFECTS_READ
_UNSAFE = Effects.EFFECTS_UNSAFE
_NOT_KEPT = frozenset(("caller_request", "consent"))
"""What is for one follower alone: a question has a number of its stream, and an address is for the person there."""


class Following:
    """One caller's part in a detached call: a call id of its stream, from its `Start` or `Follow` to its last frame."""

    __slots__ = ("_cancelled", "_pipeline", "_refusals", "call", "follower", "is_over", "lane")

    def __init__(self, pipeline: "Pipeline", follower: Follower, lane: FollowerLane, refusals: Sink) -> None:
        """`refusals`: where a refusal goes, by the same call id."""
        self.follower = follower
        self.lane = lane
        self.is_over = False
        """Whether nothing more is sent."""
        self.call: DetachedCall | None = None
        """What is followed; `None` while it is looked up."""
        self._pipeline = pipeline
        self._refusals = refusals
        self._cancelled: CancelReason.ValueType | None = None
        follower.in_flight += 1

    def cancel(self, reason: "CancelReason.ValueType") -> None:
        """The follower wants the call to stop: now, or once it is found."""
        if self.call is None:
            self._cancelled = reason
        else:
            self._pipeline.counters.add("late_cancels")

    def begin(self, call: "DetachedCall") -> None:
        """The call was found."""
        self.call = call
        running = call.running
        if running is not None:
            self.follower.follows(self.lane.call, running)
            if self._cancelled is not None:
                running.cancel(self._cancelled)

    def refuse(self, refusal: Refusal) -> None:
        """The call is not to be followed: says why, and ends."""
        if not self.is_over:
            self._pipeline.refuse(refusal, self.follower, self._refusals)
            self.close()

    def superseded(self, sequence: int) -> None:
        """Another takes over."""
        frame = Frame(sequence=sequence, time_unix_nano=time_ns())
        frame.superseded.SetInParent()
        self.lane.send(frame)
        self.close()

    def end(self, frame: Frame, effects: "Effects.ValueType") -> None:
        """Sends the outcome of the call, or where the follower cannot take it now, why."""
        largest = self._pipeline.limits.large_outcome
        is_too_large = self.follower.overfull and frame.outcome.ByteSize() > largest
        if is_too_large or not self.lane.send(frame):
            instead = failed(_too_large(frame, effects))
            instead.sequence, instead.time_unix_nano = frame.sequence, frame.time_unix_nano
            self.lane.send(instead)
        self.close()

    def lost(self) -> None:
        """The follower's stream is gone."""
        if self.call is not None:
            self.call.left(self)
        self.close()

    def close(self) -> None:
        """Nothing more is sent."""
        if not self.is_over:
            self.is_over = True
            self.follower.in_flight -= 1
            self.follower.follows_no_more(self.lane.call)


class DetachedCall:
    """What stands in for the caller of a detached call: takes its frames, and has them follow to whoever follows it.

    It stamps them, so that a frame is the same for all who see it, and keeps the newest. The newest follower is the
    one: it alone is sent frames, asked questions, and told the outcome once that is recorded.
    """

    __slots__ = (
        "_following",
        "_house",
        "_is_known",
        "_sequence",
        "_ticket",
        "digest",
        "due_slot",
        "entry",
        "in_flight",
        "kept",
        "outcome",
        "principal",
        "running",
        "started",
        "tells_by",
        "until",
    )

    detaches = True
    overfull = False
    """A follower that is gets another outcome, and the call keeps its own."""

    def __init__(self, house: "Detached", principal: Principal, in_flight: int, kept: KeptFrames) -> None:
        """`in_flight`: how many calls its stream had when it was started, to be held against what one may have."""
        self.principal = principal
        self.in_flight = in_flight
        self.running: Call | None = None
        """The call itself, until its outcome is known."""
        self.digest = b""
        """Of its ticket, once it has one."""
        self.entry: DetachedEntry | None = None
        """What is recorded of it since then."""
        self.started = b""
        """The `Started` frame, without ticket and call id."""
        self.outcome: bytes | None = None
        """The outcome frame, without call id, once it is told to whoever asks."""
        self.kept = kept
        self.due_slot: float | None = None
        self.tells_by = 0.0
        """When its outcome is told at the latest, recorded or not, once it is known."""
        self.until = 0.0
        """When it is forgotten, once its outcome is known."""
        self._house = house
        self._following: Following | None = None
        self._sequence = 0
        self._ticket: str | None = None
        self._is_known = False

    # --- followers

    def start(self, following: Following) -> None:
        """The caller that starts it is the first to follow it."""
        self._following = following

    def follow(self, following: Following, sequence: int) -> None:
        """Another follows it from now on, in place of who did: gets what is kept from a number on, and what comes."""
        before = self._following
        if before is not None:
            if self.running is not None:
                before.follower.leaves(self.running)
            before.superseded(self._sequence + 1)
            self._house.count("superseded_followers")
        self._is_known = True
        self._following = following
        lane = following.lane
        lane.replay(Frame.FromString(self.started))
        lane.missed(self.kept.lost_since(sequence))
        for frame in self.kept.since(sequence):
            lane.replay(frame)
        following.begin(self)
        if self.outcome is not None:
            self._tell_outcome()

    def left(self, following: Following) -> None:
        """The stream of a follower is gone. Where nobody can have been told of the ticket, the call stops."""
        if self._following is not following:
            return
        self._following = None
        if following.lane.handed_over:
            self._is_known = True
        if not self._is_known and self.running is not None:
            self.running.cancel(CancelReason.CANCEL_REASON_DISCONNECT)

    def open(self, ticket: str, digest: bytes, entry: DetachedEntry) -> None:
        """It can be followed by this ticket from now on, of which its first follower is told with `Started`."""
        self._ticket, self.digest, self.entry = ticket, digest, entry

    # --- the sink of the call

    def send(self, frame: Frame) -> bool:
        """Takes a frame that is not a report."""
        self._stamp(frame)
        body = frame.WhichOneof("body")
        following = self._following
        if body == "outcome":
            self._house.ended(self, frame)
        elif body in _NOT_KEPT:
            if following is not None and not following.lane.send(frame):
                self._sequence -= 1
                return False
        elif body == "started":
            self.started = frame.SerializeToString()
            if self._ticket is not None:
                frame.started.ticket, self._ticket = self._ticket, None
            if following is not None:
                following.lane.send(frame)
        else:
            self._keep(frame)
            if following is not None:
                following.lane.send(frame)
        return True

    def report(self, frame: Frame) -> None:
        """Takes a report."""
        self._stamp(frame)
        self._keep(frame)
        if self._following is not None:
            self._following.lane.report(frame)

    def tell(self, outcome: bytes) -> None:
        """The outcome is recorded, or cannot be: whoever follows is told."""
        self.outcome = outcome
        self._tell_outcome()

    def _tell_outcome(self) -> None:
        following, outcome = self._following, self.outcome
        if following is None or outcome is None:
            return
        self._following = None
        effects = _UNSAFE if self.entry is None else self.entry.effects
        following.end(Frame.FromString(outcome), effects)

    def _stamp(self, frame: Frame) -> None:
        self._sequence = frame.sequence = self._sequence + 1
        frame.time_unix_nano = time_ns()
        frame.call = 0

    def _keep(self, frame: Frame) -> None:
        before = self.kept.size
        self.kept.add(frame)
        self._house.grew(self, self.kept.size - before)

    # --- the caller of the call

    @property
    def answerable(self) -> frozenset[str] | None:
        """What the follower can be asked."""
        return self._following.follower.answerable if self._following is not None else frozenset()

    @property
    def takes_consent(self) -> bool:
        """Whether the follower takes addresses at which people authorise."""
        return self._following is not None and self._following.follower.takes_consent

    @property
    def gone(self) -> bool:
        """Whether nobody follows who answers."""
        return self._following is None or self._following.follower.gone

    @property
    def congested(self) -> bool:
        """Whether the follower has too much that it has not read."""
        return self._following is not None and self._following.follower.congested

    def ask(self, question: "Question") -> int:
        """Takes a question for the follower."""
        if self._following is None:
            question.gone()
            return 0
        return self._following.follower.ask(question)

    def forget(self, number: int, question: "Question") -> None:
        """A question needs no answer any more. One of a former follower's was left there."""
        if self._following is not None:
            self._following.follower.forget(number, question)

    def leaves(self, call: "Call") -> None:
        """The call goes on for another caller that has joined it."""
        if self._following is not None:
            self._following.follower.leaves(call)

    def finished(self, call: "Call") -> None:
        """The outcome is known, and told once it is recorded."""
        if self.entry is not None and call.tool is not None:
            self.entry = self.entry._replace(effects=call.tool.effects)
        self._set_running(None)

    def took_over(self, call: "Call") -> None:
        """Another call runs for this one."""
        self._set_running(call)

    def runs(self, call: "Call") -> None:
        """This is the call."""
        self._set_running(call)

    def _set_running(self, call: "Call | None") -> None:
        self.running = call
        if self._following is not None:
            self._following.follower.follows(self._following.lane.call, call)

    # --- its end

    def due(self, now: float) -> None:
        """It may be time to forget it."""
        self._house.due(self, now)


def _too_large(frame: Frame, effects: "Effects.ValueType") -> Failure:
    return failure(
        FailureKind.FAILURE_KIND_RESULT_TOO_LARGE,
        "The outcome is over what this stream takes now; read on, or take larger frames, and follow the call again.",
        effects_of_outcome(frame, effects),
    )


def effects_of_outcome(frame: Frame, effects: "Effects.ValueType") -> "SideEffects.ValueType":
    """What a call of a tool with these effects that ended in this frame has done to the world."""
    if frame.outcome.HasField("failure"):
        return frame.outcome.failure.side_effects
    if effects == _READ:
        return NONE
    return COMMITTED if frame.outcome.HasField("result") else POSSIBLE
