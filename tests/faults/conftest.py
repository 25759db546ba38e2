"""What every fault test has: a look into the sidecar that it runs, and the proof that nothing is left of the fault."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from sidecar.calls.pipeline import Pipeline
from sidecar.calls.waiting import until_idle
from sidecar.wire.stream import FrameStream
from sidecar.wire.streams import Streams
from sidecar.workers.catalogue import Catalogue

_PATIENCE = 10.0


class ToldStreams(Streams):
    """Open streams, and a word whenever one opens or ends."""

    def __init__(self) -> None:
        # Stalls and missed pings are noticed sooner than by a sidecar that runs for long.
        super().__init__(interval=0.05)
        self.changed = asyncio.Event()
        self.open: set[FrameStream] = self._open
        """Those that are open."""

    @contextmanager
    def keeping(self, stream: FrameStream) -> Iterator[None]:
        try:
            with super().keeping(stream):
                self.changed.set()
                yield
        finally:
            self.changed.set()


class Inside:
    """The parts of the sidecar that the test runs, once it is started."""

    def __init__(self) -> None:
        self.pipeline: Pipeline
        self.catalogue: Catalogue
        self.streams: ToldStreams
        self.may_fail = False
        """Whether the test makes the sidecar itself fail."""
        self.is_started = False

    @property
    def counts(self) -> Mapping[str, int]:
        """What the sidecar has counted."""
        return self.pipeline.counters.snapshot()

    @property
    def undelivered(self) -> int:
        """The most that is kept for one peer, in bytes."""
        return max(stream.outbox.undelivered_bytes for stream in self.streams.open)

    @property
    def is_overfull(self) -> bool:
        """Whether so much is undelivered to a peer that the sidecar reads no more of it."""
        return any(stream.outbox.overfull for stream in self.streams.open)

    async def streams_are(self, number: int) -> None:
        """Returns once so many streams are open."""
        try:
            async with asyncio.timeout(_PATIENCE):
                while len(self.streams) != number:
                    self.streams.changed.clear()
                    await self.streams.changed.wait()
        except TimeoutError:
            raise AssertionError(f"{len(self.streams)} streams are open, and not {number}") from None

    async def nothing_is_left(self) -> None:
        """Returns once no call runs; fails if anything of one is left."""
        try:
            async with asyncio.timeout(_PATIENCE):
                await until_idle(self.pipeline)
        except TimeoutError:
            raise AssertionError(f"{len(self.pipeline.running)} calls still run") from None
        self.look_for_leftovers()

    def look_for_leftovers(self) -> None:
        """Fails if calls run, wait, hold a place or have no outcome."""
        assert not self.pipeline.running
        assert not len(self.pipeline.admission)
        assert not len(self.pipeline.requests)
        for workers in self.catalogue.sets.values():
            assert not workers.waiting
            assert not any(slot.assigned for each in workers.instances.values() for slot in each.running.values())
        counts = self.counts
        ended = sum(number for name, number in counts.items() if name == "results" or name.startswith("failures."))
        assert counts.get("calls", 0) == ended


@pytest.fixture
async def without_debug() -> None:
    """For a test with so many callbacks that it would take long to note where each comes from, as `-X dev` does."""
    asyncio.get_running_loop().set_debug(False)


@pytest.fixture(autouse=True)
def inside(monkeypatch: pytest.MonkeyPatch) -> Iterator[Inside]:
    """The parts of the sidecar, which is started behind this; at the end nothing may be left of any call."""
    parts = Inside()

    def keeping(name: str, kind: Callable[..., Any]) -> Callable[..., Any]:
        def made(*arguments: Any, **keywords: Any) -> Any:
            part = kind(*arguments, **keywords)
            setattr(parts, name, part)
            parts.is_started = True
            return part

        return made

    for name, kind in (("Pipeline", Pipeline), ("Catalogue", Catalogue), ("Streams", ToldStreams)):
        monkeypatch.setattr(f"sidecar.app.{name}", keeping(name.lower(), kind))
    yield parts
    if parts.is_started:
        parts.look_for_leftovers()
        assert not len(parts.streams)
        assert parts.may_fail or not parts.counts.get("internal_errors")
