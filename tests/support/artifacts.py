"""The artifact service, as a peer with bare stubs uses it."""

from collections.abc import AsyncIterator, Iterable
from types import TracebackType
from typing import Any, Self

import grpc.aio

from sidecar._gen.pillion.v1 import artifacts_pb2 as messages
from sidecar._gen.pillion.v1.artifacts_pb2_grpc import ArtifactServiceStub
from sidecar._gen.pillion.v1.outbound_pb2 import ArtifactPut, ArtifactUpload, OutboundRequest
from sidecar._gen.pillion.v1.outcome_pb2 import Failure
from tests.faults.doors import detail_of
from tests.support.links import channel_to

MIB = 1024 * 1024
NOTE = messages.ArtifactInput(kind="note", media_type="text/plain")
ANN = messages.ScopeFacts(tenant="acme", principal="ann", conversation_id="1")
BOB = messages.ScopeFacts(tenant="acme", principal="bob", conversation_id="1")


class Artifacts:
    """One channel to a listener. `async with` closes it."""

    def __init__(self, target: str) -> None:
        self.channel = channel_to(target)
        self.stub: Any = ArtifactServiceStub(self.channel)
        """The generated stub. It has no types for asynchronous channels, so it has none here."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.channel.close()

    async def put(self, scope: messages.ScopeFacts, content: bytes, **rest: Any) -> messages.PutResponse:
        """Puts a small one."""
        data = messages.ArtifactData(shape=rest.pop("shape", messages.ARTIFACT_SHAPE_BYTES), content=content)
        answer: messages.PutResponse = await self.stub.Put(
            messages.PutRequest(scope=scope, input=stated(**rest), data=data)
        )
        return answer

    async def get(self, scope: messages.ScopeFacts, reference: str) -> messages.GetResponse:
        """Reads a small one."""
        answer: messages.GetResponse = await self.stub.Get(messages.GetRequest(scope=scope, reference=reference))
        return answer

    async def references(self, scope: messages.ScopeFacts) -> list[str]:
        """The newest of the scope."""
        answer = await self.stub.List(messages.ListRequest(scope=scope))
        return [meta.reference for meta in answer.artifacts]

    async def upload(
        self, header: messages.UploadHeader, chunks: Iterable[bytes] = (), secret: str | None = None
    ) -> messages.UploadResponse:
        """Uploads the chunks, and ends the stream."""
        answer: messages.UploadResponse = await self.stub.Upload(_parts(header, chunks), metadata=_shown(secret))
        return answer

    async def download(
        self, request: messages.DownloadRequest, secret: str | None = None
    ) -> tuple[messages.ArtifactMeta, bytes]:
        """Reads one of any size."""
        meta = messages.ArtifactMeta()
        content = bytearray()
        async for part in self.stub.Download(request, metadata=_shown(secret)):
            if part.WhichOneof("part") == "meta":
                assert not content
                meta.CopyFrom(part.meta)
            else:
                assert meta.reference
                assert len(part.chunk) <= 256 * 1024
                content += part.chunk
        return meta, bytes(content)


def stated(**rest: Any) -> messages.ArtifactInput:
    """What is stated about a note, and more."""
    made = messages.ArtifactInput()
    made.CopyFrom(NOTE)
    made.MergeFrom(messages.ArtifactInput(**rest))
    return made


async def failure_of(asked: Any) -> Failure:
    """How a request is refused, which it has to be."""
    try:
        await asked
    except grpc.aio.AioRpcError as error:
        return detail_of(error)
    raise AssertionError("it was answered")


def put_request(content: bytes, number: int = 1, **rest: Any) -> OutboundRequest:
    """What a tool asks to have a small one put."""
    data = messages.ArtifactData(shape=rest.pop("shape", messages.ARTIFACT_SHAPE_BYTES), content=content)
    return OutboundRequest(request_id=number, artifact_put=ArtifactPut(input=stated(**rest), data=data))


def upload_request(size: int, number: int = 1, **rest: Any) -> OutboundRequest:
    """What a tool asks to have a token for one of this size."""
    shape = rest.pop("shape", messages.ARTIFACT_SHAPE_BYTES)
    return OutboundRequest(
        request_id=number, artifact_upload=ArtifactUpload(input=stated(**rest), shape=shape, size=size)
    )


async def _parts(header: messages.UploadHeader, chunks: Iterable[bytes]) -> AsyncIterator[messages.UploadRequest]:
    yield messages.UploadRequest(header=header)
    for chunk in chunks:
        yield messages.UploadRequest(chunk=chunk)


def _shown(secret: str | None) -> tuple[tuple[str, str], ...]:
    return () if secret is None else (("pillion-instance-secret", secret),)
