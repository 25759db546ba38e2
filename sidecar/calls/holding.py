"""Tools that hold something for a run or a session: which scope that is, and why a call of it cannot be given on."""

from typing import TYPE_CHECKING

from sidecar._gen.pillion.v1.context_pb2 import TeardownScope
from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind
from sidecar.calls.outcome import Refusal
from sidecar.calls.tool import Tool
from sidecar.scope import ScopeKey

if TYPE_CHECKING:
    from sidecar.calls.call import Call

_RETRY_AFTER = 1.0
_RUN = TeardownScope.TEARDOWN_SCOPE_RUN


def scope_held(call: "Call", tool: Tool) -> ScopeKey:
    """The scope that a tool holds something for in this call.

    :raises Refusal: as INVALID_ARGUMENTS if the call does not name it.
    """
    is_run = tool.holds == _RUN
    fact = call.run if is_run else call.session_id
    if not fact or call.scope is None:
        raise Refusal(
            FailureKind.FAILURE_KIND_INVALID_ARGUMENTS,
            f"{tool.name} holds something for a {_word(tool)}, and the call names none; start it with a "
            f"{_word(tool)}_id.",
        )
    return ScopeKey(tool.holds, call.scope.owner, fact)


def pinned_is_full(tool: Tool) -> Refusal:
    """The one instance that can run it is full."""
    return _not_now(
        FailureKind.FAILURE_KIND_OVERLOADED,
        f"The instance that holds what this {_word(tool)} has opened is full, and no other has it; try again later.",
    )


def pinned_is_away(tool: Tool) -> Refusal:
    """The one instance that can run it has no stream just now."""
    return _not_now(
        FailureKind.FAILURE_KIND_UNAVAILABLE,
        f"The instance that holds what this {_word(tool)} has opened is away and may come back; try again later.",
    )


def pinned_has_not(tool: Tool) -> Refusal:
    """The one instance that could run it does not have it, or not in this version."""
    return Refusal(
        FailureKind.FAILURE_KIND_UNAVAILABLE,
        f"The instance that holds what this {_word(tool)} has opened does not run {tool.name}; end the {_word(tool)}, "
        "or name another.",
    )


def pinned_is_lost(tool: Tool) -> Refusal:
    """What was held is gone. Told once."""
    return Refusal(
        FailureKind.FAILURE_KIND_SESSION_LOST,
        f"The instance that held what this {_word(tool)} had opened is gone, and all of that with it; another call "
        "begins anew.",
    )


def keeper_is_full(tool: Tool) -> Refusal:
    """The instance that keeps what a paused call has opened is full."""
    return _not_now(
        FailureKind.FAILURE_KIND_OVERLOADED,
        f"The instance that keeps what this call of {tool.name} had opened before it paused is full; try again later.",
    )


def keeper_is_away(tool: Tool) -> Refusal:
    """The instance that keeps what a paused call has opened has no stream just now."""
    return _not_now(
        FailureKind.FAILURE_KIND_UNAVAILABLE,
        f"The instance that keeps what this call of {tool.name} had opened before it paused is away, and may come "
        "back; try again later.",
    )


def _not_now(kind: "FailureKind.ValueType", message: str) -> Refusal:
    return Refusal(kind, message, retryable=True, retry_after=_RETRY_AFTER)


def _word(tool: Tool) -> str:
    return "run" if tool.holds == _RUN else "session"
