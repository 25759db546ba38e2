"""The bulk transfers of workers, over gRPC: by token alone."""

from contextlib import AsyncExitStack

import grpc
import grpc.aio

from sidecar._gen.pillion.v1.artifacts_pb2 import DownloadRequest, UploadHeader, UploadResponse
from sidecar.artifacts import ArtifactStore, Upload, UploadNotFound
from sidecar.artifacts.tokens import abandon
from sidecar.artifacts.transfers import Direction, Download, Slot, Transfer, TransferRefused, Transfers
from sidecar.doors.access import Context
from sidecar.doors.artifacts import SERVICE
from sidecar.doors.bulk import Bulk, receive, send

INSTANCE_SECRET = "pillion-instance-secret"  # noqa: S105  # the name of the metadata
"""Metadata: the re-attach secret of the instance that transfers, which proves that it is the call's own."""


class TransferDoor:
    """Handlers of `Upload` and `Download` for workers."""

    def __init__(self, store: ArtifactStore, transfers: Transfers, bulk: Bulk) -> None:
        self._store = store
        self._transfers = transfers
        self._bulk = bulk

    def handler(self) -> grpc.GenericRpcHandler:
        """The handler to add to a server."""
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Upload": grpc.stream_unary_rpc_method_handler(self._upload),
                "Download": grpc.unary_stream_rpc_method_handler(self._download, DownloadRequest.FromString),
            },
        )

    async def _upload(self, _requests: object, context: Context) -> bytes:
        answer = UploadResponse()
        async with self._bulk.transferring(context, reads=True) as stream, AsyncExitStack() as held:
            transfer: Transfer | None = None

            async def opened(header: UploadHeader) -> Upload:
                nonlocal transfer
                claim = self._transfers.claim(header.transfer_token, Direction.UPLOAD, _secret(context))
                transfer = await held.enter_async_context(claim)
                return await self._open(transfer, header)

            answer = await receive(stream, opened)
            if transfer is not None:
                transfer.is_used_up = answer.HasField("meta")
        return answer.SerializeToString()

    async def _open(self, transfer: Transfer, header: UploadHeader) -> Upload:
        slot = transfer.what
        if not isinstance(slot, Slot):
            raise TransferRefused
        if header.HasField("upload_id"):
            if header.upload_id != transfer.upload_id:
                raise UploadNotFound
            return await self._store.resume(slot.scope, header.upload_id)
        if transfer.upload_id is not None:
            await abandon(self._store, slot.scope, transfer.upload_id)
        upload = await self._store.begin(slot.scope, slot.stated, slot.size, slot.shape, slot.origin)
        transfer.upload_id = upload.id
        return upload

    async def _download(self, request: DownloadRequest, context: Context) -> None:
        async with (
            self._bulk.transferring(context) as stream,
            self._transfers.claim(request.transfer_token, Direction.DOWNLOAD, _secret(context)) as transfer,
        ):
            what = transfer.what
            if not isinstance(what, Download) or request.reference not in ("", what.reference):
                raise TransferRefused
            async with self._store.get(what.scope, what.reference) as artifact:
                await send(stream, artifact, request)
            transfer.is_used_up = True


def _secret(context: Context) -> str:
    """What the worker says that its secret is; nobody's if it does not say."""
    shown = [value for key, value in context.invocation_metadata() or () if key == INSTANCE_SECRET]
    return shown[0] if len(shown) == 1 and isinstance(shown[0], str) else ""
