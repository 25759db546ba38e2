"""Artifacts in memory, for tests and for a sidecar that keeps nothing."""

import builtins
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from sidecar.artifacts.checks import end_of
from sidecar.artifacts.drafts import Draft
from sidecar.artifacts.limits import ArtifactLimits
from sidecar.artifacts.paging import cursor_after, page_size, sequence_before
from sidecar.artifacts.port import (
    CHUNK_BYTES,
    DEFAULT_PAGE,
    MIB,
    ArtifactInput,
    ArtifactMeta,
    ArtifactNotFound,
    ArtifactShape,
    Eviction,
    EvictionReason,
    Origin,
    Page,
    Stored,
)
from sidecar.artifacts.references import mint
from sidecar.artifacts.room import Held, Totals, make_room
from sidecar.artifacts.uploads import OpenUpload, T, Uploads
from sidecar.scope import Scope

LIMITS = ArtifactLimits(
    max_bytes=32 * MIB,
    bytes_per_scope=32 * MIB,
    count_per_scope=256,
    bytes_per_subject=64 * MIB,
    bytes_per_tenant=256 * MIB,
)
"""What is kept in memory at most."""


class MemoryArtifactStore:
    """Keeps artifacts as long as it lives. `clock` is in nanoseconds since the Unix epoch."""

    def __init__(self, limits: ArtifactLimits = LIMITS, *, clock: Callable[[], int] = time.time_ns) -> None:
        self._backend = _Memory(limits, clock)
        self._uploads = Uploads(self._backend, limits, clock)

    async def aclose(self) -> None:
        """Gives up what is open."""
        await self._uploads.aclose()

    async def sweep(self) -> None:
        """Removes what has expired, and gives up uploads that were left alone."""
        self._backend.expire()
        await self._uploads.sweep()

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
    ) -> "OpenUpload[_Part]":
        """Begins an upload."""
        return await self._uploads.begin(scope, stated, size, shape, origin)

    async def resume(self, scope: Scope, upload_id: str) -> "OpenUpload[_Part]":
        """Continues an upload."""
        return await self._uploads.resume(scope, upload_id)

    async def head(self, scope: Scope, reference: str) -> ArtifactMeta:
        """What is known of an artifact."""
        return self._backend.look(scope, reference).meta

    @asynccontextmanager
    async def get(self, scope: Scope, reference: str) -> AsyncIterator["_Open"]:
        """Opens an artifact."""
        yield _Open(self._backend.look(scope, reference))

    async def delete(self, scope: Scope, reference: str) -> None:
        """Removes an artifact."""
        self._backend.remove(scope, reference)

    async def list(self, scope: Scope, cursor: str | None = None, limit: int = DEFAULT_PAGE) -> Page:
        """The scope's artifacts, newest first."""
        return self._backend.page(scope, cursor, limit)


@dataclass(slots=True)
class _Kept:
    meta: ArtifactMeta
    payload: bytes
    sequence: int
    read_at: int


@dataclass(slots=True)
class _Shelf:
    """The artifacts of one scope, oldest first."""

    newest: int = 0
    artifacts: dict[str, _Kept] = field(default_factory=dict)


class _Part:
    def __init__(self) -> None:
        self.payload = bytearray()

    def write(self, offset: int, data: bytes) -> None:
        self.payload[offset:] = data

    def discard(self) -> None:
        self.payload.clear()


class _Memory:
    """The backend. Nothing in it waits, so each method is one step."""

    def __init__(self, limits: ArtifactLimits, clock: Callable[[], int]) -> None:
        self._limits = limits
        self._clock = clock
        self._shelves: dict[Scope, _Shelf] = {}

    async def run(self, work: Callable[[], T]) -> T:
        return work()

    def new_part(self) -> _Part:
        return _Part()

    async def unresolved(self, scope: Scope, references: tuple[str, ...]) -> builtins.list[int]:
        return [number for number, reference in enumerate(references) if self._find(scope, reference) is None]

    async def totals(self, scope: Scope) -> Totals:
        return self._totals(scope)

    async def keep(self, scope: Scope, part: _Part, draft: Draft) -> Stored:
        shelf = self._shelves.get(scope, _Shelf())
        now = self._clock()
        coldest = sorted(
            (kept for kept in shelf.artifacts.values() if not _is_expired(kept, now)),
            key=lambda kept: (kept.read_at, kept.meta.reference),
        )
        held = (Held(kept.meta.reference, kept.meta.kind, kept.meta.size) for kept in coldest)
        gone = make_room(draft.size, self._totals(scope), held, self._limits)
        evicted = (*self._expire_in(scope, now), *gone)
        for eviction in gone:
            del shelf.artifacts[eviction.reference]
        self._shelves[scope] = shelf
        shelf.newest += 1
        meta = draft.meta(mint(), now, self._limits)
        shelf.artifacts[meta.reference] = _Kept(meta, bytes(part.payload), shelf.newest, now)
        return Stored(meta, evicted)

    def look(self, scope: Scope, reference: str) -> _Kept:
        """An artifact, which counts as looked at."""
        kept = self._find(scope, reference)
        if kept is None:
            raise ArtifactNotFound
        kept.read_at = self._clock()
        return kept

    def remove(self, scope: Scope, reference: str) -> None:
        """Removes an artifact, if it is there."""
        shelf = self._shelves.get(scope)
        if shelf is not None:
            shelf.artifacts.pop(reference, None)
            self._tidy(scope)

    def page(self, scope: Scope, cursor: str | None, limit: int) -> Page:
        """A page of the scope."""
        shelf = self._shelves.get(scope, _Shelf())
        before, now, size = sequence_before(cursor), self._clock(), page_size(limit)
        older = [
            kept
            for kept in reversed(shelf.artifacts.values())
            if not _is_expired(kept, now) and (before is None or kept.sequence < before)
        ]
        shown = older[:size]
        return Page(tuple(kept.meta for kept in shown), cursor_after(shown[-1].sequence) if len(older) > size else None)

    def expire(self) -> None:
        """Removes what has expired."""
        now = self._clock()
        for scope in tuple(self._shelves):
            self._expire_in(scope, now)

    def _expire_in(self, scope: Scope, now: int) -> tuple[Eviction, ...]:
        shelf = self._shelves.get(scope, _Shelf())
        metas = [kept.meta for kept in shelf.artifacts.values() if _is_expired(kept, now)]
        for meta in metas:
            del shelf.artifacts[meta.reference]
        self._tidy(scope)
        return tuple(Eviction(meta.reference, EvictionReason.EXPIRED, meta.kind, meta.size) for meta in metas)

    def _tidy(self, scope: Scope) -> None:
        if scope in self._shelves and not self._shelves[scope].artifacts:
            del self._shelves[scope]

    def _find(self, scope: Scope, reference: str) -> _Kept | None:
        shelf = self._shelves.get(scope)
        kept = None if shelf is None else shelf.artifacts.get(reference)
        return None if kept is None or _is_expired(kept, self._clock()) else kept

    def _totals(self, scope: Scope) -> Totals:
        now = self._clock()
        sizes = [
            (each, kept.meta.size)
            for each, shelf in self._shelves.items()
            for kept in shelf.artifacts.values()
            if not _is_expired(kept, now)
        ]
        in_scope = [size for each, size in sizes if each == scope]
        return Totals(
            len(in_scope),
            sum(in_scope),
            sum(size for each, size in sizes if each.owner == scope.owner),
            sum(size for each, size in sizes if each.tenant == scope.tenant),
        )


class _Open:
    def __init__(self, kept: _Kept) -> None:
        self.meta = kept.meta
        self._payload = kept.payload

    async def chunks(self, offset: int = 0, length: int | None = None) -> AsyncGenerator[bytes, None]:
        end = end_of(self.meta.size, offset, length)
        for start in range(offset, end, CHUNK_BYTES):
            yield self._payload[start : min(start + CHUNK_BYTES, end)]


def _is_expired(kept: _Kept, now: int) -> bool:
    return kept.meta.expires_at <= now
