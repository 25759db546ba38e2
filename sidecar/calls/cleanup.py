"""Cleanup calls: what a tool has named to be run where the instance that kept a cleanup is gone."""

import asyncio
import contextlib
from typing import TYPE_CHECKING

from sidecar._gen.pillion.v1.call_pb2 import Start
from sidecar._gen.pillion.v1.context_pb2 import Identity, TeardownReason
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind
from sidecar.calls.firing import Claimed, Firing
from sidecar.calls.outcome import kind_name
from sidecar.calls.stand_in import StandIn
from sidecar.calls.stores import StoreUnavailable
from sidecar.scope import LASTING, CleanupCall, Registration, ScopeKey

if TYPE_CHECKING:
    from sidecar.calls.pipeline import Pipeline

_AT_ONCE = 64
_UNKNOWN_TOOL = FailureKind.FAILURE_KIND_UNKNOWN_TOOL
_WORKER_LOST = TeardownReason.TEARDOWN_REASON_WORKER_LOST
_PAUSE = 1.0
_NOT_RUN = "not run"


class CleanupCalls:
    """Has any instance with the tool run what a cleanup names, as an ordinary call that nobody waits for.

    It is for the subject of the scope, and may do what the caller of the registering call may.
    """

    def __init__(self, pipeline: "Pipeline", firing: Firing, patience: float) -> None:
        """`patience`: how many seconds one is tried again while no instance takes it."""
        self.is_stopping = False
        """Whether none is begun any more."""
        self._pipeline = pipeline
        self._firing = firing
        self._patience = patience
        self._places = asyncio.Semaphore(_AT_ONCE)

    async def stand_in(self, registration: Registration, reason: "TeardownReason.ValueType") -> None:
        """Has the cleanup call of a registration run once, claimed as that, and reports what came of it.

        What the sidecar's end comes before is left as it is, for the next one.
        """
        firing, cleanup = self._firing, registration.cleanup
        async with self._places:
            if cleanup is None or self._ends:
                if not registration.is_stored:
                    # Of which the next one would not know.
                    firing.lost(registration)
                return
            # What is recorded as claimed for any other reason could be run by the instance after all.
            if not await firing.record((registration,), _WORKER_LOST):
                return
            self._pipeline.counters.add("cleanup_calls")
            wrong = await self._run(registration, cleanup, reason)
        if wrong is _NOT_RUN:
            with contextlib.suppress(StoreUnavailable):
                await firing.store.unclaim((registration,))
            return
        if wrong is None:
            firing.ran(Claimed(registration, reason), None)
        else:
            firing.failed(registration, reason, "cleanup-call", f"its cleanup call ended as {wrong}")
        await firing.forget((registration,))

    @property
    def _ends(self) -> bool:
        return self.is_stopping or self._pipeline.draining

    async def _run(
        self, registration: Registration, cleanup: CleanupCall, reason: "TeardownReason.ValueType"
    ) -> str | None:
        """Runs it; answers what went wrong, in a word, or `None`.

        What no instance could take, for want of a worker or of room, is tried again, and no longer than the patience
        lasts. Nothing that an instance was given is.
        """
        loop = self._pipeline.loop
        until = loop.time() + self._patience
        while True:
            sink = _Outcome()
            call = StandIn(self._pipeline, registration, cleanup.caller, sink, reason)
            self._pipeline.run(call, _start(registration.key, cleanup))
            outcome = (await sink.outcome).outcome
            if outcome.HasField("result"):
                return "an error of the tool" if outcome.result.is_error else None
            failure = outcome.failure
            if not call.attempts and self._ends:
                return _NOT_RUN
            may_come = failure.retryable or failure.kind == _UNKNOWN_TOOL
            if call.attempts or not may_come or loop.time() + _PAUSE > until:
                return kind_name(failure.kind)
            await asyncio.sleep(_PAUSE)


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
    if key.kind in LASTING:
        setattr(start, LASTING[key.kind], key.fact)
    tenant, named = key.owner.tenant, key.owner.named
    if tenant is not None or named is not None:
        start.identity.CopyFrom(Identity(tenant=tenant, principal=named))
    return start
