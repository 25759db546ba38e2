"""What a tool is told about its call."""

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from google.protobuf.duration_pb2 import Duration

from sidecar._gen.pillion.v1.call_pb2 import Start
from sidecar._gen.pillion.v1.context_pb2 import Identity, TeardownScope, ToolContext
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar.scope import Principal

if TYPE_CHECKING:
    from sidecar.calls.call import Call

_TRACE_BYTES: Final = {"traceparent": 64, "tracestate": 512, "baggage": 8_192}
_ANCHOR_BYTES: Final = 1_024
_CALLERS: Final = 1_024
_ALWAYS: Final = (TeardownScope.TEARDOWN_SCOPE_CALL, TeardownScope.TEARDOWN_SCOPE_SHUTDOWN)
"""The teardown scopes that need nothing of the caller's."""
_has: Final = Start.HasField

LONGEST: Final = 315_576_000_000
"""The most seconds that a duration has, by its definition. One of more is taken for this one: as good as for ever."""


def invocation(
    start: Start,
    call: "Call",
    arguments: bytes,
    identity: Identity | None,
    secret: bytes,
    *,
    has_artifacts: bool,
) -> Frame:
    """The `Invoke` of a decoded call, whole but for what changes with each attempt: see `renew`.

    `secret` is what digests of teardown keys are made with. Optional fields are set exactly where the caller named
    them. Nothing of the `Start` is kept alive.
    """
    frame, caller = Frame(), call.caller
    invoke = frame.invoke
    invoke.tool = call.tool_name
    invoke.arguments = arguments
    context = invoke.context
    context.execution_id = call.execution_id
    context.tool_call_id = call.tool_call_id
    if start.iteration:
        context.iteration = start.iteration
    if call.run_id is not None:
        context.run_id = call.run_id
    if call.session_id is not None:
        context.session_id = call.session_id
    if identity is not None:
        _name_subject(context, identity)
    context.MergeFromString(_of_caller(caller.principal, caller.answerable, call.levels, has_artifacts))
    if call.run_id or call.session_id:
        for key in call.lasting_scopes():
            context.teardown_scopes.scopes.append(key.kind)
            context.session_keys.add(scope=key.kind, digest=key.digest(secret))
    if _has(start, "parent_anchor"):
        _carry_anchor(context, start.parent_anchor, call)
    if _has(start, "trace"):
        for field, value in start.trace.ListFields():
            if len(value.encode()) <= _TRACE_BYTES[field.name]:
                setattr(context.trace, field.name, value)
    if call.idle_timeout is not None:
        set_seconds(context.idle_timeout, call.idle_timeout)
    return frame


@lru_cache(_CALLERS)
def _of_caller(principal: Principal, answerable: frozenset[str] | None, levels: int, has_artifacts: bool) -> bytes:  # noqa: FBT001  # a cache looks names up
    """What is the same in every context of a caller's calls at one depth, serialised: it costs half as much so."""
    context = ToolContext()
    if principal.authenticated:
        context.caller_principal = principal.name
    if answerable is not None:
        context.answerable.SetInParent()
        context.answerable.methods.extend(sorted(answerable))
    if levels:
        context.tools.remaining_depth = levels
    if has_artifacts:
        context.has_artifacts = True
    context.teardown_scopes.scopes.extend(_ALWAYS)
    return context.SerializeToString()


def _name_subject(context: ToolContext, identity: Identity) -> None:
    context.identity.SetInParent()
    for field, value in identity.ListFields():
        if value:
            setattr(context.identity, field.name, value)


def _carry_anchor(context: ToolContext, anchor: str, call: "Call") -> None:
    """Carries an anchor on, verbatim, where somebody vouches for who sent it."""
    if call.caller.principal.authenticated and len(anchor.encode()) <= _ANCHOR_BYTES:
        context.parent_anchor = call.anchor = anchor
    else:
        call.count("dropped_anchors")


def renew(context: ToolContext, remaining: float, attempt: int, generation: int) -> None:
    """Sets what changes with each attempt. `remaining` is in seconds."""
    set_seconds(context.remaining, remaining)
    context.attempt = attempt
    context.generation = generation


def set_seconds(duration: Duration, seconds: float) -> None:
    """Sets a duration that is not negative."""
    whole = int(seconds)
    duration.seconds = whole
    duration.nanos = int((seconds - whole) * 1e9)
