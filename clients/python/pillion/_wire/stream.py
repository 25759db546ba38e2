"""One stream of frames: a reader, and a writer that puts all that waits into the next message."""

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping

from pillion._gen.pillion.v1.frame_pb2 import Frame
from pillion._wire.channel import StreamEnded, Transport
from pillion._wire.frames import Malformed, parse
from pillion._wire.outbox import Outbox

_log = logging.getLogger("pillion")

_FRAMES_PER_TURN = 256
_ROOM_BYTES = 8 * 1024 * 1024

Handlers = Mapping[str | None, Callable[[Frame], None]]


class FrameStream:
    """A stream over a transport. Two tasks for all its calls; frames may be queued from any thread."""

    def __init__(self, transport: Transport, handlers: Handlers) -> None:
        self.outbox = Outbox(self._wake_from_anywhere)
        self.on_room: Callable[[], None] = lambda: None
        """Called when the outbox is not crowded any more."""
        self._transport = transport
        self._handlers = handlers
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._idle: asyncio.Future[None] | None = None
        self._finishing = False

    async def run(self) -> StreamEnded:
        """Reads and writes until the stream is over, and answers why it is."""
        reader = self._loop.create_task(self._read())
        writer = self._loop.create_task(self._write())
        try:
            await asyncio.wait((reader, writer), return_when=asyncio.FIRST_COMPLETED)
            if not reader.done():
                # The writer ends first where it half-closed, or sees a lost stream before the reader does.
                if (failure := writer.exception()) is not None:
                    _log.error("a stream cannot be written any more", exc_info=failure)
                    self._transport.cancel()
                await asyncio.wait((reader,))
            return reader.result()
        finally:
            reader.cancel()
            writer.cancel()
            self.outbox.abandon()
            self._transport.cancel()
            await asyncio.gather(reader, writer, return_exceptions=True)

    def send(self, frame: Frame) -> None:
        """Queues a frame in front of those of lanes."""
        self.outbox.control(frame.SerializeToString())

    @property
    def crowded(self) -> bool:
        """Whether who has more to write should wait until `on_room` is called."""
        return self.outbox.undelivered_bytes > _ROOM_BYTES

    def finish(self) -> None:
        """Half-closes once all that waits was written; what the peer still says is read."""
        self._finishing = True
        self._wake()

    def drop(self) -> None:
        """Ends the stream at once."""
        self._transport.cancel()

    def _wake_from_anywhere(self) -> None:
        if threading.get_ident() == self._thread:
            self._wake()
        else:
            try:
                self._loop.call_soon_threadsafe(self._wake)
            except RuntimeError:  # The loop is closed, so nobody writes any more.
                return

    def _wake(self) -> None:
        idle = self._idle
        if idle is not None and not idle.done():
            idle.set_result(None)

    async def _write(self) -> None:
        outbox = self.outbox
        write = self._transport.write
        while True:
            self._idle = self._loop.create_future()
            message = outbox.drain()
            if message is None:
                if self._finishing:
                    await self._transport.finish()
                    return
                await self._idle
                continue
            crowded = self.crowded
            try:
                await write(message)
            except StreamEnded:
                return  # The reader is told why.
            outbox.delivered()
            if crowded and not self.crowded:
                self.on_room()

    async def _read(self) -> StreamEnded:
        read = self._transport.read
        handlers = self._handlers
        while True:
            try:
                message = await read()
            except StreamEnded as ended:
                return ended
            try:
                frames = parse(message)
            except Malformed:
                _log.error("a message of the sidecar was no batch of frames, and was dropped")
                continue
            for number, frame in enumerate(frames, 1):
                handle = handlers.get(frame.WhichOneof("body"))
                if handle is not None:
                    try:
                        handle(frame)
                    except Exception:  # noqa: BLE001  # one bad frame ends no other
                        _log.exception("a frame could not be handled and was dropped")
                if not number % _FRAMES_PER_TURN:
                    await asyncio.sleep(0)
