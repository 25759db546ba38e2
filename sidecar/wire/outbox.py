"""What waits to be written to one stream: lanes of frames, drained fairly into messages."""

import logging
from collections import deque
from collections.abc import Callable
from time import time_ns
from typing import NamedTuple

from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar.wire.batch import SHORT_HEADERS, header
from sidecar.wire.limits import WireLimits

_log = logging.getLogger(__name__)

_SMALLEST_LIMIT = 4_096
_LONG = 64

_MOST_COUNTED = 2**32 - 1
_COUNT_BYTES = 6
"""What the count of lost progress may add to a frame that is queued."""

_Report = tuple[bytes, int]
"""A queued progress frame, which may give way to a newer one, and how many were lost just before it."""


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
        # A list: a lane holds few frames, and there is a lane for each call. A long one becomes a deque.
        self._frames: list[bytes | _Report] | deque[bytes | _Report] = []
        self._lost = 0
        self._credit = 0

    def send(self, frame: Frame) -> bool:
        """Queues a frame that is never lost. False: it is over the stream's largest and was not queued."""
        if self._lost:
            frame.coalesced = min(frame.coalesced + self._lost, _MOST_COUNTED)
            self._lost = 0
        self.sequence = sequence = self.sequence + 1
        frame.call = self.call
        frame.sequence = sequence
        frame.time_unix_nano = time_ns()
        data = frame.SerializeToString()
        size = len(data)
        if size > self._outbox.largest_frame:
            self.sequence = sequence - 1
            self._lost = frame.coalesced
            return False
        self._outbox._queue(self, data, size)
        return True

    def report(self, frame: Frame) -> None:
        """Queues a progress frame. Older ones of this lane give way when too many wait, and the next frame says so.

        One whose payload is over the largest, or that comes while the outbox is overfull, is dropped and counted so.
        """
        outbox = self._outbox
        lost = self._lost
        if frame.coalesced:
            lost += frame.coalesced
            frame.coalesced = 0
        self.sequence = sequence = self.sequence + 1
        frame.call = self.call
        frame.sequence = sequence
        frame.time_unix_nano = time_ns()
        data = frame.SerializeToString()
        size = len(data)
        if size > outbox.largest_report and (
            size > outbox.largest_frame or len(frame.progress.payload) > outbox.largest_report
        ):
            self._lost = lost + 1
            outbox.dropped_as_oversized(size)
            return
        if outbox.undelivered_bytes > outbox.hard:
            self._lost = lost + 1
            outbox.coalesced += 1
            return
        self._lost = 0
        outbox._queue(self, (data, lost), size)
        if len(self._frames) > 1:
            kept = 1 if outbox.undelivered_bytes > outbox.soft else outbox.progress_kept
            if len(self._frames) > kept:
                self._shed(kept)

    def _shed(self, kept: int) -> None:
        """Drops the oldest progress until `kept` are left; the frame behind each takes over its count."""
        frames = self._frames
        surplus = sum(isinstance(entry, tuple) for entry in frames) - kept
        position = 0
        while surplus > 0:
            entry = frames[position]
            if not isinstance(entry, tuple):
                position += 1
                continue
            del frames[position]
            surplus -= 1
            data, lost = entry
            self._outbox.undelivered_bytes -= len(data)
            self._outbox.coalesced += 1
            follower = frames[position]
            if isinstance(follower, tuple):
                frames[position] = (follower[0], follower[1] + lost + 1)
            else:
                frames[position] = self._counting(follower, lost + 1)

    def _counting(self, data: bytes, lost: int) -> bytes:
        """A queued frame that counts these lost ones too."""
        frame = Frame.FromString(data)
        frame.coalesced = min(frame.coalesced + lost, _MOST_COUNTED)
        counted = frame.SerializeToString()
        self._outbox.undelivered_bytes += len(counted) - len(data)
        return counted

    def _first(self) -> bytes:
        """The next frame, as it will be written."""
        entry = self._frames[0]
        if not isinstance(entry, tuple):
            return entry
        data, lost = entry
        if lost:
            data = self._frames[0] = self._counting(data, lost)
        return data


class Outbox:
    """The lanes of one stream, and the message that comes next.

    A control lane (call 0) goes first. The others take turns: each turn earns a lane `turn_bytes`, and it writes one
    frame once it has earned it, so neither many small frames nor few large ones keep others waiting. `on_ready` is
    called whenever the outbox becomes non-empty. Nothing here waits or copies a frame twice.
    """

    def __init__(self, limits: WireLimits, on_ready: Callable[[], None]) -> None:
        self.largest_frame = limits.max_frame_bytes + limits.envelope_bytes
        """The largest frame that is sent: one that came at the limit, stamped; less where the peer asks for less."""
        self.largest_report = min(limits.max_inline_bytes, limits.max_frame_bytes)
        """The largest payload of progress; a larger one is dropped."""
        self.soft = limits.undelivered_soft
        self.hard = limits.undelivered_hard
        self.progress_kept = limits.progress_kept
        self.undelivered_bytes = 0
        """Bytes queued or being written."""
        self.messages = 0
        self.frames = 0
        self.coalesced = 0
        self.oversized_reports = 0
        """Progress frames dropped because they were over the largest."""
        self.control_dropped = 0
        """Droppable frames on call 0 that gave way."""
        self._limits = limits
        self._on_ready = on_ready
        self._control: deque[bytes] = deque()
        self._farewells: deque[bytes] = deque()
        self._turns: deque[Lane] = deque()
        self._writing = 0
        self._abandoned = False
        self._calls_abandoned = False

    @property
    def empty(self) -> bool:
        """Whether nothing is queued; a message may still be on its way."""
        return not self._turns and not self._control and not self._farewells

    @property
    def congested(self) -> bool:
        """Whether so much waits that nothing new should be started for this stream."""
        return self.undelivered_bytes > self.soft

    @property
    def overfull(self) -> bool:
        """Whether so much waits that large outcomes are to be refused and the peer is not to be read."""
        return self.undelivered_bytes > self.hard

    def control(self, frame: Frame, *, droppable: bool = False) -> None:
        """Queues a frame on call 0. A droppable one is dropped and counted when many wait."""
        if droppable and len(self._control) >= self._limits.control_kept:
            self.control_dropped += 1
            return
        if self._abandoned:
            return
        frame.call = 0
        frame.time_unix_nano = time_ns()
        data = frame.SerializeToString()
        was_empty = not self._turns and not self._control
        self._control.append(data)
        self.undelivered_bytes += len(data)
        if was_empty:
            self._on_ready()

    def farewell(self, frame: Frame) -> None:
        """Queues a frame on call 0 behind everything else: it is written once nothing else is queued."""
        if self._abandoned:
            return
        frame.call = 0
        frame.time_unix_nano = time_ns()
        data = frame.SerializeToString()
        was_empty = self.empty
        self._farewells.append(data)
        self.undelivered_bytes += len(data)
        if was_empty:
            self._on_ready()

    def drain(self) -> bytes | None:
        """The next message, or `None` when nothing is queued. Its bytes count as undelivered until `delivered`."""
        parts: list[bytes] = []
        size = frames = 0
        limits = self._limits
        most_bytes = limits.message_bytes
        most_frames = limits.message_frames
        control = self._control
        while control and frames < most_frames and size < most_bytes:
            data = control.popleft()
            length = len(data)
            parts += (header(length), data)
            size += length
            frames += 1
        turns = self._turns
        turn_bytes = limits.turn_bytes
        while turns and frames < most_frames and size < most_bytes:
            lane = turns[0]
            entry = lane._frames[0]
            data = entry if isinstance(entry, bytes) else lane._first()
            length = len(data)
            credit = lane._credit + turn_bytes
            if length > credit and len(turns) > 1:
                lane._credit = credit
                turns.rotate(-1)
                continue
            if size and size + length > most_bytes:
                break
            lane._credit = 0
            del lane._frames[0]
            lane.handed_over += 1
            if lane._frames:
                turns.rotate(-1)
            else:
                turns.popleft()
            parts += (SHORT_HEADERS[length] if length < len(SHORT_HEADERS) else header(length), data)
            size += length
            frames += 1
        if not frames:
            if not self._farewells:
                return None
            data = self._farewells.popleft()
            parts += (header(len(data)), data)
            size = len(data)
            frames = 1
        self._writing += size
        self.messages += 1
        self.frames += frames
        return b"".join(parts)

    def delivered(self) -> None:
        """Says that the drained messages were taken by the transport."""
        self.undelivered_bytes -= self._writing
        self._writing = 0

    def limit_frames(self, most: int) -> None:
        """Sends no larger frames than the peer says it takes; never less than what an outcome needs to say why.

        A frame leaves room for what it may have to count once others have given way.
        """
        self.largest_frame = min(self.largest_frame, max(most, _SMALLEST_LIMIT) - _COUNT_BYTES)
        self.largest_report = min(self.largest_report, self.largest_frame)

    def dropped_as_oversized(self, size: int) -> None:
        """Counts a progress frame of this size that was not queued; warns of the first."""
        self.coalesced += 1
        self.oversized_reports += 1
        if self.oversized_reports == 1:
            _log.warning("a progress frame of %d bytes was dropped; its payload may have %d", size, self.largest_report)

    def abandon_calls(self) -> None:
        """Drops what is queued on lanes, and what is queued on them from now on. The control lane goes on."""
        self._calls_abandoned = True
        for lane in self._turns:
            self.undelivered_bytes -= sum(
                len(entry) if isinstance(entry, bytes) else len(entry[0]) for entry in lane._frames
            )
            lane._frames.clear()
        self._turns.clear()

    def abandon(self) -> None:
        """Drops all that is queued, and what is queued from now on."""
        self._abandoned = self._calls_abandoned = True
        self._control.clear()
        self._farewells.clear()
        for lane in self._turns:
            lane._frames.clear()
        self._turns.clear()
        self.undelivered_bytes = self._writing

    def statistics(self) -> OutboxStatistics:
        """The state at this moment."""
        return OutboxStatistics(len(self._turns), self.undelivered_bytes, self.messages, self.frames, self.coalesced)

    def _queue(self, lane: Lane, entry: bytes | _Report, size: int) -> None:
        if self._calls_abandoned:
            return
        self.undelivered_bytes += size
        frames = lane._frames
        frames.append(entry)
        waiting = len(frames)
        if waiting == _LONG:
            # Taking the first out of a long list moves all others.
            lane._frames = deque(frames)
        elif waiting == 1:
            turns = self._turns
            turns.append(lane)
            if len(turns) == 1 and not self._control:
                self._on_ready()
