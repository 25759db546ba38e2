"""The open streams of a process: looked at once a second, counted and capped."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from sidecar.telemetry.readings import StreamsReading
from sidecar.wire.stream import FrameStream


class Streams:
    """Every open stream. `run` must be running for stalls and silent peers to be noticed."""

    def __init__(self, *, interval: float = 1.0, most: int = 16_384, most_lingering: int = 256) -> None:
        self._interval = interval
        self._most = most
        self._most_lingering = most_lingering
        self._open: set[FrameStream] = set()

    @property
    def lingering(self) -> int:
        """How many stalled streams wait for their peer to read or leave."""
        return sum(stream.stalled for stream in self._open)

    @property
    def full(self) -> bool:
        """Whether so many streams are open, or stalled ones linger, that no further stream is to be accepted."""
        return len(self._open) >= self._most or (
            len(self._open) >= self._most_lingering and self.lingering >= self._most_lingering
        )

    def reading(self) -> StreamsReading:
        """How they are at this moment."""
        lingering = undelivered = coalesced = oversized = 0
        for stream in self._open:
            outbox = stream.outbox
            lingering += stream.stalled
            undelivered += outbox.undelivered_bytes
            if not stream.is_over:
                coalesced += outbox.coalesced
                oversized += outbox.oversized_reports
        return StreamsReading(len(self._open), lingering, undelivered, coalesced, oversized)

    def __len__(self) -> int:
        return len(self._open)

    @contextmanager
    def keeping(self, stream: FrameStream) -> Iterator[None]:
        """Keeps an eye on a stream inside the block."""
        self._open.add(stream)
        try:
            yield
        finally:
            self._open.discard(stream)

    async def run(self) -> None:
        """Looks at every stream once an interval, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._interval)
            now = loop.time()
            for stream in tuple(self._open):
                stream.look(now)
