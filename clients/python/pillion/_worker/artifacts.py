"""The claim-check store, as a tool has it."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

from pillion import _json, _refusals
from pillion._artifacts import ArtifactMeta, ArtifactShape, read_meta
from pillion._facts import set_seconds
from pillion._gen.pillion.v1 import artifacts_pb2, context_pb2
from pillion._gen.pillion.v1.outbound_pb2 import (
    ArtifactDelete,
    ArtifactGet,
    ArtifactHead,
    ArtifactList,
    ArtifactPut,
    OutboundRequest,
)
from pillion._worker.port import Port


class Artifacts:
    """The artifacts of this call's scope. A reference that is missing, expired or another's reads as missing."""

    def __init__(self, port: Port) -> None:
        self._port = port

    async def put(
        self,
        data: Any,
        *,
        kind: str,
        media_type: str,
        label: str | None = None,
        digest: bool = False,
        expires_in: float | None = None,
        parents: Sequence[str] = (),
    ) -> ArtifactMeta:
        """Stores bytes, a text, or any other value as JSON; it is got back in the same shape.

        :raises ArtifactRefused: if it is not stored.
        :raises JsonRefused: if the value has no JSON text of the same meaning.
        """
        given = artifacts_pb2.ArtifactInput(kind=kind, media_type=media_type, digest=digest, parents=parents)
        if label is not None:
            given.label = label
        if expires_in is not None:
            set_seconds(given.expires_in, expires_in)
        if isinstance(data, bytes | bytearray | memoryview):
            shape, content = ArtifactShape.BYTES, bytes(data)
        elif isinstance(data, str):
            shape, content = ArtifactShape.TEXT, data.encode()
        else:
            shape, content = ArtifactShape.JSON, _json.encode(data)
        payload = artifacts_pb2.ArtifactData(content=content)
        payload.shape = shape.value  # type: ignore[assignment]  # the same numbers
        reply = await self._port.ask(OutboundRequest(artifact_put=ArtifactPut(input=given, data=payload)))
        return read_meta(reply.artifact_stored.meta)

    async def head(self, reference: str) -> ArtifactMeta | None:
        """What is known of an artifact; `None` if there is none.

        :raises RequestRefused: as for every request.
        """
        try:
            reply = await self._port.ask(OutboundRequest(artifact_head=ArtifactHead(reference=reference)))
        except _refusals.ArtifactMissing:
            return None
        return read_meta(reply.artifact_meta)

    async def get(self, reference: str) -> tuple[ArtifactMeta, Any] | None:
        """What is known of an artifact, and its payload; `None` if there is none.

        :raises RequestUnsupported: if the payload is too large to ride inside a frame.
        :raises RequestRefused: as for every request.
        """
        try:
            reply = await self._port.ask(OutboundRequest(artifact_get=ArtifactGet(reference=reference)))
        except _refusals.ArtifactMissing:
            return None
        return read_meta(reply.artifact.artifact.meta), read_payload(reply.artifact.artifact)

    async def delete(self, reference: str) -> None:
        """Removes an artifact. That it is not there is agreed to.

        :raises RequestRefused: as for every request.
        """
        await self._port.ask(OutboundRequest(artifact_delete=ArtifactDelete(reference=reference)))

    async def list(self) -> AsyncIterator[ArtifactMeta]:
        """The artifacts, newest first.

        :raises RequestRefused: as for every request.
        """
        cursor: str | None = None
        while True:
            reply = await self._port.ask(OutboundRequest(artifact_list=ArtifactList(cursor=cursor)))
            for meta in reply.artifact_page.artifacts:
                yield read_meta(meta)
            if not reply.artifact_page.HasField("cursor"):
                return
            cursor = reply.artifact_page.cursor


def read_payload(artifact: context_pb2.WantedArtifact) -> Any:
    """The payload, in the shape that it was put in.

    :raises RequestUnsupported: if it is too large to ride inside a frame.
    """
    if artifact.WhichOneof("payload") != "inline":
        raise _refusals.RequestUnsupported(
            _refusals.ReplyCode.UNSUPPORTED, "This SDK does not read artifacts that are too large for a frame yet."
        )
    data = artifact.inline
    if data.shape == artifacts_pb2.ArtifactShape.ARTIFACT_SHAPE_TEXT:
        return data.content.decode()
    if data.shape == artifacts_pb2.ArtifactShape.ARTIFACT_SHAPE_JSON:
        return _json.decode(data.content)
    return data.content
