"""Where the laws of artifact stores are held: a fresh store, a clock set by hand, and two who use it at once."""

import asyncio
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pytest

from sidecar.artifacts import (
    ArtifactInput,
    ArtifactLimits,
    ArtifactNotFound,
    ArtifactShape,
    ArtifactStore,
    Stored,
    Upload,
)
from sidecar.artifacts.files import FileArtifactStore
from sidecar.artifacts.memory import MemoryArtifactStore
from sidecar.scope import Owner, Scope
from sidecar.storage import Database

SECOND = 1_000_000_000
LIMITS = ArtifactLimits(retention=1_000.0, upload_idle=60.0)
NOTE = ArtifactInput("note", "text/plain")


class Clock:
    """A wall clock that is set by hand, in nanoseconds."""

    def __init__(self) -> None:
        self.now = 1_700_000_000 * SECOND

    def __call__(self) -> int:
        return self.now


class SweptStore(ArtifactStore, Protocol):
    """A store that is kept tidy from outside."""

    async def sweep(self) -> None: ...

    async def aclose(self) -> None: ...


class Backend(Protocol):
    """One kind of store, opened for one test."""

    @property
    def store(self) -> SweptStore:
        """The store, as it is open now."""
        ...

    async def open(self) -> None:
        """Opens it, again with what lasts."""
        ...

    async def aclose(self) -> None: ...

    async def damage(self, reference: str) -> None:
        """Changes a byte of a stored payload."""
        ...

    async def lose(self, reference: str) -> None:
        """Takes a stored payload away."""
        ...

    async def leftovers(self) -> list[str]:
        """What is there that belongs to no artifact and no open upload."""
        ...


class MemoryBackend:
    """Artifacts in memory."""

    declared: Mapping[str, str] = {
        "a_damaged_payload_is_told_and_not_handed_out_whole": "nothing else writes to its memory, so it checks nothing",
        "a_lost_payload_is_damage_and_not_absence": "nothing else writes to its memory, so it checks nothing",
        "what_was_put_outlives_the_store": "memory lasts as long as its process",
        "who_was_looked_at_outlives_the_store": "memory lasts as long as its process",
    }
    """Laws that it does not keep, and why."""

    def __init__(self, _directory: Path, limits: ArtifactLimits, clock: Clock) -> None:
        self._limits, self._clock = limits, clock

    async def open(self) -> None:
        self.store = MemoryArtifactStore(self._limits, clock=self._clock)

    async def aclose(self) -> None:
        await self.store.aclose()

    async def damage(self, reference: str) -> None:
        kept = self._kept(reference)
        kept.payload = bytes((kept.payload[0] ^ 1,)) + kept.payload[1:]

    async def lose(self, reference: str) -> None:
        self._kept(reference).payload = b""

    async def leftovers(self) -> list[str]:
        shelves = self.store._backend._shelves
        return [str(scope) for scope, shelf in shelves.items() if not shelf.artifacts]

    def _kept(self, reference: str) -> Any:
        (kept,) = (
            shelf.artifacts[reference]
            for shelf in self.store._backend._shelves.values()
            if reference in shelf.artifacts
        )
        return kept


class FileBackend:
    """Artifacts in files, and a database."""

    declared: Mapping[str, str] = {}

    def __init__(self, directory: Path, limits: ArtifactLimits, clock: Clock) -> None:
        self.directory = directory
        self._limits, self._clock = limits, clock

    async def open(self) -> None:
        self.database = Database(self.directory / "pillion.db")
        await self.database.open()
        self.store = FileArtifactStore(self.database, self.directory / "artifacts", self._limits, clock=self._clock)
        await self.store.open()

    async def aclose(self) -> None:
        await self.store.aclose()
        await self.database.aclose()

    async def damage(self, reference: str) -> None:
        file = await self._file(reference)
        payload = await asyncio.to_thread(file.read_bytes)
        await asyncio.to_thread(file.write_bytes, bytes((payload[0] ^ 1,)) + payload[1:])

    async def lose(self, reference: str) -> None:
        await asyncio.to_thread((await self._file(reference)).unlink)

    async def leftovers(self) -> list[str]:
        def look(connection: sqlite3.Connection) -> tuple[set[str], list[str]]:
            files = {file for (file,) in connection.execute("SELECT file FROM artifact")}
            return files, [f"{name} {row}" for name, query in _UNTRUE.items() for row in connection.execute(query)]

        recorded, untrue = await self.database.read(look)
        parts, payloads = await asyncio.to_thread(self._on_disk)
        return [*untrue, *(f"part {name}" for name in parts), *(f"payload {name}" for name in payloads ^ recorded)]

    def _on_disk(self) -> tuple[set[str], set[str]]:
        root = self.directory / "artifacts"
        return (
            {path.name for path in (root / "parts").iterdir()},
            {path.name for path in (root / "payloads").glob("*/*")},
        )

    async def _file(self, reference: str) -> Path:
        query = "SELECT file FROM artifact WHERE reference = ?"
        name: str
        (name,) = await self.database.read(lambda connection: connection.execute(query, (reference,)).fetchone())
        return self.directory / "artifacts" / "payloads" / name[:2] / name


_UNTRUE = {
    "scope": """
        SELECT * FROM artifact_scope WHERE artifacts != (SELECT count(*) FROM artifact WHERE scope = artifact_scope.id)
            OR bytes != (SELECT sum(size) FROM artifact WHERE scope = artifact_scope.id) OR artifacts = 0
    """,
    "owner": """
        SELECT * FROM artifact_owner
        WHERE bytes IS NOT (SELECT sum(bytes) FROM artifact_scope WHERE owner = artifact_owner.id)
    """,
    "tenant": """
        SELECT * FROM artifact_tenant
        WHERE bytes IS NOT (SELECT sum(bytes) FROM artifact_owner WHERE tenant = artifact_tenant.id)
    """,
}
"""What the database's own sums would say if they were wrong."""

BACKENDS: Mapping[str, Callable[[Path, ArtifactLimits, Clock], Backend]] = {
    "memory": MemoryBackend,
    "files": FileBackend,
}
DECLARED = {"memory": MemoryBackend.declared, "files": FileBackend.declared}


@dataclass
class Actor:
    """One of the two who use a store at once. Each goes through the same law, in a scope of its own."""

    stage: "Stage"
    name: str
    scope: Scope
    minted: list[str] = field(default_factory=list)

    @property
    def store(self) -> SweptStore:
        """The store, as it is open now."""
        return self.stage.backend.store

    @property
    def now(self) -> int:
        """The time, in nanoseconds."""
        return self.stage.clock.now

    def place(self, place: str) -> Scope:
        """Another scope of the same subject."""
        return self.scope._replace(place=place)

    async def put(
        self,
        payload: bytes = b"hello",
        stated: ArtifactInput = NOTE,
        shape: ArtifactShape = ArtifactShape.BYTES,
        scope: Scope | None = None,
        **rest: Any,
    ) -> Stored:
        """Puts an artifact, in this actor's scope unless another is named."""
        stored = await self.store.put(scope or self.scope, stated, payload, shape, **rest)
        self.minted.append(stored.meta.reference)
        return stored

    async def reference(self, payload: bytes = b"hello", **rest: Any) -> str:
        """Puts an artifact; answers its reference."""
        return (await self.put(payload, **rest)).meta.reference

    async def finish(self, upload: Upload) -> Stored:
        """Finishes an upload."""
        stored = await upload.finish()
        self.minted.append(stored.meta.reference)
        return stored

    async def read(
        self, reference: str, offset: int = 0, length: int | None = None, scope: Scope | None = None
    ) -> bytes:
        """What a payload has there."""
        async with self.store.get(scope or self.scope, reference) as artifact:
            return b"".join([chunk async for chunk in artifact.chunks(offset, length)])

    async def listed(self, scope: Scope | None = None, limit: int = 200) -> list[str]:
        """All references of a scope, newest first."""
        references: list[str] = []
        cursor = None
        while True:
            page = await self.store.list(scope or self.scope, cursor, limit)
            references += [meta.reference for meta in page.artifacts]
            cursor = page.cursor
            if cursor is None:
                return references

    async def absent(self, reference: str, scope: Scope | None = None) -> None:
        """Fails if an artifact is there, by any verb."""
        scope = scope or self.scope
        with pytest.raises(ArtifactNotFound):
            await self.store.head(scope, reference)
        with pytest.raises(ArtifactNotFound):
            async with self.store.get(scope, reference):
                pass
        assert reference not in await self.listed(scope)

    async def advance(self, seconds: float) -> None:
        """Lets time go on, once both want it to."""

        async def step() -> None:
            self.stage.clock.now += int(seconds * SECOND)

        await self.stage.together(step)

    async def reopen(self) -> None:
        """Closes the store and opens it again, once both want it to."""

        async def step() -> None:
            await self.stage.backend.aclose()
            await self.stage.backend.open()

        await self.stage.together(step)


class Stage:
    """A store, and two who use it."""

    def __init__(self, backend: Backend, clock: Clock) -> None:
        self.backend = backend
        self.clock = clock
        # They differ in the subject alone, and in nothing else that a careless store would look at.
        self.actors = [
            Actor(self, name, Scope(Owner("acme", f"named:{name}"), "conversation:1")) for name in ("ann", "bob")
        ]
        self._arrived = 0
        self._step: asyncio.Future[None] | None = None

    async def together(self, step: Callable[[], Any]) -> None:
        """Takes a step once, when both have come to it."""
        self._arrived += 1
        if self._step is None:
            self._step = asyncio.get_running_loop().create_future()
        waited = self._step
        if self._arrived == len(self.actors):
            self._arrived, self._step = 0, None
            await step()
            waited.set_result(None)
        await waited

    async def play(self, law: Callable[[Actor], Any]) -> None:
        """Has both go through a law at the same time; then neither may reach what the other has. Nothing is left."""
        async with asyncio.TaskGroup() as tasks:
            for actor in self.actors:
                tasks.create_task(law(actor))
        ann, bob = self.actors
        for actor, other in ((ann, bob), (bob, ann)):
            for reference in other.minted:
                await actor.absent(reference)
                await actor.store.delete(actor.scope, reference)
        for actor in self.actors:
            for reference in await actor.listed():
                assert reference in actor.minted
        self.clock.now += int(LIMITS.upload_idle * SECOND)
        await self.backend.store.sweep()
        assert await self.backend.leftovers() == []
