"""The door of single calls: `Call`, without a stream."""

import asyncio

from sidecar._gen.pillion.v1.call_pb2 import Start, Started
from sidecar._gen.pillion.v1.context_pb2 import CancelReason
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outcome_pb2 import Outcome
from sidecar.calls.call import Call
from sidecar.calls.pipeline import Pipeline
from sidecar.calls.questions import Question
from sidecar.scope import Principal


class UnaryCaller:
    """The caller of one call, which gets its outcome and nothing else."""

    detaches = False
    congested = False
    overfull = False
    answerable = None
    takes_consent = False
    gone = True
    call: Call | None = None
    """What runs for it."""

    def __init__(self, principal: Principal) -> None:
        self.principal = principal
        self.in_flight = 0
        self.started = Started()
        self.outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    def send(self, frame: Frame) -> bool:
        """Keeps what the answer needs; other frames are not for this door."""
        body = frame.WhichOneof("body")
        if body == "started":
            self.started.CopyFrom(frame.started)
        elif body == "outcome" and not self.outcome.done():
            outcome = Outcome()
            outcome.CopyFrom(frame.outcome)
            self.outcome.set_result(outcome)
        return True

    def report(self, frame: Frame) -> None:
        """Progress is not for this door."""

    def ask(self, question: Question) -> int:
        """There is no way back to it, so it is not asked."""
        question.gone()
        return 0

    def forget(self, number: int, question: Question) -> None:
        """It has no questions."""

    def leaves(self, call: Call) -> None:
        """It has no questions."""

    def finished(self, call: Call) -> None:
        """The outcome was kept."""

    def took_over(self, call: Call) -> None:
        """Another call runs for this one."""
        self.call = call


async def run_call(pipeline: Pipeline, principal: Principal, start: Start) -> tuple[Started, Outcome]:
    """Runs one call to its outcome. Cancelling this cancels the call, as a lost stream does."""
    caller = UnaryCaller(principal)
    caller.call = pipeline.start(start, caller, caller)
    try:
        outcome = await caller.outcome
        if pipeline.audit is not None:
            pipeline.audit.flush()
        return caller.started, outcome
    except asyncio.CancelledError:
        caller.call.cancel(CancelReason.CANCEL_REASON_DISCONNECT)
        raise
