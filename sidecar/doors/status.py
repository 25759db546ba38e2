"""Failures and endings as gRPC statuses."""

from typing import Any, NoReturn

import grpc
import grpc.aio
from google.rpc.status_pb2 import Status

from sidecar._gen.pillion.v1.outcome_pb2 import Failure, FailureKind
from sidecar.calls.outcome import cut
from sidecar.wire.ending import EndingReason

_Code = grpc.StatusCode

CODES = {
    FailureKind.FAILURE_KIND_UNKNOWN_TOOL: _Code.NOT_FOUND,
    FailureKind.FAILURE_KIND_INVALID_ARGUMENTS: _Code.INVALID_ARGUMENT,
    FailureKind.FAILURE_KIND_DENIED: _Code.PERMISSION_DENIED,
    FailureKind.FAILURE_KIND_OVERLOADED: _Code.RESOURCE_EXHAUSTED,
    FailureKind.FAILURE_KIND_UNAVAILABLE: _Code.UNAVAILABLE,
    FailureKind.FAILURE_KIND_CREDENTIAL_UNAVAILABLE: _Code.FAILED_PRECONDITION,
    FailureKind.FAILURE_KIND_CONSENT_REQUIRED: _Code.FAILED_PRECONDITION,
    FailureKind.FAILURE_KIND_ARTIFACT_UNAVAILABLE: _Code.FAILED_PRECONDITION,
    FailureKind.FAILURE_KIND_TOOL_FAILED: _Code.UNKNOWN,
    FailureKind.FAILURE_KIND_TIMEOUT: _Code.DEADLINE_EXCEEDED,
    FailureKind.FAILURE_KIND_IDLE_TIMEOUT: _Code.DEADLINE_EXCEEDED,
    FailureKind.FAILURE_KIND_CANCELLED: _Code.CANCELLED,
    # Not UNAVAILABLE, which clients retry by themselves: whether to run it again is the caller's decision.
    FailureKind.FAILURE_KIND_WORKER_LOST: _Code.ABORTED,
    FailureKind.FAILURE_KIND_OUTCOME_UNKNOWN: _Code.DATA_LOSS,
    FailureKind.FAILURE_KIND_SESSION_LOST: _Code.ABORTED,
    FailureKind.FAILURE_KIND_IDEMPOTENCY_CONFLICT: _Code.ALREADY_EXISTS,
    FailureKind.FAILURE_KIND_TICKET_INVALID: _Code.NOT_FOUND,
    FailureKind.FAILURE_KIND_RESULT_TOO_LARGE: _Code.OUT_OF_RANGE,
    FailureKind.FAILURE_KIND_INVALID_RESULT: _Code.INTERNAL,
    FailureKind.FAILURE_KIND_UNSUPPORTED: _Code.UNIMPLEMENTED,
    FailureKind.FAILURE_KIND_PROTOCOL: _Code.INTERNAL,
    FailureKind.FAILURE_KIND_INTERNAL: _Code.INTERNAL,
}
"""The status of each kind, for unary doors. The kind itself is in the detail."""

ENDING_CODES = {
    EndingReason.UNAUTHENTICATED: _Code.UNAUTHENTICATED,
    EndingReason.PROTOCOL: _Code.FAILED_PRECONDITION,
    EndingReason.QUARANTINED: _Code.ABORTED,
    EndingReason.STALLED: _Code.ABORTED,
    EndingReason.FULL: _Code.RESOURCE_EXHAUSTED,
}
"""The status of a stream that the sidecar ended."""

# From 8 KiB on clients refuse trailers now and then, and the detail rides in them beside the message, which is there a
# second time, and a third with up to three bytes for one.
_DETAIL_BYTES = 3_072
_MESSAGE_BYTES = 1_024
_DETAILS_KEY = "grpc-status-details-bin"


async def refuse(context: "grpc.aio.ServicerContext[Any, Any]", reason: Failure) -> NoReturn:
    """Ends a unary RPC whose call failed: code, message, and the failure itself as detail (`google.rpc.Status`)."""
    await context.abort(*_status(reason))


def tell(context: "grpc.aio.ServicerContext[Any, Any]", reason: Failure) -> None:
    """The same for an RPC that has answered something already; its handler must return now."""
    code, message, trailers = _status(reason)
    context.set_code(code)
    context.set_details(message)
    context.set_trailing_metadata(trailers)


def _status(reason: Failure) -> tuple[grpc.StatusCode, str, tuple[tuple[str, bytes], ...]]:
    detail = Failure()
    detail.CopyFrom(reason)
    detail.message = cut(detail.message, _MESSAGE_BYTES)
    while detail.issues and detail.ByteSize() > _DETAIL_BYTES:
        del detail.issues[-1]
    code = CODES.get(reason.kind, _Code.INTERNAL)
    status = Status(code=code.value[0], message=detail.message)
    status.details.add().Pack(detail)
    return code, detail.message, ((_DETAILS_KEY, status.SerializeToString()),)
