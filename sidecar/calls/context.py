"""What a tool is told about its call."""

from sidecar._gen.pillion.v1.call_pb2 import Start
from sidecar._gen.pillion.v1.context_pb2 import ToolContext
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar.calls.ports import Caller
from sidecar.calls.request import Request
from sidecar.telemetry import Counters

_TRACE_BYTES = {"traceparent": 64, "tracestate": 512, "baggage": 8_192}
_ANCHOR_BYTES = 1_024


def invocation(
    start: Start,
    request: Request,
    caller: Caller,
    execution_id: str,
    tool_call_id: str,
    counters: Counters,
) -> Frame:
    """The `Invoke` of a call, whole but for what changes with each attempt: remaining time, attempt, generation.

    Optional fields are set exactly where the caller named them. Nothing of the `Start` is kept alive.
    """
    frame = Frame()
    invoke = frame.invoke
    invoke.tool = request.tool
    invoke.arguments = request.arguments
    context = invoke.context
    context.execution_id = execution_id
    context.tool_call_id = tool_call_id
    if start.iteration:
        context.iteration = start.iteration
    if request.run_id is not None:
        context.run_id = request.run_id
    if request.session_id is not None:
        context.session_id = request.session_id
    if request.identity is not None:
        _name_subject(context, request)
    if caller.principal.authenticated:
        context.caller_principal = caller.principal.name
    if start.HasField("parent_anchor"):
        if caller.principal.authenticated and len(start.parent_anchor.encode()) <= _ANCHOR_BYTES:
            context.parent_anchor = start.parent_anchor
        else:
            counters.add("dropped_anchors")
    if start.HasField("trace"):
        for field, value in start.trace.ListFields():
            if len(value.encode()) <= _TRACE_BYTES[field.name]:
                setattr(context.trace, field.name, value)
    if request.idle_timeout is not None:
        context.idle_timeout.FromNanoseconds(int(request.idle_timeout * 1e9))
    # Present and empty: this sidecar has teardown scopes in its protocol and honours none of them yet.
    context.teardown_scopes.SetInParent()
    return frame


def _name_subject(context: ToolContext, request: Request) -> None:
    context.identity.SetInParent()
    if request.identity is not None:
        for field, value in request.identity.ListFields():
            if value:
                setattr(context.identity, field.name, value)
