"""How calls end: outcomes, and the refusals and failures among them."""

from collections.abc import Iterable
from typing import Final

from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outcome_pb2 import ArgumentIssue, Failure, FailureKind, SideEffects

NONE: Final = SideEffects.SIDE_EFFECTS_NONE
POSSIBLE: Final = SideEffects.SIDE_EFFECTS_POSSIBLE
COMMITTED: Final = SideEffects.SIDE_EFFECTS_COMMITTED

_PREFIX: Final = "FAILURE_KIND_"
_MESSAGE_BYTES: Final = 4_096


class Refusal(Exception):
    """A gate says no. Raised before the tool was invoked, so nothing had an effect."""

    def __init__(
        self,
        kind: "FailureKind.ValueType",
        message: str,
        *,
        retryable: bool = False,
        retry_after: float | None = None,
        issues: Iterable[ArgumentIssue] = (),
    ) -> None:
        super().__init__(message)
        self.failure = failure(kind, message, NONE, retryable=retryable, retry_after=retry_after)
        self.failure.issues.extend(issues)


class PauseWanted(Exception):
    """A gate waits for somebody outside, longer than a call lasts. Raised before the tool was invoked."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.frame = Frame()
        """The outcome frame of the pause."""
        self.frame.outcome.paused.ask.kind = kind
        self.frame.outcome.paused.ask.message = message


def failure(
    kind: "FailureKind.ValueType",
    message: str,
    side_effects: "SideEffects.ValueType",
    *,
    retryable: bool = False,
    retry_after: float | None = None,
) -> Failure:
    """A failure. The message quotes no values, secrets or other scopes; `retry_after` is in seconds."""
    made = Failure(kind=kind, message=message, retryable=retryable, side_effects=side_effects)
    if retry_after is not None:
        made.retry_after.FromNanoseconds(int(retry_after * 1e9))
    return made


def failed(reason: Failure) -> Frame:
    """The outcome frame of a failure."""
    frame = Frame()
    frame.outcome.failure.CopyFrom(reason)
    return frame


def kind_name(kind: "FailureKind.ValueType") -> str:
    """The word for a kind: `TIMEOUT`, say."""
    return FailureKind.Name(kind).removeprefix(_PREFIX)


def cut(message: str, at_most: int = _MESSAGE_BYTES) -> str:
    """A text of at most so many bytes of UTF-8, cut between characters."""
    encoded = message.encode("utf-8", "replace")
    if len(encoded) <= at_most:
        return message
    return encoded[:at_most].decode("utf-8", "ignore")
