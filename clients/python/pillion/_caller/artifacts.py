"""The artifact store as a caller has it."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from google.protobuf.message import DecodeError

from pillion import _failures, _refusals
from pillion._facts import Identity
from pillion._gen.pillion.v1 import artifacts_pb2 as messages
from pillion._payloads import Payload
from pillion._verbs import Artifacts, OpenArtifact, downloading
from pillion._wire.bulk import Opened
from pillion._wire.channel import DOWNLOAD, UPLOAD, Connection, Transport

_SERVICE = "/pillion.v1.ArtifactService/"
_REQUEST_SECONDS = 30.0
_INLINE_BYTES = 64 * 1024


class HostArtifacts(Artifacts):
    """A sidecar's artifacts, of one scope. As it is, that is a place of the caller's own; `within` names others."""

    def __init__(self, connection: Connection, scope: messages.ScopeFacts | None = None) -> None:
        super().__init__(_Backend(connection, scope or messages.ScopeFacts()))
        self._connection = connection

    def within(
        self,
        *,
        identity: Identity | None = None,
        session_id: str | None = None,
        run_id: str | None = None,
        execution_id: str | None = None,
    ) -> "HostArtifacts":
        """The artifacts of calls with these facts: the conversation's, else the session's, else the run's.

        What a call that named none of them has put is where its `execution_id` says. Whom a caller may name is policy's
        word, as it is for calls.
        """
        scope = messages.ScopeFacts(session_id=session_id, run_id=run_id, execution_id=execution_id)
        if identity is not None:
            for name in ("tenant", "principal", "conversation_id"):
                value = getattr(identity, name)
                if value is not None:
                    setattr(scope, name, value)
        return HostArtifacts(self._connection, scope)


class _Backend:
    """The backend of `Artifacts` outside calls."""

    inline_bytes = _INLINE_BYTES

    def __init__(self, connection: Connection, scope: messages.ScopeFacts) -> None:
        self._connection = connection
        self._scope = scope

    async def put(self, stated: messages.ArtifactInput, data: messages.ArtifactData) -> messages.ArtifactMeta:
        request = messages.PutRequest(scope=self._scope, input=stated, data=data)
        answer: messages.PutResponse = await self._ask("Put", request, messages.PutResponse)
        return answer.meta

    async def uploading(self, stated: messages.ArtifactInput, payload: Payload) -> tuple[messages.UploadHeader, Opened]:
        header = messages.UploadHeader(scope=self._scope, input=stated, size=payload.size)
        header.shape = payload.shape.value  # type: ignore[assignment]  # the same numbers
        return header, self._open_upload

    async def head(self, reference: str) -> messages.ArtifactMeta:
        request = messages.HeadRequest(scope=self._scope, reference=reference)
        answer: messages.HeadResponse = await self._ask("Head", request, messages.HeadResponse)
        return answer.meta

    async def delete(self, reference: str) -> None:
        request = messages.DeleteRequest(scope=self._scope, reference=reference)
        await self._ask("Delete", request, messages.DeleteResponse)

    async def page(self, cursor: str | None) -> tuple[Sequence[messages.ArtifactMeta], str | None]:
        request = messages.ListRequest(scope=self._scope, cursor=cursor)
        answer = await self._ask("List", request, messages.ListResponse)
        return answer.artifacts, answer.cursor if answer.HasField("cursor") else None

    @asynccontextmanager
    async def find(self, reference: str, offset: int) -> AsyncIterator[OpenArtifact]:
        request = messages.DownloadRequest(scope=self._scope, reference=reference, offset=offset).SerializeToString()

        async def opened() -> Transport:
            await self._connection.prepare()
            return self._connection.transfer(DOWNLOAD, request)

        async with downloading(opened) as artifact:
            yield artifact

    async def _open_upload(self) -> Transport:
        await self._connection.prepare()
        return self._connection.transfer(UPLOAD, None)

    async def _ask(self, method: str, request: Any, answer: type[Any]) -> Any:
        message = request.SerializeToString()
        try:
            return answer.FromString(await self._connection.request(_SERVICE + method, message, _REQUEST_SECONDS))
        except DecodeError:
            raise _failures.ConnectionFailed("The sidecar's answer cannot be read.") from None
        except _failures.ConnectionFailed as error:
            if error.reason is None:
                raise
            raise _refusals.of_failure(error.reason) from None
