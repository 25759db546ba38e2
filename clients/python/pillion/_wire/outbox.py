"""What waits to be written to one stream: frames of the stream itself, and lanes of frames of its calls."""

import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from pillion._gen.pillion.v1.frame_pb2 import Frame
from pillion._wire import frames

KIB = 1024
MIB = 1024 * KIB
MESSAGE_FRAMES, MESSAGE_BYTES = 128, 256 * KIB
_TURN_BYTES = 64 * KIB
_KEPT = 32
_SOFT_BYTES = 8 * MIB

_Report = tuple[bytes, int]
"""The payload of a queued progress frame, and how many were lost just before it."""


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

    __slots__ = ("_credit", "_entries", "_field", "_lost", "_outbox", "_reports", "call", "closed")

    def __init__(self, outbox: "Outbox", call: int) -> None:
        self.call = call
        self.closed = False
        """Whether the call's outcome was queued: what comes later goes nowhere."""
        self._outbox = outbox
        self._field = frames.call_field(call)
        self._entries: list[bytes | _Report] = []
        self._reports = 0
        self._lost = 0
        self._credit = 0

    def report(self, payload: bytes) -> bool:
        """Queues progress; the newest are kept where too many wait. False: it is too large, and was dropped."""
        outbox = self._outbox
        size = len(payload)
        with outbox.lock:
            if self.closed or outbox.abandoned:
                return True
            if size > outbox.limits.inline_bytes:
                self._lost += 1
                outbox.coalesced += 1
                return False
            entries = self._entries
            if not entries:
                outbox.turns.append(self)
            entries.append((payload, self._lost))
            self._lost = 0
            self._reports += 1
            outbox.undelivered_bytes += size
            kept = _KEPT if outbox.undelivered_bytes <= _SOFT_BYTES else 1
            if self._reports > kept:
                self._shed(kept)
            if not outbox.asleep:
                return True
            outbox.asleep = False
        outbox.on_ready()
        return True

    def send(self, frame: bytes, *, last: bool = False) -> bool:
        """Queues a frame that is never lost; nothing follows the last. False: it is too large, and was not queued."""
        outbox = self._outbox
        size = len(frame)
        if size > outbox.limits.frame_bytes:
            return False
        with outbox.lock:
            if self.closed or outbox.abandoned:
                return True
            self.closed = last
            if self._lost:
                frame = _counting(frame, self._lost)
                self._lost = 0
            if not self._entries:
                outbox.turns.append(self)
            self._entries.append(frame)
            outbox.undelivered_bytes += len(frame)
            if not outbox.asleep:
                return True
            outbox.asleep = False
        outbox.on_ready()
        return True

    def result(self, json: bytes) -> bool:
        """Queues the outcome of a result that is one JSON value. False: it is too large, and was not queued."""
        return self.send(frames.result(self._field, json), last=True)

    def _shed(self, kept: int) -> None:
        """Drops the oldest progress until `kept` are left; the frame behind each takes over its count."""
        entries = self._entries
        position = 0
        while self._reports > kept:
            entry = entries[position]
            if isinstance(entry, bytes):
                position += 1
                continue
            del entries[position]
            self._reports -= 1
            payload, lost = entry
            self._outbox.undelivered_bytes -= len(payload)
            self._outbox.coalesced += 1
            follower = entries[position]
            if isinstance(follower, bytes):
                entries[position] = counting = _counting(follower, lost + 1)
                self._outbox.undelivered_bytes += len(counting) - len(follower)
            else:
                entries[position] = (follower[0], follower[1] + lost + 1)

    def take(self) -> bytes:
        """The next frame, taken. For the outbox."""
        entry = self._entries.pop(0)
        if isinstance(entry, bytes):
            self._outbox.undelivered_bytes -= len(entry)
            return entry
        self._reports -= 1
        self._outbox.undelivered_bytes -= len(entry[0])
        return frames.progress(self._field, *entry)


def _counting(data: bytes, lost: int) -> bytes:
    frame = Frame.FromString(data)
    frame.coalesced = min(frame.coalesced + lost, 2**32 - 1)
    return frame.SerializeToString()


class Outbox:
    """The frames of one stream that were not written yet, and the message that comes next.

    Frames of the stream go first. Lanes take turns: a turn is worth 64 KiB of small frames, or the right to one larger
    frame once it was saved up for. `on_ready` is called, on any thread, when something waits that nobody was told of.
    """

    def __init__(self, on_ready: Callable[[], None]) -> None:
        self.limits = Limits()
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

    def control(self, frame: bytes) -> int:
        """Queues a frame in front of those of the lanes, behind earlier ones of its kind. Answers which one it is."""
        with self.lock:
            if self.abandoned:
                return self.queued
            self._control.append(frame)
            self.queued += 1
            self.undelivered_bytes += len(frame)
            if not self.asleep:
                return self.queued
            self.asleep = False
        self.on_ready()
        return self.queued

    def drain(self) -> bytes | None:
        """The next message; `None` when nothing waits, and then the writer is told of the next that does."""
        parts: list[bytes] = []
        size = count = 0
        with self.lock:
            control = self._control
            while control and count < MESSAGE_FRAMES and size < MESSAGE_BYTES:
                frame = control.popleft()
                parts += (frames.header(len(frame)), frame)
                size += len(frame)
                count += 1
            self.undelivered_bytes -= size
            self.handed_over += count
            turns = self.turns
            while turns and count < MESSAGE_FRAMES and size < MESSAGE_BYTES:
                taken, taken_bytes = self._turn(turns[0], parts, MESSAGE_FRAMES - count, alone=len(turns) == 1)
                size += taken_bytes
                count += taken
                if turns[0]._entries:  # noqa: SLF001  # a lane and its outbox are one thing in two classes
                    turns.rotate(-1)
                else:
                    turns.popleft()
            if not count:
                self.asleep = True
                return None
            self._writing += size
            self.undelivered_bytes += size
            self._messages += 1
            self._frames += count
        return b"".join(parts)

    def _turn(self, lane: Lane, parts: list[bytes], most: int, *, alone: bool) -> tuple[int, int]:
        """Takes what a lane may write now. Answers how many frames, and how many bytes."""
        entries = lane._entries  # noqa: SLF001  # as above
        credit = lane._credit + _TURN_BYTES  # noqa: SLF001  # as above
        count = size = 0
        while entries and count < most:
            entry = entries[0]
            length = len(entry) if isinstance(entry, bytes) else len(entry[0])
            if size + length > credit and not (alone and not count):
                break
            frame = lane.take()
            parts += (frames.header(len(frame)), frame)
            size += len(frame)
            count += 1
        lane._credit = 0 if count else credit  # noqa: SLF001  # as above
        return count, size

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
        return OutboxStatistics(
            self.undelivered_bytes, len(self.turns), self._messages, self._frames, self.coalesced
        )
