"""What running tools ask of the artifacts: five verbs, and a token to put large ones with."""

from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, NamedTuple

from sidecar._gen.pillion.v1.context_pb2 import WantedArtifact
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outbound_pb2 import OutboundRequest, Reply, ReplyErrorCode
from sidecar.artifacts.checks import check_input
from sidecar.artifacts.messages import data_message, input_from, meta_message, shape_from
from sidecar.artifacts.port import (
    DEFAULT_PAGE,
    LARGEST_PAGE,
    ArtifactCorrupt,
    ArtifactError,
    ArtifactNotFound,
    ArtifactsFull,
    ArtifactStore,
    ArtifactTooLarge,
    InvalidArtifact,
    Origin,
    UnknownParents,
)
from sidecar.artifacts.tokens import CallTokens
from sidecar.artifacts.transfers import Download, Slot
from sidecar.calls.call import Call
from sidecar.calls.outbound import call_over, refused
from sidecar.calls.ports import Assignment, Responder
from sidecar.calls.stores import StoreUnavailable
from sidecar.scope import Scope

# The largest meta has its texts, its parents and what frames them.
_META_BYTES = 8 * 1024
_RETRY_AFTER = 1.0
_CODES: tuple[tuple[type[Exception], "ReplyErrorCode.ValueType"], ...] = (
    (ArtifactNotFound, ReplyErrorCode.REPLY_ERROR_CODE_ARTIFACT_NOT_FOUND),
    (UnknownParents, ReplyErrorCode.REPLY_ERROR_CODE_ARTIFACT_UNKNOWN_PARENT),
    (InvalidArtifact, ReplyErrorCode.REPLY_ERROR_CODE_ARTIFACT_INVALID),
    (ArtifactTooLarge, ReplyErrorCode.REPLY_ERROR_CODE_ARTIFACT_TOO_LARGE),
    (ArtifactCorrupt, ReplyErrorCode.REPLY_ERROR_CODE_ARTIFACT_INTEGRITY),
    (ArtifactsFull, ReplyErrorCode.REPLY_ERROR_CODE_OVERLOADED),
)


class _Asking(NamedTuple):
    """Who asks."""

    call: Call
    scope: Scope
    assignment: Assignment


_Handler = Callable[[_Asking, OutboundRequest, Reply], Awaitable[None]]


def origin_of(call: Call) -> Origin:
    """Which call makes an artifact."""
    return Origin(call.tool_call_id, call.run_id, call.tool_name, call.execution_id)


class ArtifactRequests:
    """Answers running tools, each within the scope of its own call, which it does not name."""

    def __init__(self, store: ArtifactStore, tokens: CallTokens, *, inline_bytes: int, frame_bytes: int) -> None:
        """Payloads of at most `inline_bytes` ride inside a frame, and no answer is over `frame_bytes`."""
        self._store = store
        self._tokens = tokens
        self._inline_bytes = inline_bytes
        self._most_listed = max(min(LARGEST_PAGE, frame_bytes // _META_BYTES), 1)

    @property
    def responders(self) -> dict[str, Responder]:
        """Who answers what, by the name of the request."""
        handlers: dict[str, _Handler] = {
            "artifact_put": self._put,
            "artifact_head": self._head,
            "artifact_get": self._get,
            "artifact_delete": self._delete,
            "artifact_list": self._list,
            "artifact_upload": self._upload,
        }
        return {name: partial(self._answered, handler) for name, handler in handlers.items()}

    def _answered(self, handler: _Handler, call: Call, request: OutboundRequest) -> Frame | Coroutine[Any, Any, Frame]:
        scope, assignment = call.scope, call.assignment
        if scope is None or assignment is None:
            return call_over(request.request_id)
        return self._answer(handler, _Asking(call, scope, assignment), request)

    async def _answer(self, handler: _Handler, asking: _Asking, request: OutboundRequest) -> Frame:
        frame = Frame()
        frame.reply.request_id = request.request_id
        try:
            await handler(asking, request, frame.reply)
        except StoreUnavailable as error:
            asking.call.count("refused_artifact_requests")
            code = ReplyErrorCode.REPLY_ERROR_CODE_INTERNAL
            return refused(request.request_id, code, str(error), retry_after=_RETRY_AFTER)
        except ArtifactError as error:
            asking.call.count("refused_artifact_requests")
            code = next(code for kind, code in _CODES if isinstance(error, kind))
            later = _RETRY_AFTER if isinstance(error, ArtifactsFull) else None
            return refused(request.request_id, code, str(error), retry_after=later)
        return frame

    async def _put(self, asking: _Asking, request: OutboundRequest, reply: Reply) -> None:
        asked = request.artifact_put
        if not asked.HasField("data"):
            raise InvalidArtifact("There is no payload; send data, with empty content for one of 0 bytes.")
        payload = asked.data.content
        if len(payload) > self._inline_bytes:
            raise ArtifactTooLarge(
                f"The payload is over the {self._inline_bytes:,} bytes that ride inside a frame; ask for "
                "artifact_upload, and send it by that."
            )
        shape = shape_from(asked.data.shape)
        stored = await self._store.put(asking.scope, input_from(asked.input), payload, shape, origin_of(asking.call))
        reply.artifact_stored.meta.CopyFrom(meta_message(stored.meta))

    async def _head(self, asking: _Asking, request: OutboundRequest, reply: Reply) -> None:
        meta = await self._store.head(asking.scope, request.artifact_head.reference)
        reply.artifact_meta.CopyFrom(meta_message(meta))

    async def _get(self, asking: _Asking, request: OutboundRequest, reply: Reply) -> None:
        async with self._store.get(asking.scope, request.artifact_get.reference) as artifact:
            meta = artifact.meta
            got = WantedArtifact(meta=meta_message(meta))
            if meta.size <= self._inline_bytes:
                content = b"".join([chunk async for chunk in artifact.chunks()])
                got.inline.CopyFrom(data_message(meta, content))
            else:
                what = Download(asking.scope, meta.reference)
                got.transfer_token = self._tokens.issue(asking.call, what, asking.assignment)
        reply.artifact.artifact.CopyFrom(got)

    async def _delete(self, asking: _Asking, request: OutboundRequest, reply: Reply) -> None:
        await self._store.delete(asking.scope, request.artifact_delete.reference)
        reply.done.SetInParent()

    async def _list(self, asking: _Asking, request: OutboundRequest, reply: Reply) -> None:
        asked = request.artifact_list
        limit = min(asked.limit if asked.HasField("limit") else DEFAULT_PAGE, self._most_listed)
        page = await self._store.list(asking.scope, asked.cursor if asked.HasField("cursor") else None, limit)
        answer = reply.artifact_page
        answer.artifacts.extend([meta_message(meta) for meta in page.artifacts])
        if page.cursor is not None:
            answer.cursor = page.cursor
        answer.SetInParent()

    async def _upload(self, asking: _Asking, request: OutboundRequest, reply: Reply) -> None:
        asked = request.artifact_upload
        stated = input_from(asked.input)
        check_input(stated)
        slot = Slot(asking.scope, stated, asked.size, shape_from(asked.shape), origin_of(asking.call))
        reply.artifact_upload.transfer_token = self._tokens.issue(asking.call, slot, asking.assignment)
