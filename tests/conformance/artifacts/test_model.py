"""Any order of requests: each store does what a few lines of plain Python do."""

import asyncio
import shutil
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from sidecar.artifacts import (
    ArtifactError,
    ArtifactLimits,
    ArtifactNotFound,
    ArtifactsFull,
    ArtifactTooLarge,
    EvictionReason,
    Upload,
    UploadNotFound,
)
from sidecar.scope import Owner, Scope
from tests.conformance.artifacts.stage import BACKENDS, NOTE, SECOND, Backend, Clock

LIMITS = ArtifactLimits(
    max_bytes=60,
    retention=100.0,
    bytes_per_scope=50,
    count_per_scope=4,
    bytes_per_subject=90,
    bytes_per_tenant=120,
    upload_idle=40.0,
    uploads_per_subject=3,
)
SCOPES = [
    Scope(Owner("acme", "named:ann"), "conversation:1"),
    Scope(Owner("acme", "named:ann"), "session:1"),
    Scope(Owner("acme", "named:bob"), "conversation:1"),
    Scope(Owner(None, "named:ann"), "conversation:1"),
]
NOBODYS = "art_" + "0" * 22
"""What a refused request gives its bundle. Which one gives way to a new artifact is drawn by its random reference, and
so is which request is refused: a bundle that grew by the others alone would not grow alike in each run.
"""

scopes = st.sampled_from(SCOPES)
payloads = st.integers(0, 61).map(lambda size: bytes(range(size)))


@dataclass
class Kept:
    """An artifact as the model has it."""

    reference: str
    payload: bytes
    expires_at: int
    read_at: int


@dataclass
class Taken:
    """An open upload as the model has it."""

    scope: Scope
    size: int
    upload: Upload
    touched: int
    received: bytes = b""


@dataclass
class Model:
    """What there ought to be."""

    kept: dict[Scope, list[Kept]] = field(default_factory=lambda: {scope: [] for scope in SCOPES})
    taken: dict[str, Taken] = field(default_factory=dict)

    def live(self, scope: Scope, now: int) -> list[Kept]:
        return [kept for kept in self.kept[scope] if kept.expires_at > now]

    def held(self, scope: Scope, now: int) -> tuple[int, int, int]:
        """The bytes in the scope, and those of subject and tenant, uploads among them."""

        def total(matches: Any) -> int:
            return sum(len(kept.payload) for each in SCOPES if matches(each) for kept in self.live(each, now)) + sum(
                taken.size for taken in self.taken.values() if matches(taken.scope)
            )

        return (
            sum(len(kept.payload) for kept in self.live(scope, now)),
            total(lambda each: each.owner == scope.owner),
            total(lambda each: each.tenant == scope.tenant),
        )

    def may_begin(self, scope: Scope, size: int, now: int) -> type[ArtifactError] | None:
        """How an upload is refused."""
        if size > LIMITS.bytes_per_scope:
            return ArtifactTooLarge
        if sum(taken.scope.owner == scope.owner for taken in self.taken.values()) >= LIMITS.uploads_per_subject:
            return ArtifactsFull
        in_scope, of_subject, of_tenant = self.held(scope, now)
        growth = size - max(in_scope + size - LIMITS.bytes_per_scope, 0)
        full = of_subject + growth > LIMITS.bytes_per_subject or of_tenant + growth > LIMITS.bytes_per_tenant
        return ArtifactsFull if full else None

    def keep(
        self, scope: Scope, reference: str, payload: bytes, lifetime: float, now: int
    ) -> list[tuple[str, EvictionReason]]:
        """Keeps an artifact; answers what gave way."""
        gone = [(kept.reference, EvictionReason.EXPIRED) for kept in self.kept[scope] if kept.expires_at <= now]
        live = self.live(scope, now)
        for kept in sorted(live, key=lambda kept: (kept.read_at, kept.reference)):
            if len(live) >= LIMITS.count_per_scope:
                gone.append((kept.reference, EvictionReason.COUNT))
            elif sum(len(each.payload) for each in live) + len(payload) > LIMITS.bytes_per_scope:
                gone.append((kept.reference, EvictionReason.BYTES))
            else:
                break
            live.remove(kept)
        self.kept[scope] = [*live, Kept(reference, payload, now + int(lifetime * SECOND), now)]
        return gone

    def find(self, scope: Scope, reference: str, now: int) -> Kept | None:
        return next((kept for kept in self.live(scope, now) if kept.reference == reference), None)


class Requests(RuleBasedStateMachine):
    """Requests to a store and to the model."""

    references = Bundle("references")
    uploads = Bundle("uploads")

    def __init__(self, name: str) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.clock = Clock()
        self.model = Model()
        self.runner = asyncio.Runner(debug=False)
        self.backend: Backend = BACKENDS[name](self.directory, LIMITS, self.clock)
        self.runner.run(self.backend.open())

    def teardown(self) -> None:
        self.runner.run(self.backend.aclose())
        self.runner.close()
        shutil.rmtree(self.directory)

    def run(self, asked: Any) -> Any:
        return self.runner.run(asked)

    @rule(target=references, scope=scopes, payload=payloads, expires_in=st.sampled_from((None, 1.0, 20.0, 500.0)))
    def put(self, scope: Scope, payload: bytes, expires_in: float | None) -> Any:
        now = self.clock.now
        refusal = self.model.may_begin(scope, len(payload), now)
        asked = self.backend.store.put(scope, replace(NOTE, expires_in=expires_in), payload)
        if refusal is not None:
            with pytest.raises(refusal):
                self.run(asked)
            return NOBODYS
        stored = self.run(asked)
        lifetime = min(expires_in or LIMITS.retention, LIMITS.retention)
        gone = self.model.keep(scope, stored.meta.reference, payload, lifetime, now)
        assert [(each.reference, each.reason) for each in stored.evicted] == gone
        return stored.meta.reference

    @rule(scope=scopes, reference=references)
    def head(self, scope: Scope, reference: str) -> None:
        kept = self.model.find(scope, reference, self.clock.now)
        asked = self.backend.store.head(scope, reference)
        if kept is None:
            with pytest.raises(ArtifactNotFound):
                self.run(asked)
        else:
            assert self.run(asked).size == len(kept.payload)
            kept.read_at = self.clock.now

    @rule(scope=scopes, reference=references, offset=st.integers(0, 10), length=st.none() | st.integers(0, 50))
    def get(self, scope: Scope, reference: str, offset: int, length: int | None) -> None:
        kept = self.model.find(scope, reference, self.clock.now)

        async def read() -> bytes:
            async with self.backend.store.get(scope, reference) as artifact:
                start = min(offset, artifact.meta.size)
                return b"".join([chunk async for chunk in artifact.chunks(start, length)])

        if kept is None:
            with pytest.raises(ArtifactNotFound):
                self.run(read())
        else:
            assert self.run(read()) == kept.payload[offset:][:length]
            kept.read_at = self.clock.now

    @rule(scope=scopes, reference=references)
    def delete(self, scope: Scope, reference: str) -> None:
        self.run(self.backend.store.delete(scope, reference))
        self.model.kept[scope] = [kept for kept in self.model.kept[scope] if kept.reference != reference]

    @rule(seconds=st.sampled_from((0.5, 3.0, 15.0, 39.0, 60.0)))
    def advance(self, seconds: float) -> None:
        self.clock.now += int(seconds * SECOND)

    @rule()
    def sweep(self) -> None:
        now = self.clock.now
        self.run(self.backend.store.sweep())
        for scope in SCOPES:
            self.model.kept[scope] = self.model.live(scope, now)
        for name, taken in tuple(self.model.taken.items()):
            if now - taken.touched >= LIMITS.upload_idle * SECOND:
                del self.model.taken[name]

    @rule(target=uploads, scope=scopes, size=st.integers(0, 55))
    def begin(self, scope: Scope, size: int) -> Any:
        refusal = self.model.may_begin(scope, size, self.clock.now)
        asked = self.backend.store.begin(scope, NOTE, size)
        if refusal is not None:
            with pytest.raises(refusal):
                self.run(asked)
            return NOBODYS
        upload = self.run(asked)
        self.model.taken[upload.id] = Taken(scope, size, upload, self.clock.now)
        return upload.id

    @rule(name=uploads, size=st.integers(0, 30))
    def append(self, name: str, size: int) -> None:
        taken = self.model.taken.get(name)
        if taken is None:
            return
        data = bytes(range(size, 2 * size))
        if len(taken.received) + size > taken.size:
            with pytest.raises(ArtifactError):
                self.run(taken.upload.append(data))
            del self.model.taken[name]
        else:
            self.run(taken.upload.append(data))
            taken.received += data
            taken.touched = self.clock.now

    @rule(name=uploads, scope=scopes)
    def resume(self, name: str, scope: Scope) -> None:
        taken = self.model.taken.get(name)
        is_there = taken is not None and self.clock.now - taken.touched < LIMITS.upload_idle * SECOND
        if taken is None:
            # It may be finished, and then has its answer for a while.
            return
        if is_there and scope == taken.scope:
            taken.upload = self.run(self.backend.store.resume(scope, name))
            taken.touched = self.clock.now
            assert taken.upload.received == len(taken.received)
        else:
            with pytest.raises(UploadNotFound):
                self.run(self.backend.store.resume(scope, name))

    @rule(target=references, name=uploads)
    def finish(self, name: str) -> Any:
        taken = self.model.taken.get(name)
        if taken is None:
            return NOBODYS
        if len(taken.received) < taken.size:
            with pytest.raises(ArtifactError):
                self.run(taken.upload.finish())
            return NOBODYS
        del self.model.taken[name]
        stored = self.run(taken.upload.finish())
        reference: str = stored.meta.reference
        gone = self.model.keep(taken.scope, reference, taken.received, LIMITS.retention, self.clock.now)
        assert [(each.reference, each.reason) for each in stored.evicted] == gone
        return reference

    @rule(name=uploads)
    def abandon(self, name: str) -> None:
        taken = self.model.taken.pop(name, None)
        if taken is not None:
            self.run(taken.upload.abandon())

    @invariant()
    def lists_are_the_models(self) -> None:
        for scope in SCOPES:
            expected = [kept.reference for kept in self.model.live(scope, self.clock.now)][::-1]
            page = self.run(self.backend.store.list(scope, None, 3))
            found = [meta.reference for meta in page.artifacts]
            if page.cursor is not None:
                found += [meta.reference for meta in self.run(self.backend.store.list(scope, page.cursor, 3)).artifacts]
            assert found == expected


class OfMemory(Requests):
    """Requests to a store in memory."""

    def __init__(self) -> None:
        super().__init__("memory")


class OfFiles(Requests):
    """Requests to a store in files, which is closed and opened again among them."""

    def __init__(self) -> None:
        super().__init__("files")

    @rule()
    def reopen(self) -> None:
        self.run(self.backend.aclose())
        self.run(self.backend.open())
        self.model.taken.clear()


@pytest.mark.slow
@pytest.mark.parametrize(("machine", "examples"), [(OfMemory, 50), (OfFiles, 20)], ids=["memory", "files"])
def test_any_order_of_requests(machine: type[Requests], examples: int) -> None:
    run_state_machine_as_test(machine, settings=settings(max_examples=examples, stateful_step_count=40, deadline=None))
