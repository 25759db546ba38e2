"""Payloads on their way in, the same for every store."""

import asyncio
import secrets
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from sidecar.artifacts.checks import check_chunk, check_input, check_size, shown
from sidecar.artifacts.drafts import SECOND, Draft
from sidecar.artifacts.limits import ArtifactLimits
from sidecar.artifacts.measure import Measure
from sidecar.artifacts.port import (
    APPEND_BYTES,
    ArtifactInput,
    ArtifactsFull,
    ArtifactShape,
    Origin,
    Stored,
    UnknownParents,
    UploadIncomplete,
    UploadNotFound,
)
from sidecar.artifacts.room import Totals, check_totals
from sidecar.scope import Owner, Scope

T = TypeVar("T")
K = TypeVar("K")
P = TypeVar("P", bound="Part")

_FINISHED_KEPT = 1_024


class Part(Protocol):
    """The bytes of one upload, until they are an artifact's. All of it may block."""

    def write(self, offset: int, data: bytes) -> None:
        """Keeps bytes at an offset, which is where the last write ended."""
        ...

    def discard(self) -> None:
        """Forgets what is kept. Again, nothing happens."""
        ...


class Backend(Protocol[P]):
    """What differs between stores."""

    async def run(self, work: Callable[[], T]) -> T:
        """Does what may block, where it may."""
        ...

    def new_part(self) -> P:
        """Where a new upload's bytes go. May block."""
        ...

    async def unresolved(self, scope: Scope, references: tuple[str, ...]) -> list[int]:
        """The positions of those references that name nothing in the scope."""
        ...

    async def totals(self, scope: Scope) -> Totals:
        """What is stored now, without expired ones."""
        ...

    async def keep(self, scope: Scope, part: P, draft: Draft) -> Stored:
        """Makes an artifact of a part, or raises and discards the part."""
        ...


@dataclass(slots=True, eq=False)
class _Record(Generic[P]):
    """One upload, whoever holds it."""

    id: str
    scope: Scope
    draft: Draft
    part: P
    measure: Measure
    touched: int
    received: int = 0
    holder: int = 0
    """Grows whenever somebody else takes it."""
    stored: Stored | None = None
    is_over: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class _Reserved(NamedTuple):
    """What open uploads will need."""

    size: int = 0
    uploads: int = 0


_NOTHING = _Reserved()


class Uploads(Generic[P]):
    """The open uploads of one store.

    What is asked of an upload runs to its end also where whoever waits for it is cancelled, one thing after the other,
    so that what it has received is always known. It keeps no upload over a restart: what is left of them on a disk is
    for the store to sweep.
    """

    def __init__(self, backend: Backend[P], limits: ArtifactLimits, clock: Callable[[], int]) -> None:
        self._backend = backend
        self._limits = limits
        self._clock = clock
        self._open: dict[str, _Record[P]] = {}
        self._finished: dict[str, _Record[P]] = {}
        """Those that have their answer, oldest first, for who did not get it."""
        self._subjects: dict[Owner, _Reserved] = {}
        self._tenants: dict[str | None, _Reserved] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    async def put(
        self, scope: Scope, stated: ArtifactInput, payload: bytes, shape: ArtifactShape, origin: Origin | None
    ) -> Stored:
        """`ArtifactStore.put`."""
        upload = await self.begin(scope, stated, len(payload), shape, origin)
        try:
            for offset in range(0, len(payload), APPEND_BYTES):
                await upload.append(payload[offset : offset + APPEND_BYTES])
            return await upload.finish()
        finally:
            await upload.abandon()
            # Nobody was told its id.
            self._finished.pop(upload.id, None)

    async def begin(
        self, scope: Scope, stated: ArtifactInput, size: int, shape: ArtifactShape, origin: Origin | None
    ) -> "OpenUpload[P]":
        """`ArtifactStore.begin`."""
        check_input(stated)
        if stated.parents:
            missing = await self._backend.unresolved(scope, stated.parents)
            if missing:
                raise UnknownParents([shown(stated.parents[position], position) for position in missing])
        check_size(size, self._limits)
        return await self._run(self._begin(scope, Draft(stated, size, shape, None, origin)))

    async def resume(self, scope: Scope, upload_id: str) -> "OpenUpload[P]":
        """`ArtifactStore.resume`."""
        record = self._open.get(upload_id) or self._finished.get(upload_id)
        if record is None or record.scope != scope or self._is_idle(record):
            raise UploadNotFound
        record.holder += 1
        upload = OpenUpload(self, record)
        async with record.lock:
            if record.is_over and record.stored is None:
                raise UploadNotFound
            record.touched = self._clock()
            return upload

    async def sweep(self) -> None:
        """Gives up what was left alone for too long."""
        for record in tuple(self._open.values()):
            if self._is_idle(record):
                record.holder += 1
                await self._run(self._abandon(record, record.holder))
        for record in tuple(self._finished.values()):
            if self._is_idle(record):
                self._finished.pop(record.id, None)

    async def aclose(self) -> None:
        """Waits for what runs, and gives up what is open."""
        while self._tasks:
            await asyncio.wait(self._tasks)
        for record in tuple(self._open.values()):
            await self._drop(record)
        self._finished.clear()

    def _is_idle(self, record: _Record[P]) -> bool:
        return not record.lock.locked() and self._clock() - record.touched >= self._limits.upload_idle * SECOND

    # What follows runs in tasks of its own.

    async def _begin(self, scope: Scope, draft: Draft) -> "OpenUpload[P]":
        owner, size = scope.owner, draft.size
        if self._subjects.get(owner, _NOTHING).uploads >= self._limits.uploads_per_subject:
            raise ArtifactsFull("The subject has too many uploads open; finish some, or try again later.")
        self._reserve(owner, size, 1)
        try:
            totals = await self._backend.totals(scope)
            with_others = totals._replace(
                subject_bytes=totals.subject_bytes + self._subjects[owner].size - size,
                tenant_bytes=totals.tenant_bytes + self._tenants[owner.tenant].size - size,
            )
            # What will give way in the scope makes room for it.
            gives_way = max(totals.scope_bytes + size - self._limits.bytes_per_scope, 0)
            check_totals(size - gives_way, with_others, self._limits)
            part = await self._backend.run(self._backend.new_part)
        except BaseException:
            self._reserve(owner, -size, -1)
            raise
        measure = Measure(draft.stated, draft.shape)
        record = _Record(f"upl_{secrets.token_hex(16)}", scope, draft, part, measure, self._clock())
        self._open[record.id] = record
        return OpenUpload(self, record)

    async def append(self, record: _Record[P], holder: int, data: bytes) -> None:
        """`Upload.append`."""
        await self._run(self._append(record, holder, data))

    async def finish(self, record: _Record[P], holder: int) -> Stored:
        """`Upload.finish`."""
        return await self._run(self._finish(record, holder))

    async def abandon(self, record: _Record[P], holder: int) -> None:
        """`Upload.abandon`."""
        await self._run(self._abandon(record, holder))

    async def _append(self, record: _Record[P], holder: int, data: bytes) -> None:
        async with record.lock:
            _check_held(record, holder)

            def step() -> None:
                check_chunk(len(data), record.draft.size - record.received)
                record.part.write(record.received, data)
                record.measure.update(data)

            try:
                await self._backend.run(step)
            except BaseException:
                await self._drop(record)
                raise
            record.received += len(data)
            record.touched = self._clock()

    async def _finish(self, record: _Record[P], holder: int) -> Stored:
        async with record.lock:
            if record.stored is not None and holder == record.holder:
                return record.stored
            _check_held(record, holder)
            draft = record.draft
            if record.received < draft.size:
                raise UploadIncomplete
            try:
                digest = await self._backend.run(record.measure.finish)
                whole = Draft(draft.stated, draft.size, draft.shape, digest, draft.origin)
                record.stored = await self._backend.keep(record.scope, record.part, whole)
            except BaseException:
                await self._drop(record)
                raise
            self._forget(record)
            record.touched = self._clock()
            self._finished[record.id] = record
            if len(self._finished) > _FINISHED_KEPT:
                del self._finished[next(iter(self._finished))]
            return record.stored

    async def _abandon(self, record: _Record[P], holder: int) -> None:
        async with record.lock:
            if not record.is_over and holder == record.holder:
                await self._drop(record)

    async def _drop(self, record: _Record[P]) -> None:
        self._forget(record)
        await self._backend.run(record.part.discard)

    def _forget(self, record: _Record[P]) -> None:
        if not record.is_over:
            record.is_over = True
            del self._open[record.id]
            self._reserve(record.scope.owner, -record.draft.size, -1)

    def _reserve(self, owner: Owner, size: int, uploads: int) -> None:
        _add(self._subjects, owner, size, uploads)
        _add(self._tenants, owner.tenant, size, uploads)

    async def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs to its end what a caller may stop to wait for."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            # Where nobody waits any more, nobody has to be told.
            task.exception()


class OpenUpload(Generic[P]):
    """An upload in somebody's hands."""

    def __init__(self, uploads: Uploads[P], record: _Record[P]) -> None:
        self._uploads = uploads
        self._record = record
        self._holder = record.holder

    @property
    def id(self) -> str:
        """What it is continued by."""
        return self._record.id

    @property
    def size(self) -> int:
        """How many bytes were declared."""
        return self._record.draft.size

    @property
    def received(self) -> int:
        """How many bytes have come."""
        return self._record.received

    async def append(self, data: bytes) -> None:
        """Takes the next bytes."""
        await self._uploads.append(self._record, self._holder, data)

    async def finish(self) -> Stored:
        """Stores the artifact."""
        return await self._uploads.finish(self._record, self._holder)

    async def abandon(self) -> None:
        """Gives it up."""
        await self._uploads.abandon(self._record, self._holder)


def _check_held(record: _Record[Any], holder: int) -> None:
    if record.is_over or holder != record.holder:
        raise UploadNotFound


def _add(reserved: dict[K, _Reserved], key: K, size: int, uploads: int) -> None:
    before = reserved.get(key, _NOTHING)
    after = _Reserved(before.size + size, before.uploads + uploads)
    if after.uploads:
        reserved[key] = after
    else:
        reserved.pop(key, None)
