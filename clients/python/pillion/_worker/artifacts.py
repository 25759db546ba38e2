"""The artifact store of a running tool: requests inside the call, and transfers by their tokens."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

from pillion import _refusals
from pillion._artifacts import read_meta
from pillion._gen.pillion.v1 import artifacts_pb2, context_pb2
from pillion._gen.pillion.v1.outbound_pb2 import (
    ArtifactDelete,
    ArtifactGet,
    ArtifactHead,
    ArtifactList,
    ArtifactPut,
    ArtifactUpload,
    OutboundRequest,
)
from pillion._payloads import Payload
from pillion._verbs import OpenArtifact, of_bytes, of_download
from pillion._wire.bulk import Opened
from pillion._worker.port import Port


class CallArtifacts:
    """The backend of `Artifacts` within one call."""

    def __init__(self, port: Port) -> None:
        self._port = port

    @property
    def inline_bytes(self) -> int:
        """The largest payload that rides inside a frame."""
        return self._port.inline_bytes

    async def put(
        self, stated: artifacts_pb2.ArtifactInput, data: artifacts_pb2.ArtifactData
    ) -> artifacts_pb2.ArtifactMeta:
        """Stores a small payload."""
        reply = await self._port.ask(OutboundRequest(artifact_put=ArtifactPut(input=stated, data=data)))
        return reply.artifact_stored.meta

    async def uploading(
        self, stated: artifacts_pb2.ArtifactInput, payload: Payload
    ) -> tuple[artifacts_pb2.UploadHeader, Opened]:
        """Asks for a token."""
        asked = ArtifactUpload(input=stated, size=payload.size)
        asked.shape = payload.shape.value  # type: ignore[assignment]  # the same numbers
        reply = await self._port.ask(OutboundRequest(artifact_upload=asked))
        header = artifacts_pb2.UploadHeader(
            transfer_token=reply.artifact_upload.transfer_token, input=stated, shape=asked.shape, size=payload.size
        )
        return header, self._port.open_upload

    async def head(self, reference: str) -> artifacts_pb2.ArtifactMeta:
        """The meta of an artifact."""
        reply = await self._port.ask(OutboundRequest(artifact_head=ArtifactHead(reference=reference)))
        return reply.artifact_meta

    async def delete(self, reference: str) -> None:
        """Removes an artifact."""
        await self._port.ask(OutboundRequest(artifact_delete=ArtifactDelete(reference=reference)))

    async def page(self, cursor: str | None) -> tuple[Sequence[artifacts_pb2.ArtifactMeta], str | None]:
        """A part of the list."""
        page = (await self._port.ask(OutboundRequest(artifact_list=ArtifactList(cursor=cursor)))).artifact_page
        return page.artifacts, page.cursor if page.HasField("cursor") else None

    @asynccontextmanager
    async def find(self, reference: str, offset: int) -> AsyncIterator[OpenArtifact]:
        """An artifact to be read."""
        reply = await self._port.ask(OutboundRequest(artifact_get=ArtifactGet(reference=reference)))
        artifact = opened(self._port, reply.artifact.artifact, offset)
        try:
            yield artifact
        finally:
            await artifact.aclose()


def opened(port: Port, found: context_pb2.WantedArtifact, offset: int = 0) -> OpenArtifact:
    """An artifact that the sidecar has handed to this call, to be closed by who reads it.

    :raises ArtifactRefused: if the offset is beyond its end.
    """
    meta = read_meta(found.meta)
    if not 0 <= offset <= meta.size:
        raise _refusals.ArtifactRefused(
            _refusals.ReplyCode.ARTIFACT_INVALID, f"The offset is beyond the artifact's end, at {meta.size:,} bytes."
        )
    if found.WhichOneof("payload") == "inline":
        return of_bytes(meta, found.inline.content[offset:])
    request = artifacts_pb2.DownloadRequest(transfer_token=found.transfer_token, offset=offset)
    return of_download(meta, partial(port.open_download, request))
