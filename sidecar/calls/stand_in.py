"""A cleanup call: one that the sidecar makes by itself."""

from typing import TYPE_CHECKING

from sidecar._gen.pillion.v1.context_pb2 import TeardownReason
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar.calls import causes
from sidecar.calls.call import Call
from sidecar.calls.outcome import failed
from sidecar.calls.ports import Assignment, Sink
from sidecar.calls.questions import Question
from sidecar.calls.tool import Tool
from sidecar.scope import Principal, Registration, ScopeKey

if TYPE_CHECKING:
    from sidecar.calls.pipeline import Pipeline


class StandIn(Call):
    """A call that stands in for a cleanup. It is in no scope, so that the end of the scope does not end it."""

    __slots__ = ("_reason",)

    def __init__(
        self,
        pipeline: "Pipeline",
        registration: Registration,
        caller: Principal,
        sink: Sink,
        reason: "TeardownReason.ValueType",
    ) -> None:
        Call.__init__(self, pipeline, _Nobody(caller), sink, registration.id, pipeline.loop.time())
        self._reason = reason

    def lasting_scopes(self) -> list[ScopeKey]:
        """None, whatever it is told."""
        return []

    def pause(self, tool: Tool, frame: Frame, *, for_consent: bool = False) -> None:  # noqa: ARG002  # as any call's
        """It fails: nobody would have its ticket."""
        self.settle(failed(causes.not_resumed(tool, self.effects_so_far())))

    def placed(self, assignment: Assignment, now: float) -> None:
        """An instance has a slot for it: tells the tool why it is run."""
        if self.invocation is not None:
            context = self.invocation.invoke.context
            context.cleanup_reason = self._reason
            if not context.session_keys:
                for key in super().lasting_scopes():
                    context.session_keys.add(scope=key.kind, digest=key.digest(self._pipeline.teardowns.secret))
        super().placed(assignment, now)


class _Nobody:
    """The caller's side of a call that the sidecar makes by itself."""

    answerable: frozenset[str] | None = None
    detaches = False
    takes_consent = False
    gone = True
    congested = False
    overfull = False

    def __init__(self, principal: Principal) -> None:
        self.principal = principal
        self.in_flight = 0

    def ask(self, question: Question) -> int:
        """Is never asked: it answers no method."""
        raise NotImplementedError

    def forget(self, number: int, question: Question) -> None:
        """Nor is there anything to forget."""

    def leaves(self, call: Call) -> None:
        """It is joined by nobody, having no key."""

    def finished(self, call: Call) -> None:
        """The outcome went to the sink, which is all."""

    def took_over(self, call: Call) -> None:
        """Nor does it take any call over."""
