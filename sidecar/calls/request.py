"""Gate 1: what a caller's `Start` says, decoded and held to its limits."""

from typing import TYPE_CHECKING, Final, NamedTuple

from google.protobuf.duration_pb2 import Duration

from sidecar._gen.pillion.v1.call_pb2 import Start
from sidecar._gen.pillion.v1.context_pb2 import Identity
from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind
from sidecar.calls.context import LONGEST
from sidecar.calls.outcome import Refusal
from sidecar.calls.strict_json import JsonRefused, parse

if TYPE_CHECKING:
    from sidecar.calls.call import Call

_ID_BYTES: Final = 256
_CERTAINLY_SHORT: Final = _ID_BYTES // 4
NO_ARGUMENTS: Final = b"{}"
"""What a call has that names none."""
_INVALID: Final = FailureKind.FAILURE_KIND_INVALID_ARGUMENTS
_UNSUPPORTED: Final = FailureKind.FAILURE_KIND_UNSUPPORTED
_has: Final = Start.HasField


def decode(start: Start, call: "Call", process: str) -> tuple[bytes, object, Identity | None]:
    """Decodes a `Start` into its call; answers the arguments, as sent and as a value, and the identity, if it has one.

    `process` is this sidecar's own id, to recognise a call that came back.

    :raises Refusal: if anything in it is malformed, over a limit, or not done here.
    """
    call.tool_name = tool_name = start.tool
    if not tool_name:
        raise Refusal(FailureKind.FAILURE_KIND_UNKNOWN_TOOL, "No tool was named; ListTools says which there are.")
    if start.detachable or start.hops or _has(start, "on_behalf_of"):
        _refuse_what_is_not_done(start, call, process)
    identity = _read_facts(start, call)
    arguments = start.arguments or (b"" if _has(start, "arguments") else NO_ARGUMENTS)
    try:
        return arguments, parse(arguments), identity
    except JsonRefused as refused:
        raise Refusal(_INVALID, f"The arguments are not JSON as it is taken here: {refused}") from None


class Resumed(NamedTuple):
    """What a `Start` that resumes a call says, beside the facts that it has like any other."""

    ticket: str
    answer: bytes
    """JSON text; empty: none."""
    tool: str
    """Empty: it names none."""
    arguments: bytes | None
    identity: Identity | None
    run_id: str | None
    session_id: str | None


def decode_resume(start: Start, call: "Call", process: str) -> Resumed:
    """Decodes a `Start` that resumes a call, into the call that goes on. Whether its ticket opens anything is not seen.

    :raises Refusal: if anything in it is malformed, over a limit, or not done here.
    """
    call.tool_name = start.tool
    if start.detachable or start.hops or _has(start, "on_behalf_of"):
        _refuse_what_is_not_done(start, call, process)
    identity = _read_facts(start, call)
    resume = start.resume
    try:
        if resume.answer:
            parse(resume.answer)
    except JsonRefused as refused:
        raise Refusal(_INVALID, f"The answer is not JSON as it is taken here: {refused}") from None
    return Resumed(
        resume.ticket,
        resume.answer,
        start.tool,
        start.arguments if _has(start, "arguments") else None,
        identity,
        call.run_id,
        call.session_id,
    )


def usable_id(text: str) -> bool:
    """Whether a caller's id may be carried on: not empty, and at most 256 bytes."""
    return 0 < len(text) <= _CERTAINLY_SHORT or 0 < len(text.encode()) <= _ID_BYTES


def _refuse_what_is_not_done(start: Start, call: "Call", process: str) -> None:
    if start.detachable and not call.caller.detaches:
        raise Refusal(
            _UNSUPPORTED,
            "A detachable call is started on a stream, where it can be followed; here leave detachable out.",
        )
    if _has(start, "on_behalf_of"):
        raise Refusal(_UNSUPPORTED, "This sidecar does not act for the callers of others.")
    if process in start.hops:
        raise Refusal(FailureKind.FAILURE_KIND_PROTOCOL, "The call came back to a sidecar that it had passed already.")


def _read_facts(start: Start, call: "Call") -> Identity | None:
    if _has(start, "tool_call_id") and not usable_id(start.tool_call_id) and call.parent is None:
        raise Refusal(_INVALID, "tool_call_id must have 1 to 256 bytes; leave it out to have one made.")
    if _has(start, "run_id"):
        call.run_id = _identifier("run_id", start.run_id)
    if _has(start, "session_id"):
        call.session_id = _identifier("session_id", start.session_id)
    if _has(start, "idempotency_key"):
        call.key = _identifier("idempotency_key", start.idempotency_key)
        if not call.key:
            raise Refusal(_INVALID, "The idempotency key is empty; leave it out or send 1 to 256 bytes.")
    identity = None
    if _has(start, "identity"):
        identity = start.identity
        _check_identity(identity)
    _read_times(start, call)
    return identity


def _read_times(start: Start, call: "Call") -> None:
    if _has(start, "timeout"):
        call.timeout = _seconds(start.timeout)
    if _has(start, "idle_timeout"):
        call.idle_timeout = _positive("idle_timeout", start.idle_timeout)
    if _has(start, "human_timeout"):
        call.human_timeout = _positive("human_timeout", start.human_timeout)


def _check_identity(identity: Identity) -> None:
    for field, value in identity.ListFields():
        _identifier(f"identity.{field.name}", value)


def _identifier(name: str, text: str) -> str:
    if len(text) > _CERTAINLY_SHORT and len(text.encode()) > _ID_BYTES:
        raise Refusal(_INVALID, f"{name} is over 256 bytes.")
    return text


def _seconds(duration: Duration) -> float:
    return min(duration.seconds + duration.nanos / 1e9, LONGEST)


def _positive(name: str, duration: Duration) -> float:
    seconds = _seconds(duration)
    if seconds <= 0:
        raise Refusal(_INVALID, f"{name} must be positive; leave it out for none.")
    return seconds
