"""Why calls end though their tool did not say so: one failure each."""

from sidecar._gen.pillion.v1.context_pb2 import CancelReason
from sidecar._gen.pillion.v1.outcome_pb2 import Failure, FailureKind, SideEffects
from sidecar._gen.pillion.v1.tool_pb2 import Effects
from sidecar.calls.outcome import NONE, POSSIBLE, failure
from sidecar.calls.result import effects_of_attempt, effects_of_return
from sidecar.calls.tool import Tool

_RETRY_AFTER = 1.0

_WHY_STOPPED = {
    CancelReason.CANCEL_REASON_CALLER: "The caller cancelled the call.",
    CancelReason.CANCEL_REASON_PARENT: "The outer call ended.",
    CancelReason.CANCEL_REASON_DISCONNECT: "The caller's stream was lost.",
    CancelReason.CANCEL_REASON_DRAIN: "The sidecar or the worker is stopping.",
    CancelReason.CANCEL_REASON_SCOPE_ENDED: "The run or session was ended.",
    CancelReason.CANCEL_REASON_OPERATOR: "An operator cancelled the call.",
}


def cancelled(reason: "CancelReason.ValueType", side_effects: "SideEffects.ValueType") -> Failure:
    """Somebody cancelled it, or it had to give way."""
    message = _WHY_STOPPED.get(reason, _WHY_STOPPED[CancelReason.CANCEL_REASON_CALLER])
    return failure(FailureKind.FAILURE_KIND_CANCELLED, message, side_effects)


def left_to_others(side_effects: "SideEffects.ValueType") -> Failure:
    """Its caller left a call that others had joined."""
    return failure(
        FailureKind.FAILURE_KIND_CANCELLED,
        "The caller left the call, which goes on for another that made the same request.",
        side_effects,
    )


def out_of_time(side_effects: "SideEffects.ValueType") -> Failure:
    """Its absolute timeout has passed."""
    return failure(FailureKind.FAILURE_KIND_TIMEOUT, "The call's time is up.", side_effects)


def idle(side_effects: "SideEffects.ValueType") -> Failure:
    """Its idle timeout has passed."""
    return failure(
        FailureKind.FAILURE_KIND_IDLE_TIMEOUT, "The tool reported no progress within its idle timeout.", side_effects
    )


def protocol_broken(message: str, side_effects: "SideEffects.ValueType") -> Failure:
    """A peer sent in it what it may not send."""
    return failure(FailureKind.FAILURE_KIND_PROTOCOL, message, side_effects)


def reserved(body: str, side_effects: "SideEffects.ValueType") -> Failure:
    """A peer sent in it a frame that is reserved."""
    return failure(
        FailureKind.FAILURE_KIND_UNSUPPORTED, f"This sidecar does not carry {body} frames yet.", side_effects
    )


def arguments_too_large(largest: int) -> Failure:
    """Its arguments do not fit into a frame of this many bytes."""
    return failure(
        FailureKind.FAILURE_KIND_INVALID_ARGUMENTS,
        f"The arguments are over the {largest:,} bytes that a call carries.",
        NONE,
    )


def all_full(tool_name: str) -> Failure:
    """It waited for a slot in vain."""
    return failure(
        FailureKind.FAILURE_KIND_OVERLOADED,
        f"Every instance that runs {tool_name} is full; try again later.",
        NONE,
        retryable=True,
        retry_after=_RETRY_AFTER,
    )


def none_attached(tool_name: str, waited: float) -> Failure:
    """It waited for a worker in vain, this many seconds."""
    return failure(
        FailureKind.FAILURE_KIND_UNAVAILABLE,
        f"No worker that runs {tool_name} is attached; try again when it is.",
        NONE,
        retryable=True,
        retry_after=waited,
    )


def worker_lost(tool: Tool) -> Failure:
    """Its worker was lost, and the tool may be run again."""
    return failure(
        FailureKind.FAILURE_KIND_WORKER_LOST,
        f"The worker was lost while {tool.name} ran; it is safe to run it again.",
        effects_of_attempt(tool),
        retryable=True,
    )


def outcome_unknown(tool: Tool) -> Failure:
    """Its worker was lost, and the tool may have done what must not be done twice."""
    return failure(
        FailureKind.FAILURE_KIND_OUTCOME_UNKNOWN,
        f"The worker was lost while {tool.name} ran; it may or may not have taken effect. Find out before you run it "
        "again.",
        effects_of_attempt(tool),
    )


def lost_with_sidecar(tool_name: str, effects: "Effects.ValueType") -> Failure:
    """The sidecar was killed while it ran."""
    if effects == Effects.EFFECTS_UNSAFE:
        return failure(
            FailureKind.FAILURE_KIND_OUTCOME_UNKNOWN,
            f"The sidecar was killed while {tool_name} ran; it may or may not have taken effect. Find out before you "
            "run it again.",
            POSSIBLE,
        )
    return failure(
        FailureKind.FAILURE_KIND_WORKER_LOST,
        f"The sidecar was killed while {tool_name} ran; it is safe to run it again.",
        NONE if effects == Effects.EFFECTS_READ else POSSIBLE,
        retryable=True,
    )


def not_placed(tool: Tool) -> Failure:
    """Its tool returned a result that could not be put where it belongs."""
    return failure(
        FailureKind.FAILURE_KIND_RESULT_TOO_LARGE,
        f"{tool.name} returned a result that is too large to be carried, and that could not be put as an artifact.",
        effects_of_return(tool),
    )


def not_paused(tool: Tool, side_effects: "SideEffects.ValueType") -> Failure:
    """Its tool paused where nobody keeps what has paused."""
    return failure(
        FailureKind.FAILURE_KIND_UNSUPPORTED,
        f"{tool.name} paused, and this sidecar keeps no paused calls.",
        side_effects,
    )


def pause_unrecorded(tool: Tool, side_effects: "SideEffects.ValueType") -> Failure:
    """Its tool paused, and that could not be recorded."""
    return failure(
        FailureKind.FAILURE_KIND_INTERNAL,
        f"{tool.name} paused, and the sidecar could not record it, so it cannot be resumed.",
        side_effects,
    )
