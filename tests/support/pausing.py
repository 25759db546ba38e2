"""Pauses as workers and callers in a test's hands have them."""

from typing import Any

from sidecar._gen.pillion.v1.call_pb2 import ResumeTicket
from sidecar._gen.pillion.v1.context_pb2 import Resume
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outcome_pb2 import Paused
from tests.support.caller import CallerPeer
from tests.support.tools import text
from tests.support.worker import Invocation, WorkerPeer


def pause(call: int, message: str = "Go on?", *, kind: str = "confirm", schema: Any = None, state: Any = None) -> Frame:
    """An outcome that is a pause. `state` is bytes."""
    frame = Frame(call=call)
    paused = frame.outcome.paused
    paused.ask.kind, paused.ask.message = kind, message
    if schema is not None:
        paused.ask.schema = text(schema)
    if state is not None:
        paused.state = state
    return frame


def resuming(ticket: str, answer: Any = None) -> ResumeTicket:
    """What a `Start` resumes."""
    return ResumeTicket(ticket=ticket, answer=None if answer is None else text(answer))


async def paused(
    worker: WorkerPeer, caller: CallerPeer, name: str = "echo", arguments: Any = None, **facts: Any
) -> Paused:
    """Runs a call that pauses; answers what its caller gets."""
    state = facts.pop("state", None)
    call = await caller.start(name, arguments, **facts)
    await worker.send(pause((await worker.next_invoke()).call, state=state))
    outcome = await caller.outcome(call)
    assert outcome.HasField("paused"), outcome
    return outcome.paused


async def resume(caller: CallerPeer, ticket: str, answer: Any = None, name: str = "", **facts: Any) -> int:
    """Resumes a call; answers the id of the call that goes on."""
    return await caller.start(name, None, resume=resuming(ticket, answer), **facts)


def told(run: Invocation) -> Resume | None:
    """What a tool is told of the pause that it goes on from."""
    return run.context.resume if run.context.HasField("resume") else None
