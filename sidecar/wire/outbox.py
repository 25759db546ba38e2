"""What waits to be written to one stream: lanes of frames, drained fairly into messages."""

import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar.wire.batch import header
from sidecar.wire.limits import WireLimits


class Report(NamedTuple):
    """A queued progress frame, which may give way to a newer one."""

    frame: bytes
    lost: int
    """How many progress frames were lost just before it."""


class OutboxStatistics(NamedTuple):
    """The state of an outbox."""

    lanes_waiting: int
    """Lanes with something to write, the control lane aside."""
    undelivered_bytes: int
    """Bytes queued or being written."""
    messages: int
    """Messages drained so far."""
    frames: int
    """Frames drained so far."""
    coalesced: int
    """Progress frames that gave way to newer ones, or were dropped."""


class Lane:
    """The frames of one call on their way to one stream, in order.

    Stamps each with the call's id on this stream, a sequence number from 1, and the time. What is sent after the outbox
    is abandoned goes nowhere.
    """

    __slots__ = ("_credit", "_frames", "_lost", "_outbox", "call", "handed_over", "sequence")

    def __init__(self, outbox: "Outbox", call: int) -> None:
        self.call = call
        self.sequence = 0
        """The sequence number of the newest frame."""
        self.handed_over = 0
        """How many frames were handed to the transport."""
        self._outbox = outbox
        self._frames: deque[bytes | Report] = deque()
        self._lost = 0
        self._credit = 0

    def send(self, frame: Frame) -> bool:
        """Queues a frame that is never lost. False: it is over the stream's largest and was not queued."""
        lost = self._lost
        if lost:
            frame.coalesced += lost
            self._lost = 0
        self.sequence += 1
        frame.call = self.call
        frame.sequence = self.sequence
        frame.time_unix_nano = time.time_ns()
        data = frame.SerializeToString()
        if len(data) > self._outbox.largest_frame:
            self.sequence -= 1
            return False
        self._outbox._queue(self, data, len(data))
        return True

    def report(self, frame: Frame) -> None:
        """Queues a progress frame. Older ones of this lane give way when too many wait, and the next frame says so."""
        outbox = self._outbox
        lost = frame.coalesced
        if lost:
            frame.coalesced = 0
        lost += self._lost
        self.sequence += 1
        if outbox.undelivered_bytes > outbox.limits.undelivered_hard:
            self._lost = lost + 1
            outbox.coalesced += 1
            return
        self._lost = 0
        frame.call = self.call
        frame.sequence = self.sequence
        frame.time_unix_nano = time.time_ns()
        data = frame.SerializeToString()
        if len(data) > outbox.largest_report:
            self._lost = lost + 1
            outbox.oversized_reports += 1
            return
        outbox._queue(self, Report(data, lost), len(data))
        kept = 1 if outbox.undelivered_bytes > outbox.limits.undelivered_soft else outbox.limits.progress_kept
        if len(self._frames) > kept:
            self._shed(kept)

    def _shed(self, kept: int) -> None:
        """Drops the oldest progress until `kept` are left; the frame behind each takes over its count."""
        frames = self._frames
        surplus = sum(isinstance(entry, Report) for entry in frames) - kept
        position = 0
        while surplus > 0:
            entry = frames[position]
            if not isinstance(entry, Report):
                position += 1
                continue
            del frames[position]
            surplus -= 1
            self._outbox._shed(len(entry.frame))
            lost = entry.lost + 1
            follower = frames[position]
            if isinstance(follower, Report):
                frames[position] = Report(follower.frame, follower.lost + lost)
            else:
                frames[position] = self._counting(follower, lost)

    def _counting(self, data: bytes, lost: int) -> bytes:
        """A queued frame that counts these lost ones too."""
        frame = Frame.FromString(data)
        frame.coalesced += lost
        counted = frame.SerializeToString()
        self._outbox.undelivered_bytes += len(counted) - len(data)
        return counted

    def _next(self) -> bytes:
        entry = self._frames[0]
        if not isinstance(entry, Report):
            return entry
        data, lost = entry
        if lost:
            data = self._counting(data, lost)
            self._frames[0] = Report(data, 0)
        return data


class Outbox:
    """The lanes of one stream, and the message that comes next.

    A control lane (call 0) goes first. The others take turns: each turn earns a lane `turn_bytes`, and it writes one frame
    once it has earned it, so neither many small frames nor few large ones keep others waiting. `on_ready` is called
    whenever the outbox becomes non-empty. Nothing here waits or copies a frame twice.
    """

    __slots__ = (
        "_abandoned",
        "_control",
        "_on_ready",
        "_turns",
        "_writing",
        "coalesced",
        "control_dropped",
        "frames",
        "largest_frame",
        "largest_report",
        "limits",
        "messages",
        "oversized_reports",
        "undelivered_bytes",
    )

    def __init__(self, limits: WireLimits, on_ready: Callable[[], None]) -> None:
        self.limits = limits
        self.largest_frame = limits.max_frame_bytes
        """The largest frame the peer takes; a peer may ask for less than the limit."""
        self.largest_report = limits.max_inline_bytes
        """The largest progress frame; a larger one is dropped."""
        self.undelivered_bytes = 0
        self.messages = 0
        self.frames = 0
        self.coalesced = 0
        self.oversized_reports = 0
        self.control_dropped = 0
        self._on_ready = on_ready
        self._control: deque[bytes] = deque()
        self._turns: deque[Lane] = deque()
        self._writing = 0
        self._abandoned = False

    @property
    def congested(self) -> bool:
        """Whether so much waits that nothing new should be started for this stream."""
        return self.undelivered_bytes > self.limits.undelivered_soft

    @property
    def overfull(self) -> bool:
        """Whether so much waits that large outcomes are to be refused and the peer is not to be read."""
        return self.undelivered_bytes > self.limits.undelivered_hard

    @property
    def empty(self) -> bool:
        """Whether nothing is queued; a message may still be on its way."""
        return not self._turns and not self._control

    def control(self, frame: Frame, *, droppable: bool = False) -> None:
        """Queues a frame on call 0. A droppable one is dropped and counted when many wait."""
        if droppable and len(self._control) >= self.limits.control_kept:
            self.control_dropped += 1
            return
        if self._abandoned:
            return
        frame.call = 0
        frame.time_unix_nano = time.time_ns()
        data = frame.SerializeToString()
        was_empty = self.empty
        self._control.append(data)
        self.undelivered_bytes += len(data)
        if was_empty:
            self._on_ready()

    def drain(self) -> bytes | None:
        """The next message, or `None` when nothing is queued. Its bytes count as undelivered until `delivered`."""
        parts: list[bytes] = []
        size = frames = 0
        limits = self.limits
        while self._control and frames < limits.message_frames and size < limits.message_bytes:
            data = self._control.popleft()
            parts += (header(len(data)), data)
            size += len(data)
            frames += 1
        turns = self._turns
        most_bytes = limits.message_bytes
        most_frames = limits.message_frames
        while turns and frames < most_frames and size < most_bytes:
            lane = turns[0]
            data = lane._next()
            length = len(data)
            credit = lane._credit + limits.turn_bytes
            if length > credit and len(turns) > 1:
                lane._credit = credit
                turns.rotate(-1)
                continue
            if size and size + length > most_bytes:
                break
            lane._credit = 0
            lane._frames.popleft()
            lane.handed_over += 1
            if lane._frames:
                turns.rotate(-1)
            else:
                turns.popleft()
            parts += (header(length), data)
            size += length
            frames += 1
        if not frames:
            return None
        self._writing += size
        self.messages += 1
        self.frames += frames
        return b"".join(parts)

    def delivered(self) -> None:
        """Says that the drained messages were taken by the transport."""
        self.undelivered_bytes -= self._writing
        self._writing = 0

    def abandon(self) -> None:
        """Drops all that is queued, and what is queued from now on."""
        self._abandoned = True
        self._control.clear()
        for lane in self._turns:
            lane._frames.clear()
        self._turns.clear()
        self.undelivered_bytes = self._writing

    def statistics(self) -> OutboxStatistics:
        """The state at this moment."""
        return OutboxStatistics(len(self._turns), self.undelivered_bytes, self.messages, self.frames, self.coalesced)

    def _queue(self, lane: Lane, entry: bytes | Report, size: int) -> None:
        if self._abandoned:
            return
        frames = lane._frames
        self.undelivered_bytes += size
        if frames:
            frames.append(entry)
            return
        was_empty = self.empty
        frames.append(entry)
        self._turns.append(lane)
        if was_empty:
            self._on_ready()

    def _shed(self, size: int) -> None:
        self.undelivered_bytes -= size
        self.coalesced += 1
