"""One open stream of frames: its reader, its writer, and what happens when either fails."""

import asyncio
import logging
import math
from collections.abc import Callable

from sidecar._gen.pillion.v1.call_pb2 import StreamErrorReason
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar.telemetry import Counters
from sidecar.wire.batch import FrameHead, MalformedMessage, heads, parse
from sidecar.wire.inbound import Receiver, hand_on
from sidecar.wire.limits import WireLimits
from sidecar.wire.outbox import Lane, Outbox
from sidecar.wire.transport import StreamLost, Transport

_log = logging.getLogger(__name__)

_HEADS_AT_MOST = 4_096
_MISSED_PINGS = 3


class FrameStream:
    """One stream of frames over a transport.

    `run` lives as long as the stream. Frames are sent through lanes and `control`; each wakes the writer, which puts
    all that is queued into the next message. Everything happens on the event loop that runs `run`.
    """

    def __init__(
        self,
        transport: Transport,
        limits: WireLimits,
        counters: Counters,
        *,
        ping_interval: float | None = None,
        before_write: Callable[[], None] | None = None,
    ) -> None:
        """`before_write` is called before each message is handed to the transport, and may not raise."""
        self.outbox = Outbox(limits, self._wake)
        self.stalled = False
        """Whether the peer stopped reading and was given up; the transport lingers until it reads or leaves."""
        self.closed = False
        """Whether nothing more is read, not even the rest of a message."""
        self._transport = transport
        self._limits = limits
        self._counters = counters
        self._ping_interval = ping_interval
        self._before_write = before_write
        self._pings = 0
        self._unanswered = 0
        self._next_ping = 0.0
        self._finishing = False
        self._ended = False
        self._writing_since: float | None = None
        self._idle: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None
        self._receiver: Receiver | None = None
        self._reader: asyncio.Task[None] | None = None

    @property
    def is_over(self) -> bool:
        """Whether its calls are ended and it is counted; a stalled one may linger."""
        return self._ended

    def lane(self, call: int) -> Lane:
        """A lane for a call of this stream."""
        return Lane(self.outbox, call)

    def control(self, frame: Frame, *, droppable: bool = False) -> None:
        """Queues a frame on call 0, in front of all others. A droppable one gives way when many wait."""
        self.outbox.control(frame, droppable=droppable)

    def farewell(self, frame: Frame) -> None:
        """Queues a frame on call 0, behind all others."""
        self.outbox.farewell(frame)

    def finish(self) -> None:
        """Ends the stream once all that is queued is written."""
        self._finishing = True
        self._wake()

    def close(self) -> None:
        """Ends the stream once what is queued is written, and reads no more, not even the rest of a message."""
        self.closed = True
        self.finish()
        if self._reader is not None:
            self._reader.cancel()

    async def run(self, receiver: Receiver) -> None:
        """Reads and writes until the stream is over, then tells the receiver. Never raises `StreamLost`."""
        loop = asyncio.get_running_loop()
        self._receiver = receiver
        if self._ping_interval is not None:
            self._next_ping = loop.time() + self._ping_interval
        reader = self._reader = loop.create_task(self._read(receiver))
        writer = loop.create_task(self._write())
        tasks = [reader, writer]
        try:
            await asyncio.wait((reader, writer), return_when=asyncio.FIRST_COMPLETED)
            if not writer.done() and (self._finishing or _succeeded(reader)):
                await asyncio.wait((writer,))
        finally:
            reader.cancel()
            writer.cancel()
            self._end()
            self.outbox.abandon()
            # What was being written is the transport's now, or nobody's.
            self.outbox.delivered()
            for failure in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(failure, Exception) and not isinstance(failure, StreamLost):
                    self._counters.add("internal_errors")
                    _log.error("a stream ended that should have gone on", exc_info=failure)

    def look(self, now: float) -> None:
        """Looks for a stalled write and a silent peer. Called about once a second by whoever keeps the streams."""
        writing_since = self._writing_since
        if writing_since is not None and not self.stalled and now - writing_since > self._limits.stall_after:
            self._give_up()
        if self._ping_interval is None or self._ended or now < self._next_ping:
            return
        if self._unanswered >= _MISSED_PINGS and self._receiver is not None:
            self._counters.add("unresponsive_peers")
            self._next_ping = math.inf
            self._tell(self._receiver.unresponsive)
            return
        self._next_ping = now + self._ping_interval
        self._pings += 1
        self._unanswered += 1
        frame = Frame()
        frame.ping.nonce = self._pings
        self.control(frame, droppable=True)

    def _give_up(self) -> None:
        """Ends the stream's calls though the transport cannot be ended: a write of it hangs in the peer's window."""
        self.stalled = True
        self._counters.add("stalled_streams")
        self.outbox.abandon()
        self._finishing = True
        self._end()
        if self._reader is not None:
            self._reader.cancel()

    def _end(self) -> None:
        if not self._ended and self._receiver is not None:
            self._ended = True
            self._counters.add("coalesced_progress", self.outbox.coalesced)
            self._counters.add("oversized_progress", self.outbox.oversized_reports)
            self._tell(self._receiver.ended)

    def _tell(self, told: Callable[..., None], *arguments: object) -> None:
        """Tells the receiver something; what it raises is logged."""
        try:
            told(*arguments)
        except Exception:
            self._counters.add("internal_errors")
            _log.exception("a receiver failed at what it was told")

    def _wake(self) -> None:
        idle = self._idle
        if idle is not None and not idle.done():
            idle.set_result(None)

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        outbox = self.outbox
        write = self._transport.write
        before_write = self._before_write
        while True:
            message = outbox.drain()
            if message is None:
                if self._finishing:
                    return
                self._idle = loop.create_future()
                await self._idle
                continue
            if before_write is not None:
                before_write()
            self._writing_since = loop.time()
            try:
                await write(message)
            except StreamLost:
                return
            self._writing_since = None
            was_congested = outbox.congested
            outbox.delivered()
            if was_congested and not outbox.congested and self._receiver is not None:
                self._tell(self._receiver.relieved)
            if self._room is not None and not self._room.done() and not outbox.overfull:
                self._room.set_result(None)

    async def _read(self, receiver: Receiver) -> None:
        read = self._transport.read
        largest_frame = self._limits.max_frame_bytes
        largest_message = self._limits.max_message_bytes
        most_a_turn = self._limits.frames_per_turn
        while True:
            message = await read()
            if message is None:
                self._tell(receiver.half_closed)
                return
            size = len(message)
            if size > largest_message:
                await self._refuse(receiver, message)
                continue
            try:
                frames = parse(message)
            except MalformedMessage:
                self._counters.add("malformed_messages")
                self._tell(receiver.unreadable, StreamErrorReason.STREAM_ERROR_REASON_MALFORMED_MESSAGE)
                continue
            del message
            # Large frames take longer to handle, so fewer of them are handled in a turn.
            per_turn = min(most_a_turn, max(len(frames) * self._limits.bytes_per_turn // (size + 1), 1))
            large = largest_frame if size > largest_frame else None
            for start in range(0, len(frames), per_turn):
                turn = frames[start : start + per_turn]
                hand_on(turn, self, receiver, large)
                if self.closed:
                    return
                if len(turn) == per_turn:
                    # Also within a message, since what answers its frames may be many times its size.
                    await (self._wait_for_room() if self.outbox.overfull else asyncio.sleep(0))
            if self.outbox.overfull:
                await self._wait_for_room()

    async def _wait_for_room(self) -> None:
        """Returns once so much was taken by the peer that it may be read again."""
        self._room = asyncio.get_running_loop().create_future()
        await self._room
        self._room = None

    async def _refuse(self, receiver: Receiver, message: bytes) -> None:
        """Tells of a message that is too large, frame by frame."""
        self._counters.add("oversized_messages")
        for number, head in enumerate(heads(message, _HEADS_AT_MOST), 1):
            self._tell(receiver.oversized, head)
            if not number % self._limits.frames_per_turn:
                await asyncio.sleep(0)
        self._tell(receiver.unreadable, StreamErrorReason.STREAM_ERROR_REASON_MESSAGE_TOO_LARGE)

    def refuse_frame(self, receiver: Receiver, frame: Frame, body: str | None, size: int) -> None:
        """Takes a frame of so many bytes, which is over the largest."""
        self._counters.add("oversized_frames")
        self._tell(receiver.oversized, FrameHead(frame.call, body, size, frame))

    def failed(self) -> None:
        """Takes note of an exception that a frame was dropped for. To be called where it is handled."""
        self._counters.add("internal_errors")
        _log.exception("a frame could not be handled and was dropped")

    def receive_other(self, receiver: Receiver, frame: Frame, body: str | None) -> None:
        """Takes a frame that the receiver has no handler for."""
        if body is None:
            self._counters.add("unknown_frames")
        elif body == "ping":
            answer = Frame()
            answer.pong.nonce = frame.ping.nonce
            self.control(answer, droppable=True)
        elif body == "pong":
            # A pong answers its ping and those before it; one that nobody asked for answers nothing.
            if frame.pong.nonce <= self._pings:
                self._unanswered = min(self._unanswered, self._pings - frame.pong.nonce)
        else:
            receiver.misdirected(frame, body)


def _succeeded(task: asyncio.Task[None]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None
