"""The artifact store as tools and callers have it: five verbs, and two ways to read what is large."""

import asyncio
import mimetypes
import os
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

from pillion import _refusals
from pillion._artifacts import ArtifactMeta, ArtifactShape, read_meta
from pillion._facts import set_seconds
from pillion._gen.pillion.v1 import artifacts_pb2
from pillion._payloads import Payload, payload_of, value_of
from pillion._wire.bulk import Download, Opened, upload

_TYPES = {ArtifactShape.TEXT: "text/plain", ArtifactShape.JSON: "application/json"}
_ANY_TYPE = "application/octet-stream"


class Backend(Protocol):
    """Where the verbs go. Each raises a `RequestRefused`, or a `ConnectionFailed`, where it cannot."""

    @property
    def inline_bytes(self) -> int:
        """The largest payload that `put` takes."""
        ...

    async def put(
        self, stated: artifacts_pb2.ArtifactInput, data: artifacts_pb2.ArtifactData
    ) -> artifacts_pb2.ArtifactMeta:
        """Stores a small payload; answers its meta."""
        ...

    async def uploading(
        self, stated: artifacts_pb2.ArtifactInput, payload: Payload
    ) -> tuple[artifacts_pb2.UploadHeader, Opened]:
        """What begins an upload, and the way to its stream."""
        ...

    async def head(self, reference: str) -> artifacts_pb2.ArtifactMeta:
        """The meta of an artifact."""
        ...

    async def delete(self, reference: str) -> None:
        """Removes an artifact."""
        ...

    async def page(self, cursor: str | None) -> tuple[Sequence[artifacts_pb2.ArtifactMeta], str | None]:
        """A part of the list, and where to go on."""
        ...

    def find(self, reference: str, offset: int) -> AbstractAsyncContextManager["OpenArtifact"]:
        """An artifact to be read from an offset on, within an `async with` block."""
        ...


class OpenArtifact:
    """An artifact that is being read: `async for chunk in artifact`, or all of it by `await artifact.read()`. Once."""

    def __init__(self, meta: ArtifactMeta, chunks: AsyncGenerator[bytes, None]) -> None:
        self.meta = meta
        """What is known of it."""
        self._chunks = chunks

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._chunks

    async def read(self) -> bytes:
        """What was not read yet."""
        return b"".join([chunk async for chunk in self._chunks])

    async def save(self, path: str | os.PathLike[str]) -> None:
        """Writes what was not read yet to a file, which is there whole or not at all. One that is there is replaced.

        :raises OSError: if it cannot be written.
        """
        target = Path(path)
        part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
        file = await asyncio.to_thread(part.open, "xb")
        try:
            try:
                async for chunk in self._chunks:
                    await asyncio.to_thread(file.write, chunk)
            finally:
                await asyncio.to_thread(file.close)
            await asyncio.to_thread(part.replace, target)
        finally:
            await asyncio.to_thread(part.unlink, missing_ok=True)

    async def aclose(self) -> None:
        """Reads no more of it."""
        await self._chunks.aclose()


class Artifacts:
    """The artifacts of one scope. A reference that is missing, expired, another's or malformed reads as missing."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def put(  # noqa: PLR0913  # what may be said of an artifact, each by its name
        self,
        data: Any,
        *,
        kind: str,
        media_type: str | None = None,
        label: str | None = None,
        digest: bool = False,
        expires_in: float | None = None,
        parents: Sequence[str] = (),
        shape: ArtifactShape | None = None,
        size: int | None = None,
    ) -> ArtifactMeta:
        """Stores bytes, a text, the file at a `Path`, an open file from where it stands, or any other value as JSON.

        It is got back in the same shape; `shape` says that bytes or a file are TEXT or JSON. A large one is sent as a
        stream, and gone on with where it stopped when that is interrupted; an asynchronous iterator of bytes, which
        needs its `size`, only if nothing was lost. `media_type` and `label` of a file are by its name, if not given.
        `expires_in` is in seconds. `parents` are references of what it was made from.

        :raises ArtifactRefused: if it is not stored.
        :raises RequestRefused: as for every request.
        :raises JsonRefused: if the value has no JSON text of the same meaning.
        :raises OSError: if a file cannot be read.
        :raises ValueError: if there are less bytes than `size` says.
        """
        payload = await payload_of(data, shape, size)
        name = Path(data).name if isinstance(data, os.PathLike) else None
        # The first time it looks for files of the system.
        guessed = (await asyncio.to_thread(mimetypes.guess_type, name))[0] if name is not None else None
        stated = artifacts_pb2.ArtifactInput(
            kind=kind,
            media_type=media_type if media_type is not None else guessed or _TYPES.get(payload.shape, _ANY_TYPE),
            label=label if label is not None else name,
            digest=digest,
            parents=parents,
        )
        if expires_in is not None:
            set_seconds(stated.expires_in, expires_in)
        if payload.size <= self._backend.inline_bytes:
            content = artifacts_pb2.ArtifactData(content=await payload.content())
            content.shape = payload.shape.value  # type: ignore[assignment]  # the same numbers
            return read_meta(await self._backend.put(stated, content))
        header, opened = await self._backend.uploading(stated, payload)
        return read_meta(await upload(opened, header, payload.source))

    async def head(self, reference: str) -> ArtifactMeta | None:
        """What is known of an artifact; `None` if there is none.

        :raises RequestRefused: as for every request.
        """
        try:
            return read_meta(await self._backend.head(reference))
        except _refusals.ArtifactMissing:
            return None

    async def get(self, reference: str) -> tuple[ArtifactMeta, Any] | None:
        """What is known of an artifact, and its payload, whole and in its shape; `None` if there is none.

        :raises RequestRefused: as for every request.
        """
        try:
            async with self.open(reference) as artifact:
                return artifact.meta, value_of(artifact.meta.shape, await artifact.read())
        except _refusals.ArtifactMissing:
            return None

    @asynccontextmanager
    async def open(self, reference: str, offset: int = 0) -> AsyncIterator[OpenArtifact]:
        """Opens an artifact to be read piece by piece, from an offset on, however large it is.

        :raises ArtifactMissing: if there is none.
        :raises RequestRefused: as for every request.
        """
        async with self._backend.find(reference, offset) as artifact:
            yield artifact

    async def save(self, reference: str, path: str | os.PathLike[str]) -> ArtifactMeta:
        """Writes an artifact to a file, which is there whole or not at all. One that is there is replaced.

        :raises ArtifactMissing: if there is none.
        :raises OSError: if the file cannot be written.
        :raises RequestRefused: as for every request.
        """
        async with self.open(reference) as artifact:
            await artifact.save(path)
            return artifact.meta

    async def delete(self, reference: str) -> None:
        """Removes an artifact. That it is not there is agreed to.

        :raises RequestRefused: as for every request.
        """
        await self._backend.delete(reference)

    async def list(self) -> AsyncIterator[ArtifactMeta]:
        """The artifacts, newest first.

        :raises RequestRefused: as for every request.
        """
        cursor: str | None = None
        while True:
            metas, cursor = await self._backend.page(cursor)
            for meta in metas:
                yield read_meta(meta)
            if cursor is None:
                return


def of_bytes(meta: ArtifactMeta, content: bytes) -> OpenArtifact:
    """An artifact whose payload is there."""

    async def chunks() -> AsyncGenerator[bytes, None]:
        if content:
            yield content

    return OpenArtifact(meta, chunks())


def of_download(meta: ArtifactMeta, opened: Opened) -> OpenArtifact:
    """An artifact that is downloaded once it is read."""

    async def chunks() -> AsyncGenerator[bytes, None]:
        async with Download(opened) as download:
            await download.meta()
            async with aclosing(download.chunks()) as parts:
                async for chunk in parts:
                    yield chunk

    return OpenArtifact(meta, chunks())


@asynccontextmanager
async def downloading(opened: Opened) -> AsyncIterator[OpenArtifact]:
    """An artifact whose download begins now, and says what is known of it."""
    async with AsyncExitStack() as held:
        download = await held.enter_async_context(Download(opened))
        meta = read_meta(await download.meta())
        yield OpenArtifact(meta, await held.enter_async_context(aclosing(download.chunks())))
