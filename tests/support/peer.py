"""What both kinds of peer share: frames out by the message, and frames in by call."""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Callable
from types import TracebackType
from typing import Self

from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar.wire.batch import join, parse
from sidecar.wire.transport import StreamLost
from tests.support.links import End, Link

_REAL_PATIENCE = 15.0
_VIRTUAL_PATIENCE = 300.0


class Peer:
    """One end of a stream, in a test's hands.

    A task reads what comes and keeps it by call; call 0 is the stream itself. Pings are answered while `pongs` is set.
    Every wait gives up after `patience` seconds of the loop's clock, with what it waited for in the error.
    """

    def __init__(self, link: Link, *, virtual: bool) -> None:
        self.link = link
        self.patience = _VIRTUAL_PATIENCE if virtual else _REAL_PATIENCE
        self.pongs = True
        """Whether pings are answered."""
        self.messages = 0
        """How many messages came."""
        self.frames: defaultdict[int, list[Frame]] = defaultdict(list)
        """All that came, by call."""
        self.order: list[Frame] = []
        """All that came, pings and pongs aside."""
        self._taken: defaultdict[int, int] = defaultdict(int)
        self._nonce = 0
        self._answered = 0
        self._over = False
        self._writing = asyncio.Lock()
        self._news = asyncio.Event()
        self._reading = asyncio.Event()
        self._reading.set()
        self._reader = asyncio.ensure_future(self._read())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    # --- out

    async def send(self, *frames: Frame) -> None:
        """Writes these frames as one message.

        :raises StreamLost: if the stream is over.
        """
        await self.send_bytes(join(frame.SerializeToString() for frame in frames))

    async def send_bytes(self, message: bytes) -> None:
        """Writes a message as it is."""
        try:
            async with asyncio.timeout(self.patience), self._writing:
                await self.link.write(message)
        except TimeoutError:
            raise AssertionError(f"a message was not taken within {self.patience:g} s") from None

    async def flush(self) -> None:
        """Returns once the sidecar has handled all that this peer sent before: a ping that is answered behind it."""
        self._nonce += 1
        nonce = self._nonce
        frame = Frame()
        frame.ping.nonce = nonce
        await self.send(frame)
        await self._until(lambda: self._answered >= nonce, "a pong")

    async def half_close(self) -> None:
        """Ends what this peer writes."""
        await self.link.half_close()

    def cut(self) -> None:
        """Loses the stream, without a word."""
        self.link.cut()

    # --- in

    def pause(self) -> None:
        """Stops reading; one message may still come in."""
        self._reading.clear()

    def resume(self) -> None:
        """Reads on."""
        self._reading.set()

    async def next(self, call: int = 0) -> Frame:
        """The next frame of a call that was not taken yet."""
        await self._until(lambda: len(self.frames[call]) > self._taken[call], f"a frame of call {call}")
        frame = self.frames[call][self._taken[call]]
        self._taken[call] += 1
        return frame

    async def next_of(self, body: str, call: int = 0) -> Frame:
        """The next frame of a call with this body; others before it are passed over."""
        while True:
            frame = await self.next(call)
            if frame.WhichOneof("body") == body:
                return frame

    def bodies(self, call: int = 0) -> list[str | None]:
        """The names of the bodies that came for a call, in order."""
        return [frame.WhichOneof("body") for frame in self.frames[call]]

    @property
    def is_over(self) -> bool:
        """Whether the stream is over, and all of it was read."""
        return self._over

    async def end(self) -> End:
        """How the stream ended, once it has and all of it was read."""
        await self._until(lambda: self._over, "the end of the stream")
        return await self.link.end()

    async def aclose(self) -> None:
        """Cuts the stream if it is open, and frees everything."""
        self.resume()
        self.cut()
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)
        await self.link.aclose()

    # --- parts of the above

    def received(self, frame: Frame) -> None:
        """A frame came. Subclasses may look at it."""

    async def _until(self, condition: Callable[[], bool], what: str) -> None:
        try:
            async with asyncio.timeout(self.patience):
                while not condition():
                    if self._over:
                        raise AssertionError(f"the stream ended while {what} was awaited")
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"{what} did not come within {self.patience:g} s") from None

    async def _read(self) -> None:
        try:
            while True:
                await self._reading.wait()
                message = await self.link.read()
                if message is None:
                    return
                self.messages += 1
                for frame in parse(message):
                    await self._receive(frame)
                self._news.set()
        finally:
            self._over = True
            self._news.set()

    async def _receive(self, frame: Frame) -> None:
        body = frame.WhichOneof("body")
        if body == "pong":
            self._answered = max(self._answered, frame.pong.nonce)
            return
        if body == "ping":
            if self.pongs:
                answer = Frame()
                answer.pong.nonce = frame.ping.nonce
                with contextlib.suppress(StreamLost):
                    await self.send(answer)
            return
        self.frames[frame.call].append(frame)
        self.order.append(frame)
        self.received(frame)
