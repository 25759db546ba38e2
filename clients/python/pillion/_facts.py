"""The facts of a call, in the words of the protocol, as values of Python."""

import enum
from dataclasses import dataclass
from typing import Any, NoReturn

from google.protobuf.duration_pb2 import Duration


class Effects(enum.IntEnum):
    """What running a tool does to the world. It decides whether the tool may run again after a lost worker."""

    READ = 1
    """Changes nothing."""
    IDEMPOTENT = 2
    """Running it twice with the same arguments is the same as once."""
    UNSAFE = 3
    """Anything else: never run twice for one request."""


class SideEffects(enum.IntEnum):
    """What a call that failed may have done to the world."""

    NONE = 1
    """Nothing."""
    POSSIBLE = 2
    """It may have done something."""
    COMMITTED = 3
    """It has done something, and the tool says so."""


class CancelReason(enum.IntEnum):
    """Why a call was asked to stop."""

    CALLER = 1
    """The caller asked."""
    DEADLINE = 2
    """The absolute timeout passed."""
    IDLE = 3
    """The idle timeout passed without progress."""
    PARENT = 4
    """The outer call ended or was cancelled."""
    DISCONNECT = 5
    """A stream of the call was lost."""
    DRAIN = 6
    """The sidecar or the worker is about to stop."""
    SCOPE_ENDED = 7
    """The run or session of the call was ended."""
    OPERATOR = 8
    """A person at the sidecar asked."""


class TeardownScope(enum.IntEnum):
    """How long what a call opened may live."""

    CALL = 1
    """Until the call's outcome."""
    RUN = 2
    """Until the caller ends the run. Needs a `run_id`."""
    SESSION = 3
    """Until the caller ends the session. Needs a `session_id`."""
    SHUTDOWN = 4
    """Until the sidecar stops."""


class TeardownReason(enum.IntEnum):
    """Why a cleanup runs."""

    CALL_END = 1
    """The call is about to get its outcome."""
    RUN_END = 2
    """The caller ended the run."""
    SESSION_END = 3
    """The caller ended the session."""
    SHUTDOWN = 4
    """The sidecar stops."""
    IDLE = 5
    """Nothing touched the scope for its idle time."""
    EVICTED = 6
    """The scope was the coldest of too many."""
    WORKER_LOST = 7
    """The worker and the sidecar were apart for too long, or the sidecar does not know the worker any more."""


@dataclass(frozen=True, slots=True)
class Registration:
    """What became of a cleanup that a tool has registered."""

    reused: bool
    """Whether one stood already, which is the one that will run."""
    count: int
    """How many times it was registered, this one included."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Whom a call is for, as its caller named it. It addresses storage and proves nothing; `None` is not named."""

    tenant: str | None = None
    principal: str | None = None
    conversation_id: str | None = None


@dataclass(frozen=True, slots=True)
class Trace:
    """W3C trace context. For correlation alone; `None` is not there."""

    traceparent: str | None = None
    tracestate: str | None = None
    baggage: str | None = None


class Withheld:
    """A text that neither prints nor serialises: `reveal` is the only way to it.

    It can be compared and hashed. Pickling, copying and JSON refuse it.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The text itself, for a decision; not to be logged, stored or passed on."""
        return self._text

    def __repr__(self) -> str:
        return f"<{type(self).__name__} withheld>"

    def __format__(self, _: str) -> str:
        return repr(self)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other._text == self._text if isinstance(other, Withheld) else False

    def __hash__(self) -> int:
        return hash((type(self), self._text))

    def __reduce_ex__(self, _: Any) -> NoReturn:
        raise TypeError(f"A {type(self).__name__} is not serialised.")


class CallerPrincipal(Withheld):
    """Who the connection proved the caller to be."""

    __slots__ = ()


class ParentAnchor(Withheld):
    """The caller's provenance anchor, verbatim."""

    __slots__ = ()


class Secret(Withheld):
    """A secret value of a credential."""

    __slots__ = ()


_LONGEST = 315_576_000_000
"""The most seconds that a duration has."""


def set_seconds(duration: Duration, seconds: float) -> None:
    """Sets a duration; one that is longer than there is, as `math.inf`, to the longest.

    :raises ValueError: if it is no number.
    """
    seconds = min(seconds, _LONGEST)
    whole = int(seconds)
    duration.seconds = whole
    if seconds != whole:
        duration.nanos = int((seconds - whole) * 1e9)


def seconds_of(duration: Duration) -> float:
    """The length of a duration."""
    return duration.seconds + duration.nanos / 1e9
