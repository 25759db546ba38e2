"""What a running tool asks of the sidecar, and how it is answered."""

from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outbound_pb2 import OutboundRequest, ReplyErrorCode
from sidecar._gen.pillion.v1.worker_pb2 import RegisterTeardown

_HARMLESS = frozenset(("artifact_head", "artifact_get", "credential_get"))


def harmless(request: OutboundRequest) -> bool:
    """Whether a lost tool that asked this may still be run again: it only looked."""
    return request.WhichOneof("request") in _HARMLESS


def answer(request: OutboundRequest) -> Frame:
    """The reply to a request."""
    asked = request.WhichOneof("request") or "this kind of request"
    return refused(
        request.request_id,
        ReplyErrorCode.REPLY_ERROR_CODE_UNSUPPORTED,
        f"This sidecar does not answer {asked}; the context says what it does.",
    )


def answer_teardown(registration: RegisterTeardown) -> Frame:
    """The reply to a registration."""
    return refused(
        registration.request_id,
        ReplyErrorCode.REPLY_ERROR_CODE_TEARDOWN_SCOPE_UNSUPPORTED,
        "No teardown scope is honoured in this call; the context lists those that are.",
    )


def refused(request_id: int, code: "ReplyErrorCode.ValueType", message: str) -> Frame:
    """A reply that refuses."""
    frame = Frame()
    frame.reply.request_id = request_id
    frame.reply.error.code = code
    frame.reply.error.message = message
    return frame
