"""Gate 12: what a tool's worker says of the call's end, held to what the tool declared."""

from collections.abc import Callable
from typing import Final

from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outcome_pb2 import Ask, Failure, FailureKind, Outcome, Result, SideEffects
from sidecar._gen.pillion.v1.tool_pb2 import Effects
from sidecar.calls.outcome import COMMITTED, NONE, POSSIBLE, cut, failed, failure
from sidecar.calls.strict_json import JsonRefused, parse
from sidecar.calls.tool import Tool

_READ: Final = Effects.EFFECTS_READ
_KINDS_OF_TOOLS: Final = frozenset(
    (
        FailureKind.FAILURE_KIND_INVALID_ARGUMENTS,
        FailureKind.FAILURE_KIND_OVERLOADED,
        FailureKind.FAILURE_KIND_UNAVAILABLE,
        FailureKind.FAILURE_KIND_CREDENTIAL_UNAVAILABLE,
        FailureKind.FAILURE_KIND_ARTIFACT_UNAVAILABLE,
        FailureKind.FAILURE_KIND_TOOL_FAILED,
        FailureKind.FAILURE_KIND_CANCELLED,
        FailureKind.FAILURE_KIND_OUTCOME_UNKNOWN,
        FailureKind.FAILURE_KIND_SESSION_LOST,
        FailureKind.FAILURE_KIND_RESULT_TOO_LARGE,
        FailureKind.FAILURE_KIND_UNSUPPORTED,
        FailureKind.FAILURE_KIND_INTERNAL,
    )
)
_has: Final = Outcome.HasField
_result_has: Final = Result.HasField
_ISSUES: Final = 10
_ISSUE_BYTES: Final = 256
PAUSE_STATE_BYTES: Final = 65_536
"""How much a tool may keep for its resume."""
_ASK_KIND_BYTES: Final = 128
_ASK_SCHEMA_BYTES: Final = 32_768
_MESSAGE_BYTES: Final = 4_096
_SAID: Final = (NONE, POSSIBLE, COMMITTED)


def effects_of_return(tool: Tool) -> "SideEffects.ValueType":
    """What a tool that ran to its end has done to the world."""
    return NONE if tool.effects == _READ else COMMITTED


def effects_of_attempt(tool: Tool) -> "SideEffects.ValueType":
    """What a tool that was invoked, and did not say how it ended, may have done to the world."""
    return NONE if tool.effects == _READ else POSSIBLE


def effects_of(frame: Frame, tool: Tool) -> "SideEffects.ValueType":
    """What a tool that ended in this frame says it has done to the world."""
    outcome = frame.outcome
    if outcome.HasField("failure"):
        said = outcome.failure.side_effects
        return said if said in _SAID else effects_of_attempt(tool)
    return effects_of_return(tool) if outcome.HasField("result") else effects_of_attempt(tool)


def checked(frame: Frame, tool: Tool, redact: Callable[[str], str] | None, *, takes_uploads: bool) -> Frame:
    """The outcome frame to pass on: the worker's own, stripped of what is not its to say, or a failure in its stead.

    `redact` takes secrets out of what it says of a failure. A result is the tool's word, and passes as it is. With
    `takes_uploads`, one that names an uploaded artifact in place of a value is passed on as it is, to be looked into
    where artifacts are known.
    """
    outcome = frame.outcome
    if _has(outcome, "result"):
        result = outcome.result
        if _result_has(result, "placed"):
            result.ClearField("placed")
        if _has(outcome, "uploaded_reference"):
            wrong = _not_uploadable(tool, result, takes_uploads=takes_uploads)
            return frame if wrong is None else failed(wrong)
        if tool.ceiling is not None and (size := result.ByteSize()) > tool.ceiling:
            return failed(over_ceiling(tool, size))
        if tool.result is None or result.is_error:
            return frame
        wrong = _misfit(frame, tool)
        return frame if wrong is None else failed(wrong)
    if outcome.HasField("failure"):
        return _believed(frame, tool, redact or str)
    if outcome.HasField("paused"):
        return _asked(frame, tool, redact or str)
    return failed(
        failure(
            FailureKind.FAILURE_KIND_INTERNAL,
            f"The worker of {tool.name} ended the call in a way that this sidecar does not know.",
            effects_of_attempt(tool),
        )
    )


def too_large(tool: Tool, limit: int, side_effects: "SideEffects.ValueType") -> Failure:
    """The failure of a call whose result does not fit into a frame."""
    return failure(
        FailureKind.FAILURE_KIND_RESULT_TOO_LARGE,
        f"The result of {tool.name} is over the {limit:,} bytes that can be carried; ask for less.",
        side_effects,
    )


def over_ceiling(tool: Tool, size: int) -> Failure:
    """The failure of a call whose result has more bytes than its tool declares."""
    return failure(
        FailureKind.FAILURE_KIND_RESULT_TOO_LARGE,
        f"The result has {size:,} bytes and {tool.name} returns at most {tool.ceiling:,}; ask for less.",
        effects_of_return(tool),
    )


def _not_uploadable(tool: Tool, result: Result, *, takes_uploads: bool) -> Failure | None:
    """Why a result that was uploaded cannot be passed on; `None` if it may."""
    if not takes_uploads:
        return failure(
            FailureKind.FAILURE_KIND_RESULT_TOO_LARGE,
            f"The result of {tool.name} was uploaded, and the tool declares no placement for it; ask for less.",
            effects_of_return(tool),
        )
    if result.is_error or _result_has(result, "json"):
        return failure(
            FailureKind.FAILURE_KIND_INTERNAL,
            f"The worker of {tool.name} uploaded a result, and sent another beside it.",
            effects_of_return(tool),
        )
    return None


def _misfit(frame: Frame, tool: Tool) -> Failure | None:
    result = frame.outcome.result
    schema = tool.result
    if schema is None:
        return None
    if not result.HasField("json"):
        wrong = "it has no value"
    else:
        try:
            issues = schema.issues(parse(result.json))
        except JsonRefused as refused:
            wrong = str(refused)
        else:
            if not issues:
                return None
            wrong = "; ".join(f"{issue.path or 'the value'}: {issue.message}" for issue in issues[:_ISSUES])
    return failure(
        FailureKind.FAILURE_KIND_INVALID_RESULT,
        cut(f"The result of {tool.name} does not fit the output schema it declares: {wrong}"),
        effects_of_return(tool),
    )


def _asked(frame: Frame, tool: Tool, redact: Callable[[str], str]) -> Frame:
    """The pause, held to its bounds and without what is not the worker's to say."""
    paused = frame.outcome.paused
    ask = paused.ask
    if len(paused.state) > PAUSE_STATE_BYTES:
        return failed(
            failure(
                FailureKind.FAILURE_KIND_RESULT_TOO_LARGE,
                f"{tool.name} paused with {len(paused.state):,} bytes of state, and {PAUSE_STATE_BYTES:,} "
                "are the most; have it keep an artifact.",
                effects_of_attempt(tool),
            )
        )
    ask.kind, ask.message = redact(ask.kind), redact(ask.message)
    if ask.HasField("schema"):
        ask.schema = redact(ask.schema.decode(errors="replace")).encode()
    wrong = _wrong_ask(ask)
    if wrong is not None:
        return failed(
            failure(
                FailureKind.FAILURE_KIND_INTERNAL,
                f"The worker of {tool.name} paused with {wrong}.",
                effects_of_attempt(tool),
            )
        )
    paused.ClearField("ticket")
    frame.outcome.ClearField("uploaded_reference")
    return frame


def _wrong_ask(ask: Ask) -> str | None:
    if not 0 < len(ask.kind.encode()) <= _ASK_KIND_BYTES:
        return f"a kind of ask that has not 1 to {_ASK_KIND_BYTES} bytes"
    if not 0 < len(ask.message.encode()) <= _MESSAGE_BYTES:
        return f"a message that has not 1 to {_MESSAGE_BYTES:,} bytes"
    if not ask.HasField("schema"):
        return None
    if len(ask.schema) > _ASK_SCHEMA_BYTES:
        return f"a schema of over {_ASK_SCHEMA_BYTES:,} bytes"
    try:
        parse(ask.schema)
    except JsonRefused:
        return "a schema that is not JSON as it is taken here"
    return None


def _believed(frame: Frame, tool: Tool, redact: Callable[[str], str]) -> Frame:
    reason = frame.outcome.failure
    if reason.kind not in _KINDS_OF_TOOLS:
        return failed(
            failure(
                FailureKind.FAILURE_KIND_INTERNAL,
                f"The worker of {tool.name} reported a failure that is not a tool's to report.",
                effects_of_attempt(tool),
            )
        )
    frame.outcome.ClearField("uploaded_reference")
    # Before it is cut: half a secret is not found.
    reason.message = cut(redact(reason.message))
    reason.side_effects = effects_of(frame, tool)
    if reason.retry_after.seconds < 0 or reason.retry_after.nanos < 0:
        reason.ClearField("retry_after")
    if reason.kind == FailureKind.FAILURE_KIND_INVALID_ARGUMENTS:
        del reason.issues[_ISSUES:]
        for issue in reason.issues:
            issue.path, issue.rule, issue.message = (
                cut(redact(text), _ISSUE_BYTES) for text in (issue.path, issue.rule, issue.message)
            )
    else:
        reason.ClearField("issues")
    return frame
