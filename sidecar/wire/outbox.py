"""What waits to be written to one stream: lanes of frames, drained fairly into messages."""

import logging
from collections import deque
from collections.abc import Callable
from time import time_ns
from typing import Final, NamedTuple

from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar.wire.batch import REPORT_HEADERS, SHORT_HEADERS, ReportHeader, header
from sidecar.wire.limits import WireLimits

_log = logging.getLogger(__name__)

_SMALLEST_LIMIT: Final = 4_096
_SHORT: Final = len(SHORT_HEADERS)
MOST_COUNTED: Final = 2**32 - 1
"""The most lost progress that a frame can say."""
_COUNT_BYTES: Final = 6
"""What the count of lost progress may add to a frame that is queued."""

# Taken from the class: an object of it looks for a method among its fields first.
_serialized: Final = Frame.SerializeToString


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

    __slots__ = (
        "_credit",
        "_entries",
        "_lost",
        "_lost_before_oldest",
        "_outbox",
        "_size",
        "call",
        "handed_over",
        "sequence",
    )

    def __init__(self, outbox: "Outbox", call: int) -> None:
        self.call = call
        self.sequence = 0
        """The sequence number of the newest frame."""
        self.handed_over = 0
        """How many frames were handed to the transport."""
        self._outbox = outbox
        self._entries: list[bytes] = []
        """What is queued, as it will be written: header, frame, header, frame."""
        self._size = 0
        """Bytes of the queued frames."""
        self._lost = 0
        """How many were lost since the newest was queued."""
        self._lost_before_oldest = 0
        """How many gave way just before the oldest progress that is queued."""
        self._credit = 0

    def send(self, frame: Frame) -> bool:
        """Queues a frame that is never lost. False: it is over the stream's largest and was not queued."""
        if self._lost:
            frame.coalesced = min(frame.coalesced + self._lost, MOST_COUNTED)
            self._lost = 0
        self.sequence = sequence = self.sequence + 1
        frame.call = self.call
        frame.sequence = sequence
        frame.time_unix_nano = time_ns()
        data = _serialized(frame)
        size = len(data)
        outbox = self._outbox
        if size > outbox.largest_frame:
            self.sequence = sequence - 1
            self._lost = frame.coalesced
            return False
        entries = self._entries
        if entries or outbox.gives_turn(self):
            entries += (SHORT_HEADERS[size] if size < _SHORT else header(size), data)
            self._size += size
            outbox.undelivered_bytes += size
        return True

    def report(self, frame: Frame) -> None:
        """Queues a progress frame. Older ones of this lane give way when too many wait, and the next frame says so.

        One whose payload is over the largest, or that comes while the outbox is overfull, is dropped and counted so.
        """
        if self._lost:
            frame.coalesced = min(frame.coalesced + self._lost, MOST_COUNTED)
            self._lost = 0
        self.sequence = sequence = self.sequence + 1
        frame.call = self.call
        frame.sequence = sequence
        frame.time_unix_nano = time_ns()
        data = _serialized(frame)
        size = len(data)
        outbox = self._outbox
        if size > outbox.largest_report and (
            size > outbox.largest_frame or len(frame.progress.payload) > outbox.largest_report
        ):
            self._lost = frame.coalesced + 1
            outbox.dropped_as_oversized(size)
            return
        undelivered = outbox.undelivered_bytes
        kept = outbox.progress_kept
        if undelivered > outbox.soft:
            if undelivered > outbox.hard:
                self._lost = frame.coalesced + 1
                outbox.coalesced += 1
                return
            kept = 1
        entries = self._entries
        if entries or outbox.gives_turn(self):
            entries += (REPORT_HEADERS[size] if size < _SHORT else ReportHeader(header(size)), data)
            self._size += size
            outbox.undelivered_bytes = undelivered + size
            if len(entries) > 2 * kept:
                self._shed(kept)

    def _shed(self, kept: int) -> None:
        """Drops the oldest progress until so many are left; what is behind each takes over its count."""
        entries = self._entries
        surplus = sum(isinstance(entry, ReportHeader) for entry in entries[::2]) - kept
        place = self._oldest_report()
        for _ in range(surplus):
            dropped = entries[place + 1]
            lost = self._lost_before_oldest + Frame.FromString(dropped).coalesced + 1
            del entries[place : place + 2]
            self._resize(-len(dropped))
            self._outbox.coalesced += 1
            self._lost_before_oldest = lost
            if not isinstance(entries[place], ReportHeader):
                self._settle_lost(place)
                place = self._oldest_report(place)

    def _oldest_report(self, start: int = 0) -> int:
        """Where the oldest queued progress is; there must be one at or behind the start."""
        entries = self._entries
        return next(place for place in range(start, len(entries), 2) if isinstance(entries[place], ReportHeader))

    def _settle_lost(self, place: int) -> None:
        """Has the frame at a place say how many were lost just before it."""
        entries = self._entries
        before = entries[place + 1]
        frame = Frame.FromString(before)
        frame.coalesced = min(frame.coalesced + self._lost_before_oldest, MOST_COUNTED)
        self._lost_before_oldest = 0
        entries[place + 1] = data = _serialized(frame)
        entries[place] = type(entries[place])(header(len(data)))
        self._resize(len(data) - len(before))

    def _resize(self, growth: int) -> None:
        self._size += growth
        self._outbox.undelivered_bytes += growth

    def _take(self, parts: list[bytes], most: int, credit: int, room: int) -> int:
        """Moves its first frames into a message: at most so many, and as far as credit and room reach.

        Answers how many. Credit that the next frame waits for is kept towards it.
        """
        entries = self._entries
        size = taken = 0
        self._credit = 0
        for data in entries[1 : 2 * most : 2]:
            size += len(data)
            if size > credit or size > room:
                size -= len(data)
                self._credit = credit - size
                break
            taken += 1
        parts += entries[: 2 * taken]
        del entries[: 2 * taken]
        self._size -= size
        self.handed_over += taken
        return taken

    def _clear(self) -> None:
        self._entries.clear()
        self._size = self._credit = 0


class Outbox:
    """The lanes of one stream, and the message that comes next.

    A control lane (call 0) goes first. The others take turns: each turn earns a lane `turn_bytes`, and it writes at
    most `turn_frames` frames that it has earned, so neither many small frames nor few large ones keep others waiting.
    `on_ready` is called whenever the outbox is about to become non-empty. Nothing here waits or copies a frame twice.
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
        data = _serialized(frame)
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
        data = _serialized(frame)
        was_empty = self.empty
        self._farewells.append(data)
        self.undelivered_bytes += len(data)
        if was_empty:
            self._on_ready()

    def drain(self) -> bytes | None:
        """The next message, or `None` when nothing is queued. Its bytes count as undelivered until `delivered`."""
        parts: list[bytes] = []
        size, frames = self._take_control(parts) if self._control else (0, 0)
        limits = self._limits
        most_bytes = limits.message_bytes
        most_frames = limits.message_frames
        turns = self._turns
        while turns and frames < most_frames and size < most_bytes:
            lane = turns.popleft()
            if lane._lost_before_oldest:
                lane._settle_lost(lane._oldest_report())
            entries = lane._entries
            count = len(entries) // 2
            length = credit = lane._size
            most = most_frames - frames
            if turns:
                credit = lane._credit + limits.turn_bytes
                most = min(most, limits.turn_frames)
            if count <= most and length <= credit and size + length <= most_bytes:
                parts += entries
                entries.clear()
                lane._size = lane._credit = 0
                lane.handed_over += count
            else:
                # The first frame of a message has room whatever its size.
                room = most_bytes - size if size else max(most_bytes, len(entries[1]))
                count = lane._take(parts, most, credit, room)
                length -= lane._size
                if not count and len(entries[1]) <= credit:
                    # It has earned its frame, and begins the next message with it.
                    turns.appendleft(lane)
                    break
                turns.append(lane)
            frames += count
            size += length
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

    def _take_control(self, parts: list[bytes]) -> tuple[int, int]:
        """Moves what is queued on call 0 into a message, as far as it has room; answers its bytes and frames."""
        control = self._control
        limits = self._limits
        size = frames = 0
        while control and frames < limits.message_frames and size < limits.message_bytes:
            data = control.popleft()
            length = len(data)
            parts += (header(length), data)
            size += length
            frames += 1
        return size, frames

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
            self.undelivered_bytes -= lane._size
            lane._clear()
        self._turns.clear()

    def abandon(self) -> None:
        """Drops all that is queued, and what is queued from now on."""
        self._abandoned = self._calls_abandoned = True
        self._control.clear()
        self._farewells.clear()
        for lane in self._turns:
            lane._clear()
        self._turns.clear()
        self.undelivered_bytes = self._writing

    def statistics(self) -> OutboxStatistics:
        """The state at this moment."""
        return OutboxStatistics(len(self._turns), self.undelivered_bytes, self.messages, self.frames, self.coalesced)

    def gives_turn(self, lane: Lane) -> bool:
        """Whether a lane that has nothing queued may queue a frame, and so takes turns from now on."""
        if self._calls_abandoned:
            return False
        turns = self._turns
        turns.append(lane)
        if len(turns) == 1 and not self._control:
            self._on_ready()
        return True
