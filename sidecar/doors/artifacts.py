"""The artifact store for callers, over gRPC."""

import functools
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import grpc
import grpc.aio

from sidecar._gen.pillion.v1.artifacts_pb2 import (
    DeleteRequest,
    DeleteResponse,
    DownloadRequest,
    GetRequest,
    GetResponse,
    HeadRequest,
    HeadResponse,
    ListRequest,
    ListResponse,
    PutRequest,
    PutResponse,
    ScopeFacts,
    UploadHeader,
    UploadResponse,
)
from sidecar.artifacts import ArtifactError, ArtifactStore, InvalidArtifact, Upload
from sidecar.artifacts.messages import data_message, eviction_message, input_from, meta_message, shape_from
from sidecar.artifacts.port import DEFAULT_PAGE, LARGEST_PAGE
from sidecar.calls.outcome import Refusal
from sidecar.calls.stores import StoreUnavailable
from sidecar.doors.access import Context, check_admitted
from sidecar.doors.artifact_messages import failure_of, scope_from
from sidecar.doors.bulk import Bulk, receive, send
from sidecar.doors.execute import too_large
from sidecar.doors.status import refuse
from sidecar.policy import Policy
from sidecar.scope import Principal, Scope
from sidecar.wire.limits import WireLimits

SERVICE = "pillion.v1.ArtifactService"

Q = TypeVar("Q")
A = TypeVar("A")


class ArtifactDoor:
    """Handlers of `ArtifactService`. Thin: the rules are the store's, and policy admits whom a request is for."""

    def __init__(
        self,
        store: ArtifactStore,
        policy: Policy,
        wire_limits: WireLimits,
        bulk: Bulk,
        principal_of: Callable[[Context], Principal],
    ) -> None:
        self._store = store
        self._policy = policy
        self._wire_limits = wire_limits
        self._bulk = bulk
        self._principal_of = principal_of

    def handler(self) -> grpc.GenericRpcHandler:
        """The handler to add to a server."""
        unary = grpc.unary_unary_rpc_method_handler
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Put": unary(_refusing(self._put), PutRequest.FromString, PutResponse.SerializeToString),
                "Head": unary(_refusing(self._head), HeadRequest.FromString, HeadResponse.SerializeToString),
                "Get": unary(_refusing(self._get), GetRequest.FromString, GetResponse.SerializeToString),
                "Delete": unary(_refusing(self._delete), DeleteRequest.FromString, DeleteResponse.SerializeToString),
                "List": unary(_refusing(self._list), ListRequest.FromString, ListResponse.SerializeToString),
                # Bytes both ways: chunks are read and written one by one.
                "Upload": grpc.stream_unary_rpc_method_handler(self._upload),
                "Download": grpc.unary_stream_rpc_method_handler(self._download, DownloadRequest.FromString),
            },
        )

    async def _put(self, request: PutRequest, context: Context) -> PutResponse:
        scope = self._admitted(request.scope, context)
        if not request.HasField("data"):
            raise InvalidArtifact("There is no payload; send data, with empty content for one of 0 bytes.")
        size, largest = len(request.data.content), self._wire_limits.max_frame_bytes
        if size > largest:
            raise too_large(size, largest)
        stored = await self._store.put(
            scope, input_from(request.input), request.data.content, shape_from(request.data.shape)
        )
        return PutResponse(meta=meta_message(stored.meta), evicted=[eviction_message(each) for each in stored.evicted])

    async def _head(self, request: HeadRequest, context: Context) -> HeadResponse:
        scope = self._admitted(request.scope, context)
        return HeadResponse(meta=meta_message(await self._store.head(scope, request.reference)))

    async def _get(self, request: GetRequest, context: Context) -> GetResponse:
        scope = self._admitted(request.scope, context)
        async with self._store.get(scope, request.reference) as artifact:
            meta = artifact.meta
            if meta.size > self._wire_limits.max_frame_bytes:
                raise InvalidArtifact(f"The artifact has {meta.size:,} bytes, which Get does not answer; use Download.")
            content = b"".join([chunk async for chunk in artifact.chunks()])
        return GetResponse(meta=meta_message(meta), data=data_message(meta, content))

    async def _delete(self, request: DeleteRequest, context: Context) -> DeleteResponse:
        await self._store.delete(self._admitted(request.scope, context), request.reference)
        return DeleteResponse()

    async def _list(self, request: ListRequest, context: Context) -> ListResponse:
        scope = self._admitted(request.scope, context)
        limit = min(request.limit, LARGEST_PAGE) if request.HasField("limit") else DEFAULT_PAGE
        page = await self._store.list(scope, request.cursor if request.HasField("cursor") else None, limit)
        return ListResponse(artifacts=[meta_message(meta) for meta in page.artifacts], cursor=page.cursor)

    async def _upload(self, _requests: object, context: Context) -> bytes:
        async def opened(header: UploadHeader) -> Upload:
            scope = self._admitted(header.scope, context)
            if header.HasField("upload_id"):
                return await self._store.resume(scope, header.upload_id)
            return await self._store.begin(scope, input_from(header.input), header.size, shape_from(header.shape))

        answer = UploadResponse()
        async with self._bulk.transferring(context, reads=True) as stream:
            answer = await receive(stream, opened)
        return answer.SerializeToString()

    async def _download(self, request: DownloadRequest, context: Context) -> None:
        async with self._bulk.transferring(context) as stream:
            scope = self._admitted(request.scope, context)
            async with self._store.get(scope, request.reference) as artifact:
                await send(stream, artifact, request)

    def _admitted(self, facts: ScopeFacts, context: Context) -> Scope:
        """The scope of a request.

        :raises Refusal: if policy does not let this caller act for it.
        """
        principal = self._principal_of(context)
        scope = scope_from(facts, principal)
        check_admitted(self._policy, principal, scope)
        return scope


def _refusing(behaviour: Callable[[Q, Context], Awaitable[A]]) -> Callable[[Q, Any], Awaitable[A]]:
    """A handler whose refusals become the RPC's status."""

    @functools.wraps(behaviour)
    async def handle(request: Q, context: Context) -> A:
        try:
            return await behaviour(request, context)
        except (ArtifactError, StoreUnavailable, Refusal) as error:
            await refuse(context, failure_of(error))

    return handle
