"""Artifacts in files, with their records in the sidecar's database: the store for one sidecar, and the default.

What makes it survive: a payload is written as a part, synced, and renamed before its record is committed; a record is
removed before its payload. So a record always has its payload, and what a crash leaves is a file without a record,
which is removed.
"""

import asyncio
import builtins
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sidecar.artifacts import records
from sidecar.artifacts.drafts import Draft
from sidecar.artifacts.limits import ArtifactLimits
from sidecar.artifacts.paging import page_size, sequence_before
from sidecar.artifacts.payloads import FilePart, PayloadFiles
from sidecar.artifacts.port import (
    DEFAULT_PAGE,
    ArtifactCorrupt,
    ArtifactInput,
    ArtifactMeta,
    ArtifactNotFound,
    ArtifactShape,
    Eviction,
    Origin,
    Page,
    Stored,
)
from sidecar.artifacts.reading import OpenFile
from sidecar.artifacts.references import well_formed
from sidecar.artifacts.room import Totals
from sidecar.artifacts.uploads import OpenUpload, T, Uploads
from sidecar.calls.stores import StoreUnavailable
from sidecar.scope import Scope
from sidecar.storage import Database

_log = logging.getLogger(__name__)

_THREADS = 4
_MOST_READS = 1_024
_SWEEP_SECONDS = 60.0
_ORPHANS_SECONDS = 3_600.0


class FileArtifactStore:
    """Keeps artifacts below a directory. `clock` is in nanoseconds since the Unix epoch.

    Opened once, after the database, and closed once, before it. `told` hears of whatever the store removes by itself.
    """

    def __init__(
        self,
        database: Database,
        directory: Path,
        limits: ArtifactLimits | None = None,
        *,
        clock: Callable[[], int] = time.time_ns,
        told: Callable[[Sequence[Eviction]], None] = lambda _: None,
    ) -> None:
        limits = limits or ArtifactLimits()
        self._disk = _Disk(database, directory, limits, clock, told)
        self._uploads = Uploads(self._disk, limits, clock)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def open(self) -> None:
        """Makes the directories, and removes what an earlier process left of uploads.

        :raises StoreRefused: if the directory cannot be used. Nothing needs closing then.
        """
        await self._disk.open()

    async def aclose(self) -> None:
        """Gives up what is open, and waits for all that is written."""
        await self._uploads.aclose()
        await self._disk.aclose()

    async def keep_tidy(self) -> None:
        """Sweeps from time to time, until cancelled: orphans at first and then every hour, the rest every minute."""
        loop = asyncio.get_running_loop()
        orphans_at = loop.time()
        while True:
            try:
                await self.sweep()
                if loop.time() >= orphans_at:
                    orphans_at = loop.time() + _ORPHANS_SECONDS
                    await self.sweep_orphans()
            except StoreUnavailable:
                _log.warning("artifacts could not be swept; it is tried again", exc_info=True)
            await asyncio.sleep(_SWEEP_SECONDS)

    async def sweep(self) -> None:
        """Removes what has expired, and gives up uploads that were left alone."""
        await self._uploads.sweep()
        while await self._disk.expire():
            pass

    async def sweep_orphans(self) -> int:
        """Removes the files that no record names; answers how many."""
        return await self._disk.sweep_orphans()

    async def put(
        self,
        scope: Scope,
        stated: ArtifactInput,
        payload: bytes,
        shape: ArtifactShape = ArtifactShape.BYTES,
        origin: Origin | None = None,
    ) -> Stored:
        """Stores a payload."""
        return await self._uploads.put(scope, stated, payload, shape, origin)

    async def begin(
        self,
        scope: Scope,
        stated: ArtifactInput,
        size: int,
        shape: ArtifactShape = ArtifactShape.BYTES,
        origin: Origin | None = None,
    ) -> OpenUpload[FilePart]:
        """Begins an upload."""
        return await self._uploads.begin(scope, stated, size, shape, origin)

    async def resume(self, scope: Scope, upload_id: str) -> OpenUpload[FilePart]:
        """Continues an upload."""
        return await self._uploads.resume(scope, upload_id)

    async def head(self, scope: Scope, reference: str) -> ArtifactMeta:
        """What is known of an artifact."""
        return (await self._disk.look(scope, reference)).meta

    @asynccontextmanager
    async def get(self, scope: Scope, reference: str) -> AsyncIterator[OpenFile]:
        """Opens an artifact."""
        artifact = await self._disk.read(scope, reference)
        try:
            yield artifact
        finally:
            artifact.close()

    async def delete(self, scope: Scope, reference: str) -> None:
        """Removes an artifact."""
        if well_formed(reference):
            await self._disk.remove(scope, reference)

    async def list(self, scope: Scope, cursor: str | None = None, limit: int = DEFAULT_PAGE) -> Page:
        """The scope's artifacts, newest first."""
        return await self._disk.page(scope, cursor, limit)


class _Disk:
    """The backend. What changes anything runs to its end also where whoever waits for it is cancelled."""

    def __init__(
        self,
        database: Database,
        directory: Path,
        limits: ArtifactLimits,
        clock: Callable[[], int],
        told: Callable[[Sequence[Eviction]], None],
    ) -> None:
        self._told = told
        self._database = database
        self._limits = limits
        self._clock = clock
        self._files = PayloadFiles(directory)
        self._threads = ThreadPoolExecutor(_THREADS, "pillion-artifacts")
        self._reads: dict[int, int] = {}
        """When artifacts were last looked at, as far as it is not recorded."""
        self._tasks: set[asyncio.Task[Any]] = set()

    async def open(self) -> None:
        try:
            await self.run(self._files.make)
        except BaseException:
            self._threads.shutdown(wait=False)
            raise

    async def aclose(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)
        try:
            await self._note_reads()
        except StoreUnavailable:
            _log.warning("it was not recorded when artifacts were last looked at", exc_info=True)
        self._threads.shutdown(wait=False)

    # --- for uploads

    async def run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def new_part(self) -> FilePart:
        return self._files.new_part()

    async def unresolved(self, scope: Scope, references: tuple[str, ...]) -> builtins.list[int]:
        now = self._clock()
        return await self._database.read(
            lambda connection: [
                number
                for number, reference in enumerate(references)
                if not well_formed(reference) or records.find(connection, scope, reference, now) is None
            ]
        )

    async def totals(self, scope: Scope) -> Totals:
        now = self._clock()
        return await self._database.read(lambda connection: records.totals(connection, scope, now))

    async def keep(self, scope: Scope, part: FilePart, draft: Draft) -> Stored:
        try:
            await self.run(partial(self._files.place, part))
        except BaseException:
            await self.run(part.discard)
            raise
        reads, self._reads = self._reads, {}

        def operation(connection: Any) -> records.Added:
            records.note_reads(connection, reads)
            return records.add(connection, scope, part.name, draft, self._clock(), self._limits)

        try:
            added = await self._database.write(operation)
        except BaseException:
            self._reads = reads | self._reads
            await self._undo(part)
            raise
        part.release()
        if added.stored.evicted:
            self._told(added.stored.evicted)
        await self._remove_files(added.files)
        return added.stored

    async def _undo(self, part: FilePart) -> None:
        """Removes a payload whose record failed, unless the record is there or nobody can say."""
        try:
            is_recorded = await self._database.read(partial(records.recorded, files=(part.name,)))
        except StoreUnavailable:
            # Looked after when orphans are swept.
            part.release()
            return
        if is_recorded:
            part.release()
        else:
            await self.run(part.discard)

    # --- for verbs

    async def look(self, scope: Scope, reference: str) -> records.Record:
        record = await self._find(scope, reference)
        if record is None:
            raise ArtifactNotFound
        self._reads[record.id] = self._clock()
        if len(self._reads) >= _MOST_READS:
            _ = self._start(self._note_reads())
        return record

    async def read(self, scope: Scope, reference: str) -> OpenFile:
        record = await self.look(scope, reference)
        opening = asyncio.ensure_future(self.run(partial(self._files.open, record.file, record.meta.size)))
        try:
            descriptor = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(self._close)
            raise
        except ArtifactCorrupt:
            if await self._find(scope, reference) is None:
                # It was removed between the two looks.
                raise ArtifactNotFound from None
            raise
        return OpenFile(record.meta, descriptor, self._threads)

    async def remove(self, scope: Scope, reference: str) -> None:
        await self._to_its_end(self._remove(scope, reference))

    async def page(self, scope: Scope, cursor: str | None, limit: int) -> Page:
        before, now, size = sequence_before(cursor), self._clock(), page_size(limit)
        return await self._database.read(lambda connection: records.page(connection, scope, before, now, size))

    # --- for sweeps

    async def expire(self) -> Sequence[Eviction]:
        return await self._to_its_end(self._expire())

    async def sweep_orphans(self) -> int:
        removed = await self.run(self._files.sweep_parts)
        for shelf in self._files.shelves():
            names = await self.run(partial(self._files.unattended, shelf))
            orphans = names - await self._database.read(partial(records.recorded, files=names))
            await self._remove_files(orphans)
            removed += len(orphans)
        return removed

    # --- inside

    async def _find(self, scope: Scope, reference: str) -> records.Record | None:
        if not well_formed(reference):
            return None
        now = self._clock()
        return await self._database.read(lambda connection: records.find(connection, scope, reference, now))

    async def _remove(self, scope: Scope, reference: str) -> None:
        await self._remove_files(
            await self._database.write(lambda connection: records.delete(connection, scope, reference))
        )

    async def _expire(self) -> Sequence[Eviction]:
        now = self._clock()
        expired, files = await self._database.write(lambda connection: records.expire(connection, now))
        await self._remove_files(files)
        if expired:
            self._told(expired)
        return expired

    async def _remove_files(self, names: Iterable[str]) -> None:
        if names:
            await self.run(partial(self._files.remove, names))

    async def _note_reads(self) -> None:
        reads, self._reads = self._reads, {}
        if reads:
            try:
                await self._database.write(partial(records.note_reads, reads=reads))
            except StoreUnavailable:
                self._reads = reads | self._reads
                raise

    def _start(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def _to_its_end(self, work: Coroutine[Any, Any, T]) -> T:
        return await asyncio.shield(self._start(work))

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            # Where nobody waits any more, nobody has to be told.
            task.exception()

    def _close(self, opening: asyncio.Future[int]) -> None:
        if not opening.cancelled() and opening.exception() is None:
            self._threads.submit(os.close, opening.result())
