"""What a running tool asks to keep for the end of a scope, checked and made a registration."""

import secrets
from typing import TYPE_CHECKING

from sidecar._gen.pillion.v1.context_pb2 import TeardownScope
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outbound_pb2 import ReplyErrorCode
from sidecar._gen.pillion.v1.worker_pb2 import RegisterTeardown
from sidecar.calls.firing import scope_name
from sidecar.calls.outbound import refused
from sidecar.calls.request import NO_ARGUMENTS
from sidecar.calls.strict_json import JsonRefused, parse
from sidecar.scope import LASTING, UNTIL_THE_STOP, Address, CleanupCall, Registration, ScopeKey, ScopeLimits, call_scope

if TYPE_CHECKING:
    from sidecar.calls.call import Call

_CALL = TeardownScope.TEARDOWN_SCOPE_CALL
_RUN = TeardownScope.TEARDOWN_SCOPE_RUN
_SHUTDOWN = TeardownScope.TEARDOWN_SCOPE_SHUTDOWN
_INVALID = ReplyErrorCode.REPLY_ERROR_CODE_INVALID
_CANCELLED = ReplyErrorCode.REPLY_ERROR_CODE_CANCELLED
_OVERLOADED = ReplyErrorCode.REPLY_ERROR_CODE_OVERLOADED
_TEXT_BYTES = 256
_TOOL_BYTES = 64
_ID_BYTES = 12
_RETRY_AFTER = 1.0


def registration_of(call: "Call", asked: RegisterTeardown, limits: ScopeLimits) -> Registration | Frame:
    """The registration that a running tool asks for, with a new id; or the reply that says why there is none."""
    number = asked.request_id
    assignment, tool, scope = call.assignment, call.tool, call.scope
    if assignment is None or tool is None or scope is None:
        return scope_ending(number)
    kind = asked.scope
    if kind == _CALL:
        key = call.kept_for or call_scope(scope.owner, call.execution_id)
    elif kind == _SHUTDOWN:
        key = UNTIL_THE_STOP
    elif kind in LASTING:
        fact = call.run if kind == _RUN else call.session_id
        if not fact:
            return _fact_missing(number, call, kind)
        key = ScopeKey(kind, scope.owner, fact)
        if key not in call.lasting_scopes():
            # A cleanup call is in none, whatever it names.
            return _unsupported(number, call)
    else:
        return _unsupported(number, call)
    wrong = _wrong_with(asked, limits)
    if wrong is not None:
        return refused(number, _INVALID, wrong)
    cleanup = None
    if asked.HasField("cleanup_call"):
        cleanup = CleanupCall(
            asked.cleanup_call.tool, asked.cleanup_call.arguments or NO_ARGUMENTS, call.caller.principal
        )
    return Registration(
        f"reg_{secrets.token_hex(_ID_BYTES)}",
        Address(key, assignment.instance_id, tool.name, asked.name if asked.HasField("name") else None),
        tool.workers.name,
        asked.label if asked.HasField("label") else None,
        cleanup,
    )


def _honoured(call: "Call") -> str:
    """The scopes that the call's tool may register for, in words."""
    *others, last = map(scope_name, (_CALL, _SHUTDOWN, *(key.kind for key in call.lasting_scopes())))
    return f"{', '.join(others)} or {last}"


def _wrong_with(asked: RegisterTeardown, limits: ScopeLimits) -> str | None:
    """What of a registration is over its bounds, as a sentence."""
    for what, text in (("name", asked.name), ("label", asked.label)):
        if len(text.encode()) > _TEXT_BYTES:
            return f"The {what} is over {_TEXT_BYTES} bytes."
    if not asked.HasField("cleanup_call"):
        return None
    cleanup = asked.cleanup_call
    if not 0 < len(cleanup.tool.encode()) <= _TOOL_BYTES:
        return f"A cleanup call names its tool, in at most {_TOOL_BYTES} bytes."
    if len(cleanup.arguments) > limits.cleanup_arguments:
        return f"The arguments of a cleanup call have at most {limits.cleanup_arguments:,} bytes."
    if cleanup.HasField("arguments"):
        try:
            if not isinstance(parse(cleanup.arguments), dict):
                return "The arguments of a cleanup call are one JSON object."
        except JsonRefused as reason:
            return f"The arguments of a cleanup call are not JSON as it is taken here: {reason}"
    return None


def _unsupported(number: int, call: "Call") -> Frame:
    return refused(
        number,
        ReplyErrorCode.REPLY_ERROR_CODE_TEARDOWN_SCOPE_UNSUPPORTED,
        f"The registration names no scope that is honoured in this call; name {_honoured(call)}.",
    )


def _fact_missing(number: int, call: "Call", kind: "TeardownScope.ValueType") -> Frame:
    return refused(
        number,
        ReplyErrorCode.REPLY_ERROR_CODE_TEARDOWN_FACT_MISSING,
        f"The caller named no {LASTING[kind]} for this call, which the scope {scope_name(kind)} needs; register for "
        f"{_honoured(call)}, or have the caller name one.",
    )


def too_many(number: int, most: int, of_what: str) -> Frame:
    """The reply where so many registrations are the most."""
    return refused(
        number,
        _OVERLOADED,
        f"There are {most:,} registrations {of_what}, which is the most; end scopes, or register less.",
        retry_after=_RETRY_AFTER,
    )


def scope_ending(number: int) -> Frame:
    """The reply where nothing is kept for a scope any more."""
    return refused(
        number, _CANCELLED, "The scope is being ended, and nothing is kept for it any more; clean up at once."
    )
