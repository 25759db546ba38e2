"""What calls are started with by the facts of another: of one that paused, and of one whose tool makes them."""

from typing import TYPE_CHECKING

from sidecar._gen.pillion.v1.call_pb2 import Start
from sidecar._gen.pillion.v1.context_pb2 import ToolContext
from sidecar._gen.pillion.v1.worker_pb2 import Invoke
from sidecar.calls.context import set_seconds
from sidecar.calls.paused import PausedCall

if TYPE_CHECKING:
    from sidecar.calls.call import Call

_OF_THE_RESUME = frozenset(("timeout", "idle_timeout", "human_timeout", "trace"))


def facts_of(context: ToolContext) -> Start:
    """What a call says of whom it is for and what it belongs to. What it does not name is not named."""
    start = Start(iteration=context.iteration)
    if context.HasField("identity"):
        start.identity.CopyFrom(context.identity)
    for name in ("run_id", "session_id", "parent_anchor"):
        if context.HasField(name):
            setattr(start, name, getattr(context, name))
    if context.HasField("trace"):
        start.trace.CopyFrom(context.trace)
    return start


def start_of(call: "Call", invoke: Invoke) -> Start:
    """What a call that has this invocation may be run by again: what its caller said of it."""
    start = facts_of(invoke.context)
    start.tool, start.arguments, start.tool_call_id = call.tool_name, invoke.arguments, call.tool_call_id
    for name in ("timeout", "idle_timeout", "human_timeout"):
        seconds = getattr(call, name)
        if seconds is not None and seconds > 0:
            set_seconds(getattr(start, name), seconds)
    return start


def resumed_start(paused: PausedCall, given: Start) -> Start:
    """The paused call's own `Start`, with the times, the trace and the key of the one that resumes it."""
    start = Start.FromString(paused.start)
    for field, value in given.ListFields():
        if field.name in _OF_THE_RESUME:
            getattr(start, field.name).CopyFrom(value)
    if given.HasField("idempotency_key"):
        start.idempotency_key = given.idempotency_key
    if given.HasField("parent_anchor"):
        start.parent_anchor = given.parent_anchor
    if given.run_id and not start.HasField("run_id"):
        start.run_id = given.run_id
    if given.iteration:
        start.iteration = given.iteration
    return start
