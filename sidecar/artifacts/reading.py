"""An artifact's file while it is read."""

import asyncio
import hashlib
import os
from collections.abc import AsyncGenerator
from concurrent.futures import Executor, Future

from sidecar.artifacts.checks import end_of
from sidecar.artifacts.port import CHUNK_BYTES, ArtifactCorrupt, ArtifactMeta
from sidecar.calls.stores import StoreUnavailable

_CHUNKS_AT_ONCE = 2


class OpenFile:
    """A payload, read in the threads of an executor. One reader at a time."""

    def __init__(self, meta: ArtifactMeta, descriptor: int, executor: Executor) -> None:
        self.meta = meta
        self._descriptor = descriptor
        self._executor = executor
        self._reading: Future[list[bytes]] | None = None

    async def chunks(self, offset: int = 0, length: int | None = None) -> AsyncGenerator[bytes, None]:
        """Its bytes from an offset on."""
        meta = self.meta
        end = end_of(meta.size, offset, length)
        digest = hashlib.sha256() if meta.digest is not None and (offset, end) == (0, meta.size) else None
        if offset < end:
            self._reading = self._executor.submit(self._read, offset, end, digest)
        while offset < end and self._reading is not None:
            chunks = await asyncio.wrap_future(self._reading)
            offset += sum(map(len, chunks))
            if offset < end:
                # Ahead of who takes what is there.
                self._reading = self._executor.submit(self._read, offset, end, digest)
            if digest is not None and offset == end and f"sha-256:{digest.hexdigest()}" != meta.digest:
                raise ArtifactCorrupt
            for chunk in chunks:
                yield chunk

    def close(self) -> None:
        """Closes the file, once nothing reads it any more."""
        if self._reading is None or self._reading.done():
            os.close(self._descriptor)
        else:
            self._reading.add_done_callback(lambda _: os.close(self._descriptor))

    def _read(self, offset: int, end: int, digest: "hashlib._Hash | None") -> list[bytes]:
        chunks = []
        for _ in range(_CHUNKS_AT_ONCE):
            wanted = min(CHUNK_BYTES, end - offset)
            if not wanted:
                break
            try:
                chunk = os.pread(self._descriptor, wanted, offset)
            except OSError as error:
                raise StoreUnavailable("An artifact could not be read; look after the sidecar's disk.") from error
            if len(chunk) < wanted:
                raise ArtifactCorrupt
            if digest is not None:
                digest.update(chunk)
            offset += wanted
            chunks.append(chunk)
        return chunks
