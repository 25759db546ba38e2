"""Cleanup calls: what a tool has named to be run where the instance that kept a cleanup is gone."""

import asyncio
from typing import TYPE_CHECKING

from sidecar._gen.pillion.v1.call_pb2 import Start
from sidecar._gen.pillion.v1.context_pb2 import Identity, TeardownReason, TeardownScope
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind
from sidecar.calls.call import Call
from sidecar.calls.outcome import kind_name
from sidecar.calls.ports import Assignment
from sidecar.calls.questions import Question
from sidecar.scope import CleanupCall, Principal, Registration, ScopeKey

if TYPE_CHECKING:
    from sidecar.calls.pipeline import Pipeline

_AT_ONCE = 64
_UNKNOWN_TOOL = FailureKind.FAILURE_KIND_UNKNOWN_TOOL
_PAUSE = 1.0
_FACTS = {TeardownScope.TEARDOWN_SCOPE_RUN: "run_id", TeardownScope.TEARDOWN_SCOPE_SESSION: "session_id"}


class CleanupCalls:
    """Has any instance with the tool run what a cleanup names, as an ordinary call that nobody waits for.

    It is for the subject of the scope, and may do what the caller of the registering call may.
    """

    def __init__(self, pipeline: "Pipeline", patience: float) -> None:
        """`patience`: how many seconds one is tried again while no instance takes it."""
        self._pipeline = pipeline
        self._patience = patience
        self.places = asyncio.Semaphore(_AT_ONCE)
        """Held while one runs: only so many do at once."""

    async def run(
        self, registration: Registration, cleanup: CleanupCall, reason: "TeardownReason.ValueType"
    ) -> str | None:
        """Runs it once; answers what went wrong, in a word, or `None`.

        What no instance could take, for want of a worker or of room, is tried again, and no longer than the patience
        lasts. Nothing that an instance was given is.
        """
        loop = self._pipeline.loop
        until = loop.time() + self._patience
        while True:
            sink = _Outcome()
            call = _Cleanup(self._pipeline, registration, cleanup.caller, sink, reason)
            self._pipeline.run(call, _start(registration.key, cleanup))
            outcome = (await sink.outcome).outcome
            if outcome.HasField("result"):
                return "error" if outcome.result.is_error else None
            if not outcome.HasField("failure"):
                return "paused"
            failure = outcome.failure
            may_come = failure.retryable or failure.kind == _UNKNOWN_TOOL
            if call.attempts or not may_come or loop.time() + _PAUSE > until or self._pipeline.draining:
                return kind_name(failure.kind)
            await asyncio.sleep(_PAUSE)


class _Cleanup(Call):
    """A call that stands for a cleanup. It is in no scope, so that the end of its own one does not end it."""

    __slots__ = ("_reason",)

    def __init__(
        self,
        pipeline: "Pipeline",
        registration: Registration,
        caller: Principal,
        sink: "_Outcome",
        reason: "TeardownReason.ValueType",
    ) -> None:
        Call.__init__(self, pipeline, _Nobody(caller), sink, registration.id, pipeline.loop.time())
        self._reason = reason

    def placed(self, assignment: Assignment, now: float) -> None:
        """An instance has a slot for it: tells the tool why it is run."""
        if self.invocation is not None:
            self.invocation.invoke.context.cleanup_reason = self._reason
        super().placed(assignment, now)


class _Nobody:
    """The caller's side of a call that the sidecar makes by itself."""

    answerable: frozenset[str] | None = None
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

    def forget(self, number: int) -> None:
        """Nor is there anything to forget."""

    def leaves(self, call: Call) -> None:
        """It is joined by nobody, having no key."""

    def finished(self, call: Call) -> None:
        """The outcome went to the sink, which is all."""

    def took_over(self, call: Call) -> None:
        """Nor does it take any call over."""


class _Outcome:
    """Where the frames of a cleanup call go: all but the outcome nowhere."""

    def __init__(self) -> None:
        self.outcome: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()

    def send(self, frame: Frame) -> bool:
        """Takes the outcome."""
        if frame.HasField("outcome") and not self.outcome.done():
            self.outcome.set_result(frame)
        return True

    def report(self, frame: Frame) -> None:
        """Nobody listens."""


def _start(key: ScopeKey, cleanup: CleanupCall) -> Start:
    """What the call is started with: for the subject of the scope, and with the fact that it goes by."""
    start = Start(tool=cleanup.tool, arguments=cleanup.arguments)
    if key.kind in _FACTS:
        setattr(start, _FACTS[key.kind], key.fact)
        tenant, named = key.owner.tenant, key.owner.named
        if tenant is not None or named is not None:
            start.identity.CopyFrom(Identity(tenant=tenant, principal=named))
    return start
