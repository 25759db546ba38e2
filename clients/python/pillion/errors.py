"""Everything that can be raised, on one page.

::

    PillionError
    ├── CallFailed                   a call did not return
    │   ├── CallRefused              before its tool ran: nothing had an effect
    │   │   ├── UnknownTool              UNKNOWN_TOOL
    │   │   ├── InvalidArguments         INVALID_ARGUMENTS, with issues
    │   │   ├── Denied                   DENIED
    │   │   ├── Overloaded               OVERLOADED, with retry_after
    │   │   ├── Unavailable              UNAVAILABLE
    │   │   │   └── Unreachable          no connection; raised on this side
    │   │   ├── CredentialUnavailable    CREDENTIAL_UNAVAILABLE
    │   │   ├── ConsentRequired          CONSENT_REQUIRED
    │   │   ├── ArtifactUnavailable      ARTIFACT_UNAVAILABLE
    │   │   ├── IdempotencyConflict      IDEMPOTENCY_CONFLICT
    │   │   ├── TicketInvalid            TICKET_INVALID
    │   │   └── Unsupported              UNSUPPORTED
    │   ├── ToolFailed                   TOOL_FAILED
    │   ├── CallTimedOut                 TIMEOUT; also a TimeoutError
    │   │   └── IdleTimedOut             IDLE_TIMEOUT
    │   ├── CallCancelled                CANCELLED
    │   ├── CallLost                 something in between was lost
    │   │   ├── WorkerLost               WORKER_LOST
    │   │   ├── OutcomeUnknown           OUTCOME_UNKNOWN
    │   │   ├── SessionLost              SESSION_LOST
    │   │   ├── StreamLost               the connection was lost; raised on this side
    │   │   └── Superseded               another follows the detached call; raised on this side
    │   ├── ResultRefused            the tool returned, and it cannot be passed on
    │   │   ├── ResultTooLarge           RESULT_TOO_LARGE
    │   │   └── InvalidResult            INVALID_RESULT
    │   ├── ProtocolBroken               PROTOCOL
    │   └── InternalFailure              INTERNAL, and what this package does not know
    ├── ErrorResult                  the tool returned, and says that it is an error
    ├── CallPaused                   the tool waits for an answer from outside
    ├── ConnectionFailed             a request outside a call was not answered
    │   ├── NotAuthenticated             the token or the certificate is not taken
    │   └── CannotConnect                this side's token or certificates cannot be used
    ├── Closed                       this side was closed already
    ├── JsonRefused                  no JSON of the same meaning; also a ValueError
    ├── WorkerRefused                the sidecar does not take a worker
    ├── ToolError                    raised by a tool: its text goes to the caller
    ├── Pause                        raised by a tool: its call waits for an answer from outside
    └── RequestRefused               a request of a running tool was not answered
        ├── RequestUnsupported, RequestInvalid, RequestDenied, RequestOverloaded, RequestCancelled
        ├── RequestTimedOut              in the tool's own time; also a TimeoutError
        ├── BusError                 key-value, publish/subscribe, jobs
        │   └── BusConflict              with actual_revision
        ├── PeerRefused              the caller did not answer
        │   └── PeerFailed               with the caller's own code and data
        ├── ArtifactRefused
        │   └── ArtifactMissing
        ├── CredentialRefused
        │   ├── CredentialUnconfigured   none for this service, or not in this mode
        │   └── CredentialProviderDown   try again in a moment
        └── TeardownRefused          the call has no such scope: its door, or its caller's facts

A `CallFailed` has `kind`, `message`, `retryable`, `retry_after`, `side_effects`, `issues`, `execution_id` and
`tool_call_id`; a `RequestRefused` has `code`, `message`, `retryable` and `retry_after`. Beside the tree stand
`ToolRefused`, a TypeError of a function that cannot be a tool, and `Cancelled`, an `asyncio.CancelledError` in a tool
whose call was asked to stop.
"""

from pillion._failures import (
    ArgumentIssue,
    ArtifactUnavailable,
    CallCancelled,
    CallFailed,
    CallLost,
    CallPaused,
    CallRefused,
    CallTimedOut,
    CannotConnect,
    Closed,
    ConnectionFailed,
    ConsentRequired,
    CredentialUnavailable,
    Denied,
    ErrorResult,
    FailureKind,
    IdempotencyConflict,
    IdleTimedOut,
    InternalFailure,
    InvalidArguments,
    InvalidResult,
    NotAuthenticated,
    OutcomeUnknown,
    Overloaded,
    PillionError,
    ProtocolBroken,
    ResultRefused,
    ResultTooLarge,
    SessionLost,
    StreamLost,
    Superseded,
    TicketInvalid,
    ToolFailed,
    Unavailable,
    UnknownTool,
    Unreachable,
    Unsupported,
    WorkerLost,
)
from pillion._json import JsonRefused
from pillion._refusals import (
    ArtifactMissing,
    ArtifactRefused,
    BusConflict,
    BusError,
    CredentialProviderDown,
    CredentialRefused,
    CredentialUnconfigured,
    PeerFailed,
    PeerRefused,
    ReplyCode,
    RequestCancelled,
    RequestDenied,
    RequestInvalid,
    RequestOverloaded,
    RequestRefused,
    RequestTimedOut,
    RequestUnsupported,
    TeardownRefused,
)
from pillion._worker.pause import Pause
from pillion._worker.schema import ToolRefused
from pillion._worker.signals import Cancelled, ToolError
from pillion._worker.worker import WorkerRefused

__all__ = (
    "ArgumentIssue",
    "ArtifactMissing",
    "ArtifactRefused",
    "ArtifactUnavailable",
    "BusConflict",
    "BusError",
    "CallCancelled",
    "CallFailed",
    "CallLost",
    "CallPaused",
    "CallRefused",
    "CallTimedOut",
    "Cancelled",
    "CannotConnect",
    "Closed",
    "ConnectionFailed",
    "ConsentRequired",
    "CredentialProviderDown",
    "CredentialRefused",
    "CredentialUnavailable",
    "CredentialUnconfigured",
    "Denied",
    "ErrorResult",
    "FailureKind",
    "IdempotencyConflict",
    "IdleTimedOut",
    "InternalFailure",
    "InvalidArguments",
    "InvalidResult",
    "JsonRefused",
    "NotAuthenticated",
    "OutcomeUnknown",
    "Overloaded",
    "Pause",
    "PeerFailed",
    "PeerRefused",
    "PillionError",
    "ProtocolBroken",
    "ReplyCode",
    "RequestCancelled",
    "RequestDenied",
    "RequestInvalid",
    "RequestOverloaded",
    "RequestRefused",
    "RequestTimedOut",
    "RequestUnsupported",
    "ResultRefused",
    "ResultTooLarge",
    "SessionLost",
    "StreamLost",
    "Superseded",
    "TeardownRefused",
    "TicketInvalid",
    "ToolError",
    "ToolFailed",
    "ToolRefused",
    "Unavailable",
    "UnknownTool",
    "Unreachable",
    "Unsupported",
    "WorkerLost",
    "WorkerRefused",
)
