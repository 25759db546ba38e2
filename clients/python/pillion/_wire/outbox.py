"""What waits to be written to one stream: frames of the stream itself, and lanes of frames of its calls."""

import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from pillion._wire import frames

KIB = 1024
MIB = 1024 * KIB
MESSAGE_FRAMES, MESSAGE_BYTES = 256, 256 * KIB
_TURN_BYTES = 64 * KIB
_KEPT = 32
_SOFT_BYTES = 8 * MIB


class Limits(NamedTuple):
    """What may be sent to the sidecar, as it says itself."""

    frame_bytes: int = MIB
    """The largest frame."""
    inline_bytes: int = 64 * KIB
    """The largest payload of progress, and of other things that ride inside a frame."""
    in_flight: int = 1_024
    """How many calls at once on the stream."""


class OutboxStatistics(NamedTuple):
    """The state of an outbox."""

    undelivered_bytes: int
    """Bytes queued or being written."""
    lanes_waiting: int
    """Calls with something to write."""
    messages: int
    """Messages drained so far."""
    frames: int
    """Frames drained so far."""
    coalesced: int
    """Progress frames that gave way to newer ones, or were dropped."""


class Lane:
    """The frames of one call on their way to one stream, in order. For use by any thread."""

    __slots__ = ("_credit", "_field", "_lost", "_others", "_outbox", "call", "closed", "entries")

    def __init__(self, outbox: "Outbox", call: int) -> None:
        self.call = call
        self.closed = False
        """Whether the call's outcome was queued: what comes later goes nowhere."""
        self.entries: list[bytes] = []
        """What waits, as it will stand in a message. For the outbox."""
        self._outbox = outbox
        self._field = frames.call_field(call)
        self._others = 0
        self._lost = 0
        self._credit = 0

    @property
    def inline_bytes(self) -> int:
        """The largest payload that rides inside a frame."""
        return self._outbox.limits.inline_bytes

    def report(self, payload: bytes) -> bool:
        """Queues progress; the newest are kept where too many wait. False: it is too large, and was dropped."""
        outbox = self._outbox
        data = frames.progress(self._field, payload)
        with outbox.lock:
            if self.closed or outbox.abandoned:
                return True
            if len(payload) > outbox.largest_report:
                self._lost += 1
                outbox.coalesced += 1
                return False
            if self._lost:
                data = frames.counting(data, self._lost)
                self._lost = 0
            entries = self.entries
            if not entries:
                outbox.turns.append(self)
            entries.append(data)
            outbox.undelivered_bytes += len(data)
            if len(entries) > 1 and (len(entries) > _KEPT or outbox.undelivered_bytes > _SOFT_BYTES):
                self._shed(_KEPT if outbox.undelivered_bytes <= _SOFT_BYTES else 1)
            if not outbox.asleep:
                return True
            outbox.asleep = False
        outbox.on_ready()
        return True

    def send(self, frame: bytes, *, last: bool = False) -> bool:
        """Queues a frame that is never lost; nothing follows the last. False: it is too large, and was not queued."""
        return self._queue(frames.packed(frame), len(frame), last=last)

    def result(self, json: bytes) -> bool:
        """Queues the outcome of a result that is one JSON value. False: it is too large, and was not queued."""
        data = frames.result(self._field, json)
        return self._queue(data, len(data), last=True)

    def _queue(self, data: bytes, size: int, *, last: bool) -> bool:
        outbox = self._outbox
        if size > outbox.largest_frame:
            return False
        with outbox.lock:
            if self.closed or outbox.abandoned:
                return True
            self.closed = last
            if self._lost:
                data = frames.counting(data, self._lost)
                self._lost = 0
            if not self.entries:
                outbox.turns.append(self)
            self.entries.append(data)
            self._others += 1
            outbox.undelivered_bytes += len(data)
            if not outbox.asleep:
                return True
            outbox.asleep = False
        outbox.on_ready()
        return True

    def _shed(self, kept: int) -> None:
        """Drops the oldest progress until `kept` are left; the frame behind each takes over its count."""
        entries = self.entries
        position = 0
        while len(entries) - self._others > kept:
            lost = frames.coalesced(entries[position])
            if lost is None:
                position += 1
                continue
            dropped, follower = entries[position], entries[position + 1]
            counting = entries[position + 1] = frames.counting(follower, lost + 1)
            del entries[position]
            self._outbox.undelivered_bytes += len(counting) - len(follower) - len(dropped)
            self._outbox.coalesced += 1

    def take(self, parts: list[bytes], most: int, *, alone: bool) -> int:
        """Moves what may be written now, at most so many frames; answers how many bytes that is. For the outbox."""
        entries = self.entries
        size = sum(map(len, entries))
        if len(entries) <= most and size <= _TURN_BYTES:
            parts += entries
            entries.clear()
            self._others = self._credit = 0
            return size
        credit = self._credit + _TURN_BYTES
        count = size = 0
        for entry in entries[:most]:
            if size + len(entry) > credit and not (alone and not count):
                break
            count += 1
            size += len(entry)
        taken = entries[:count]
        del entries[:count]
        self._others -= sum(frames.coalesced(entry) is None for entry in taken)
        self._credit = 0 if count else credit
        parts += taken
        return size


class Outbox:
    """The frames of one stream that were not written yet, and the message that comes next.

    Frames of the stream go first. Lanes take turns: a turn is worth 64 KiB of small frames, or the right to one larger
    frame once it was saved up for. `on_ready` is called, on any thread, when something waits that nobody was told of.
    """

    def __init__(self, on_ready: Callable[[], None]) -> None:
        self.largest_frame, self.largest_report, _ = self._limits = Limits()
        self.lock = threading.Lock()
        self.on_ready = on_ready
        self.asleep = False
        """Whether the writer waits to be told."""
        self.turns: deque[Lane] = deque()
        self.undelivered_bytes = 0
        """Bytes queued or being written."""
        self.coalesced = 0
        self.abandoned = False
        self.queued = 0
        """How many frames of the stream were ever queued."""
        self.handed_over = 0
        """How many of those were handed to the transport, or were about to be."""
        self._control: deque[bytes] = deque()
        self._writing = 0
        self._messages = 0
        self._frames = 0

    @property
    def limits(self) -> Limits:
        """What may be sent."""
        return self._limits

    @limits.setter
    def limits(self, limits: Limits) -> None:
        self.largest_frame, self.largest_report, _ = self._limits = limits

    def control(self, frame: bytes) -> int:
        """Queues a frame in front of those of the lanes, behind earlier ones of its kind. Answers which one it is."""
        data = frames.packed(frame)
        with self.lock:
            if self.abandoned:
                return self.queued
            self._control.append(data)
            self.queued += 1
            self.undelivered_bytes += len(data)
            if not self.asleep:
                return self.queued
            self.asleep = False
        self.on_ready()
        return self.queued

    def drain(self) -> bytes | None:
        """The next message; `None` when nothing waits, and then the writer is told of the next that does."""
        parts: list[bytes] = []
        size = 0
        with self.lock:
            control = self._control
            while control and len(parts) < MESSAGE_FRAMES and size < MESSAGE_BYTES:
                data = control.popleft()
                parts.append(data)
                size += len(data)
            self.handed_over += len(parts)
            turns = self.turns
            while turns and len(parts) < MESSAGE_FRAMES and size < MESSAGE_BYTES:
                lane = turns[0]
                size += lane.take(parts, MESSAGE_FRAMES - len(parts), alone=len(turns) == 1)
                if lane.entries:
                    turns.rotate(-1)
                else:
                    turns.popleft()
            if not parts:
                self.asleep = True
                return None
            self._writing += size
            self._messages += 1
            self._frames += len(parts)
        return b"".join(parts)

    def delivered(self) -> None:
        """Says that the drained messages were taken by the transport."""
        with self.lock:
            self.undelivered_bytes -= self._writing
            self._writing = 0

    def abandon(self) -> None:
        """Drops all that waits, and all that would."""
        with self.lock:
            self.abandoned = True
            self._control.clear()
            self.turns.clear()
            self.undelivered_bytes = self._writing

    @property
    def empty(self) -> bool:
        """Whether nothing waits."""
        return not self._control and not self.turns

    def statistics(self) -> OutboxStatistics:
        """The state of this outbox."""
        return OutboxStatistics(self.undelivered_bytes, len(self.turns), self._messages, self._frames, self.coalesced)
