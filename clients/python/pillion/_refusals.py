"""How a request of a running tool can be refused, a class for each group of codes."""

import enum

from pillion._facts import seconds_of
from pillion._failures import PillionError
from pillion._gen.pillion.v1.outbound_pb2 import ReplyError
from pillion._gen.pillion.v1.outcome_pb2 import Failure, FailureKind
from pillion._json import decode


class ReplyCode(enum.IntEnum):
    """Why a request was not answered. Closed."""

    UNSUPPORTED = 1
    INTERNAL = 2
    INVALID = 3
    DENIED = 4
    OVERLOADED = 5
    CANCELLED = 6
    BUS_CONNECTION = 10
    BUS_NOT_FOUND = 11
    BUS_CONFLICT = 12
    BUS_TIMEOUT = 13
    BUS_RETRYABLE = 14
    BUS_PERMANENT = 15
    BUS_UNSUPPORTED = 16
    BUS_INVALID = 17
    PEER_TIMEOUT = 20
    PEER_ERROR = 21
    CALLER_GONE = 22
    UNSUPPORTED_BY_CALLER = 23
    PEER_MALFORMED = 24
    ARTIFACT_NOT_FOUND = 30
    ARTIFACT_INVALID = 31
    ARTIFACT_UNKNOWN_PARENT = 32
    ARTIFACT_INTEGRITY = 33
    ARTIFACT_TOO_LARGE = 34
    CREDENTIAL_UNCONFIGURED = 40
    CREDENTIAL_REFUSED = 41
    CREDENTIAL_PROVIDER_DOWN = 42
    TEARDOWN_FACT_MISSING = 50
    TEARDOWN_SCOPE_UNSUPPORTED = 51


class RequestRefused(PillionError):
    """A request of a running tool, or one about artifacts, was not answered."""

    def __init__(
        self, code: ReplyCode, message: str, *, retryable: bool = False, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        """Why, as the protocol names it."""
        self.message = message
        """A sentence that says what would work."""
        self.retryable = retryable
        """Whether the same request may work later."""
        self.retry_after = retry_after
        """In how many seconds to try again; `None` is not known."""


class RequestUnsupported(RequestRefused):
    """The sidecar, the door of this call or the backend does not do this."""


class RequestInvalid(RequestRefused):
    """The request was malformed or over a limit."""


class RequestDenied(RequestRefused):
    """Policy or the worker's grant said no."""


class RequestOverloaded(RequestRefused):
    """Too much at once."""


class RequestCancelled(RequestRefused):
    """The call ended or was cancelled, or its stream was lost, before the answer came."""


class RequestTimedOut(RequestRefused, TimeoutError):
    """No answer came in the time that the tool gave it. Raised on this side."""


class BusError(RequestRefused):
    """Key-value, publish/subscribe or jobs said no."""


class BusConflict(BusError):
    """Another revision was there: `actual_revision`, or `None` if nothing was."""

    actual_revision: str | None = None


class PeerRefused(RequestRefused):
    """The caller did not answer."""


class PeerFailed(PeerRefused):
    """The caller answered with a JSON-RPC error of its own: `peer_code`, `message` and `peer_data` are unaltered."""

    peer_code: int = 0
    peer_data: object = None


class ArtifactRefused(RequestRefused):
    """The artifact store said no."""


class ArtifactMissing(ArtifactRefused):
    """There is no such artifact in this call's scope, or not any more."""


class CredentialRefused(RequestRefused):
    """No credential was issued. Escaping from a tool, it ends the call as CREDENTIAL_UNAVAILABLE."""


class CredentialUnconfigured(CredentialRefused):
    """None is configured for the service, or not in this mode."""


class CredentialProviderDown(CredentialRefused):
    """The provider did not answer, or not so that it could be used; the same may work in a moment."""


class TeardownRefused(RequestRefused):
    """The cleanup was not registered."""


_BY_CODE: dict[int, type[RequestRefused]] = {
    ReplyCode.UNSUPPORTED: RequestUnsupported,
    ReplyCode.INVALID: RequestInvalid,
    ReplyCode.DENIED: RequestDenied,
    ReplyCode.OVERLOADED: RequestOverloaded,
    ReplyCode.CANCELLED: RequestCancelled,
    ReplyCode.BUS_CONFLICT: BusConflict,
    ReplyCode.PEER_ERROR: PeerFailed,
    ReplyCode.ARTIFACT_NOT_FOUND: ArtifactMissing,
    ReplyCode.CREDENTIAL_UNCONFIGURED: CredentialUnconfigured,
    ReplyCode.CREDENTIAL_PROVIDER_DOWN: CredentialProviderDown,
}
_BY_TEN = (
    RequestRefused,
    BusError,
    PeerRefused,
    ArtifactRefused,
    CredentialRefused,
    TeardownRefused,
)


_OF_FAILURES: dict[int, ReplyCode] = {
    FailureKind.FAILURE_KIND_INVALID_ARGUMENTS: ReplyCode.ARTIFACT_INVALID,
    FailureKind.FAILURE_KIND_ARTIFACT_UNAVAILABLE: ReplyCode.ARTIFACT_NOT_FOUND,
    FailureKind.FAILURE_KIND_INTERNAL: ReplyCode.ARTIFACT_INTEGRITY,
    FailureKind.FAILURE_KIND_DENIED: ReplyCode.DENIED,
    FailureKind.FAILURE_KIND_OVERLOADED: ReplyCode.OVERLOADED,
    FailureKind.FAILURE_KIND_UNSUPPORTED: ReplyCode.UNSUPPORTED,
}


def of_failure(failure: Failure) -> RequestRefused:
    """The exception of a request about artifacts that failed, which is the one that a running tool would get."""
    error = ReplyError(message=failure.message, retryable=failure.retryable)
    error.code = _OF_FAILURES.get(failure.kind, ReplyCode.INTERNAL).value  # type: ignore[assignment]  # the same numbers
    if failure.HasField("retry_after"):
        error.retry_after.CopyFrom(failure.retry_after)
    return refused(error)


def refused(error: ReplyError) -> RequestRefused:
    """The exception of an answer that is an error. A code that is not known reads as INTERNAL."""
    number = error.code
    code = ReplyCode(number) if number in ReplyCode._value2member_map_ else ReplyCode.INTERNAL
    made = _BY_CODE.get(code, _BY_TEN[code // 10])(
        code,
        error.message or "The request was not answered.",
        retryable=error.retryable,
        retry_after=seconds_of(error.retry_after) if error.HasField("retry_after") else None,
    )
    if isinstance(made, BusConflict) and error.HasField("actual_revision"):
        made.actual_revision = error.actual_revision
    if isinstance(made, PeerFailed):
        made.peer_code = error.peer.code
        made.message = error.peer.message
        made.args = (error.peer.message,)
        if error.peer.HasField("data"):
            made.peer_data = decode(error.peer.data)
    return made
