"""Gate 1: what a caller's `Start` says, decoded and held to its limits."""

from typing import NamedTuple

from google.protobuf.duration_pb2 import Duration

from sidecar._gen.pillion.v1.call_pb2 import Start
from sidecar._gen.pillion.v1.context_pb2 import Identity
from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind
from sidecar.calls.limits import CallLimits
from sidecar.calls.outcome import Refusal
from sidecar.calls.strict_json import JsonRefused, parse

_ID_BYTES = 256
_NO_ARGUMENTS = b"{}"
_INVALID = FailureKind.FAILURE_KIND_INVALID_ARGUMENTS
_UNSUPPORTED = FailureKind.FAILURE_KIND_UNSUPPORTED


class Request(NamedTuple):
    """A decoded `Start`. Times are in seconds."""

    tool: str
    arguments: bytes
    """As sent; `{}` where none were."""
    parsed: object
    """The arguments as a value, for the schema check alone."""
    timeout: float | None
    idle_timeout: float | None
    human_timeout: float
    run_id: str | None
    session_id: str | None
    identity: Identity | None
    idempotency_key: str | None


def decode(start: Start, limits: CallLimits, process: str) -> Request:
    """Decodes a `Start`. `process` is this sidecar's own id, to recognise a call that came back.

    :raises Refusal: if anything in it is malformed, over a limit, or not done here.
    """
    _check_asked_for(start, process)
    arguments = start.arguments if start.HasField("arguments") else _NO_ARGUMENTS
    try:
        parsed = parse(arguments)
    except JsonRefused as refused:
        raise Refusal(_INVALID, f"The arguments are not JSON as it is taken here: {refused}") from None
    key = None
    if start.HasField("idempotency_key"):
        key = _identifier("idempotency_key", start.idempotency_key)
        if not key:
            raise Refusal(_INVALID, "The idempotency key is empty; leave it out or send 1 to 256 bytes.")
    identity = None
    if start.HasField("identity"):
        identity = start.identity
        for field, value in identity.ListFields():
            _identifier(f"identity.{field.name}", value)
    return Request(
        start.tool,
        arguments,
        parsed,
        _seconds(start.timeout) if start.HasField("timeout") else None,
        _positive("idle_timeout", start.idle_timeout) if start.HasField("idle_timeout") else None,
        _positive("human_timeout", start.human_timeout) if start.HasField("human_timeout") else limits.human_timeout,
        _identifier("run_id", start.run_id) if start.HasField("run_id") else None,
        _identifier("session_id", start.session_id) if start.HasField("session_id") else None,
        identity,
        key,
    )


def usable_id(text: str) -> bool:
    """Whether a caller's id may be carried on: not empty, and at most 256 bytes."""
    return 0 < len(text) <= _ID_BYTES and len(text.encode()) <= _ID_BYTES


def _check_asked_for(start: Start, process: str) -> None:
    if not start.tool:
        raise Refusal(FailureKind.FAILURE_KIND_UNKNOWN_TOOL, "No tool was named; ListTools says which there are.")
    if start.HasField("tool_call_id") and not usable_id(start.tool_call_id):
        raise Refusal(_INVALID, "tool_call_id must have 1 to 256 bytes; leave it out to have one made.")
    if start.detachable:
        raise Refusal(_UNSUPPORTED, "This sidecar does not detach calls yet; start it without detachable.")
    if start.HasField("resume"):
        raise Refusal(_UNSUPPORTED, "This sidecar does not resume calls yet; start a new one.")
    if start.HasField("on_behalf_of"):
        raise Refusal(_UNSUPPORTED, "This sidecar does not act for the callers of others yet.")
    if process in start.hops:
        raise Refusal(FailureKind.FAILURE_KIND_PROTOCOL, "The call came back to a sidecar that it had passed already.")


def _identifier(name: str, text: str) -> str:
    if len(text) > _ID_BYTES or len(text.encode()) > _ID_BYTES:
        raise Refusal(_INVALID, f"{name} is over 256 bytes.")
    return text


def _seconds(duration: Duration) -> float:
    return duration.seconds + duration.nanos / 1e9


def _positive(name: str, duration: Duration) -> float:
    seconds = _seconds(duration)
    if seconds <= 0:
        raise Refusal(_INVALID, f"{name} must be positive; leave it out for none.")
    return seconds
