"""How a call can fail, a class for each kind, and what a caller's own connection adds to them."""

import enum
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from pillion._facts import SideEffects, seconds_of
from pillion._gen.pillion.v1.outcome_pb2 import Failure

if TYPE_CHECKING:
    from pillion._caller.outcome import Paused, Result


class FailureKind(enum.IntEnum):
    """Why a call did not return. Closed."""

    UNKNOWN_TOOL = 1
    INVALID_ARGUMENTS = 2
    DENIED = 3
    OVERLOADED = 4
    UNAVAILABLE = 5
    CREDENTIAL_UNAVAILABLE = 6
    CONSENT_REQUIRED = 7
    ARTIFACT_UNAVAILABLE = 8
    TOOL_FAILED = 9
    TIMEOUT = 10
    IDLE_TIMEOUT = 11
    CANCELLED = 12
    WORKER_LOST = 13
    OUTCOME_UNKNOWN = 14
    SESSION_LOST = 15
    IDEMPOTENCY_CONFLICT = 16
    TICKET_INVALID = 17
    RESULT_TOO_LARGE = 18
    INVALID_RESULT = 19
    UNSUPPORTED = 20
    PROTOCOL = 21
    INTERNAL = 22


class ArgumentIssue(NamedTuple):
    """One place where arguments do not fit the tool's schema. Quotes no value."""

    path: str
    """JSON pointer to the place; empty is the arguments as a whole."""
    rule: str
    """The schema's keyword that was not met."""
    message: str
    """A sentence that says what would fit."""


class PillionError(Exception):
    """The root of everything that this package raises of its own."""


class CallFailed(PillionError):
    """A call did not return."""

    kind: FailureKind = FailureKind.INTERNAL
    """Why, as the protocol names it."""

    def __init__(
        self,
        message: str,
        *,
        retryable: bool = False,
        retry_after: float | None = None,
        side_effects: SideEffects = SideEffects.NONE,
        issues: Sequence[ArgumentIssue] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        """A sentence that says what would work."""
        self.retryable = retryable
        """Whether the same request may work later, and cannot do harm."""
        self.retry_after = retry_after
        """In how many seconds to try again; `None` is not known."""
        self.side_effects = side_effects
        """What the call may have done to the world."""
        self.issues = tuple(issues)
        """Where the arguments do not fit; only of `InvalidArguments`."""
        self.execution_id: str | None = None
        """The sidecar's id of the execution; `None` where the sidecar never took the call."""
        self.tool_call_id: str | None = None
        """The caller's id of the call, or the one that was minted for it; `None` as above."""


class CallRefused(CallFailed):
    """The call was refused before its tool ran: nothing had an effect."""


class UnknownTool(CallRefused):
    """There is no such tool for this caller."""

    kind = FailureKind.UNKNOWN_TOOL


class InvalidArguments(CallRefused):
    """The arguments do not fit: `issues` says where."""

    kind = FailureKind.INVALID_ARGUMENTS


class Denied(CallRefused):
    """Policy said no."""

    kind = FailureKind.DENIED


class Overloaded(CallRefused):
    """Too much at once; `retry_after` says when to try again."""

    kind = FailureKind.OVERLOADED


class Unavailable(CallRefused):
    """Nothing could take the call."""

    kind = FailureKind.UNAVAILABLE


class Unreachable(Unavailable):
    """There was no connection to the sidecar, and the call was not sent. Raised on this side."""


class CredentialUnavailable(CallRefused):
    """A credential that the tool needs could not be issued."""

    kind = FailureKind.CREDENTIAL_UNAVAILABLE


class ConsentRequired(CallRefused):
    """A person must authorise a service first."""

    kind = FailureKind.CONSENT_REQUIRED


class ArtifactUnavailable(CallRefused):
    """An artifact that the tool wants is not there."""

    kind = FailureKind.ARTIFACT_UNAVAILABLE


class IdempotencyConflict(CallRefused):
    """The idempotency key was used with other arguments."""

    kind = FailureKind.IDEMPOTENCY_CONFLICT


class TicketInvalid(CallRefused):
    """The ticket is wrong, used, expired or another's."""

    kind = FailureKind.TICKET_INVALID


class Unsupported(CallRefused):
    """This sidecar or door does not do what was asked."""

    kind = FailureKind.UNSUPPORTED


class ToolFailed(CallFailed):
    """The tool raised. The message is the tool's own only where it meant it for the caller."""

    kind = FailureKind.TOOL_FAILED


class CallTimedOut(CallFailed, TimeoutError):
    """The call took too long."""

    kind = FailureKind.TIMEOUT


class IdleTimedOut(CallTimedOut):
    """The tool reported nothing within the idle timeout."""

    kind = FailureKind.IDLE_TIMEOUT


class CallCancelled(CallFailed):
    """The call was cancelled, by its caller or by another with a right to."""

    kind = FailureKind.CANCELLED


class CallLost(CallFailed):
    """Something in between was lost while the call ran."""


class WorkerLost(CallLost):
    """The worker was lost; the tool may be run again."""

    kind = FailureKind.WORKER_LOST


class OutcomeUnknown(CallLost):
    """The worker was lost while an unsafe tool ran: it may or may not have taken effect."""

    kind = FailureKind.OUTCOME_UNKNOWN


class SessionLost(CallLost):
    """The worker that held the session is gone, and what it held with it."""

    kind = FailureKind.SESSION_LOST


class StreamLost(CallLost):
    """The connection to the sidecar was lost while the call ran. Raised on this side.

    `retryable` is true where nothing can have happened: the call was never written, or its tool is known to be READ.
    With an idempotency key a call may be sent again whatever its tool does.
    """

    kind = FailureKind.OUTCOME_UNKNOWN


class Superseded(CallLost):
    """Another follower took a detached call over: it goes on, and tells its end there. Raised on this side.

    Who has the ticket may take it back by `Host.follow`.
    """

    kind = FailureKind.OUTCOME_UNKNOWN


class ResultRefused(CallFailed):
    """The tool returned, and what it returned cannot be passed on."""


class ResultTooLarge(ResultRefused):
    """The result is over a limit."""

    kind = FailureKind.RESULT_TOO_LARGE


class InvalidResult(ResultRefused):
    """The result does not fit the tool's output schema."""

    kind = FailureKind.INVALID_RESULT


class ProtocolBroken(CallFailed):
    """A peer broke the protocol in this call."""

    kind = FailureKind.PROTOCOL


class InternalFailure(CallFailed):
    """A fault of the sidecar, or an outcome that this package does not know."""

    kind = FailureKind.INTERNAL


class ErrorResult(PillionError):
    """The tool returned, and says that what it returned is an error. It is a result like any other: `result`."""

    def __init__(self, result: "Result") -> None:
        super().__init__("The tool returned an error.")
        self.result = result
        """What it returned."""


class CallPaused(PillionError):
    """The tool waits for an answer from outside, and gave up its slot: `paused` says for which."""

    def __init__(self, paused: "Paused") -> None:
        super().__init__(paused.message)
        self.paused = paused
        """What is asked, and the ticket that `Host.resume` takes."""


class ConnectionFailed(PillionError):
    """A request outside a call was not answered by the sidecar."""

    retryable: ClassVar[bool] = True
    status: str | None = None
    """The name of the gRPC status that it ended with; `None` where it had none."""
    details: str = ""
    """What the sidecar said beside it."""
    reason: Failure | None = None
    """What the sidecar says of it beside the status. For this package."""


class NotAuthenticated(ConnectionFailed):
    """The sidecar does not take this caller's or worker's token."""

    retryable = False


class CannotConnect(ConnectionFailed):
    """What this side was given to connect with cannot be used; the text says what would do."""

    retryable = False


class Closed(PillionError):
    """This side was closed already."""


_KINDS: dict[int, type[CallFailed]] = {
    cls.kind: cls
    for cls in (
        UnknownTool,
        InvalidArguments,
        Denied,
        Overloaded,
        Unavailable,
        CredentialUnavailable,
        ConsentRequired,
        ArtifactUnavailable,
        ToolFailed,
        CallTimedOut,
        IdleTimedOut,
        CallCancelled,
        WorkerLost,
        OutcomeUnknown,
        SessionLost,
        IdempotencyConflict,
        TicketInvalid,
        ResultTooLarge,
        InvalidResult,
        Unsupported,
        ProtocolBroken,
        InternalFailure,
    )
}


def failed(failure: Failure) -> CallFailed:
    """The exception of a failure. One of a kind that is not known is an `InternalFailure`."""
    return _KINDS.get(failure.kind, InternalFailure)(
        failure.message or "The call did not return.",
        retryable=failure.retryable,
        retry_after=seconds_of(failure.retry_after) if failure.HasField("retry_after") else None,
        side_effects=side_effects_of(failure.side_effects),
        issues=[ArgumentIssue(issue.path, issue.rule, issue.message) for issue in failure.issues],
    )


def side_effects_of(number: int) -> SideEffects:
    """The side effects of this number; what is not known reads as possible."""
    return SideEffects(number) if number in (1, 3) else SideEffects.POSSIBLE


def copied(error: CallFailed) -> CallFailed:
    """The same exception once more, since one that is raised twice would gather tracebacks."""
    make: Callable[..., CallFailed] = type(error)
    twin = make(
        error.message,
        retryable=error.retryable,
        retry_after=error.retry_after,
        side_effects=error.side_effects,
        issues=error.issues,
    )
    twin.execution_id, twin.tool_call_id = error.execution_id, error.tool_call_id
    return twin
