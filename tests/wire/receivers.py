"""A receiver that remembers what it was told."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping

from sidecar._gen.pillion.v1.call_pb2 import StreamErrorReason
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar.wire.batch import FrameHead
from tests.wire.transports import PATIENCE


class Recorder:
    """Records everything, in order, and lets a test wait for it."""

    def __init__(self, bodies: Iterable[str] = ("start", "cancel")) -> None:
        self.handlers: Mapping[str | None, Callable[[Frame], None]] = _handlers(bodies, self._take)
        self.large_bodies: Collection[str] = ()
        self.on_frame: Callable[[Frame], None] | None = None
        """Called for each frame that has a handler, once it is recorded."""
        self.on_unresponsive: Callable[[], None] | None = None
        self.frames: list[Frame] = []
        self.strays: list[tuple[Frame, str]] = []
        self.heads: list[FrameHead] = []
        self.reasons: list[StreamErrorReason.ValueType] = []
        self.reliefs = 0
        self.told: list[str] = []
        """The names of what was called besides the handlers, in order."""
        self._changed = asyncio.Event()

    def _take(self, frame: Frame) -> None:
        self.frames.append(frame)
        self._changed.set()
        if self.on_frame is not None:
            self.on_frame(frame)

    def relieved(self) -> None:
        self.reliefs += 1
        self._changed.set()

    def misdirected(self, frame: Frame, body: str) -> None:
        self.strays.append((frame, body))
        self._tell("misdirected")

    def oversized(self, head: FrameHead) -> None:
        self.heads.append(head)
        self._tell("oversized")

    def unreadable(self, reason: "StreamErrorReason.ValueType") -> None:
        self.reasons.append(reason)
        self._tell("unreadable")

    def half_closed(self) -> None:
        self._tell("half_closed")

    def unresponsive(self) -> None:
        self._tell("unresponsive")
        if self.on_unresponsive is not None:
            self.on_unresponsive()

    def ended(self) -> None:
        self._tell("ended")

    @property
    def calls(self) -> list[int]:
        """The calls of the frames that came, in order."""
        return [frame.call for frame in self.frames]

    async def until(self, true: Callable[[], object]) -> None:
        """Waits until something holds of what was recorded."""
        async with asyncio.timeout(PATIENCE):
            while not true():
                self._changed.clear()
                await self._changed.wait()

    async def until_calls(self, *calls: int) -> None:
        """Waits until as many frames came as are named, and checks that they are of these calls."""
        await self.until(lambda: len(self.frames) >= len(calls))
        assert self.calls == list(calls)

    async def until_told(self, what: str, times: int = 1) -> None:
        """Waits until the receiver was told something that often."""
        await self.until(lambda: self.told.count(what) >= times)

    def _tell(self, what: str) -> None:
        self.told.append(what)
        self._changed.set()


def _handlers(bodies: Iterable[str | None], take: Callable[[Frame], None]) -> dict[str | None, Callable[[Frame], None]]:
    return dict.fromkeys(bodies, take)
