"""The frames of a call that is followed, on their way to one stream."""

from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar.wire.batch import ReportHeader, header
from sidecar.wire.outbox import MOST_COUNTED, Lane


class ReplayLane(Lane):
    """A lane for frames that are stamped already: each keeps its number and time, and has its call's id on this stream.

    In all else it is as any other.
    """

    __slots__ = ()

    def send(self, frame: Frame) -> bool:
        """Queues a frame that is never lost. False: it is over the stream's largest and was not queued."""
        data = self._serialized(frame)
        if len(data) > self._outbox.largest_frame:
            self._lost = frame.coalesced
            return False
        self._queue(header(len(data)), data)
        return True

    def report(self, frame: Frame) -> None:
        """Queues a progress frame. Older ones give way when too many wait, as on any lane."""
        data = self._serialized(frame)
        outbox = self._outbox
        if self._is_too_large(frame, data):
            return
        if outbox.overfull:
            self._lost = frame.coalesced + 1
            outbox.coalesced += 1
            return
        kept = 1 if outbox.congested else outbox.progress_kept
        if self._queue(ReportHeader(header(len(data))), data) and len(self._entries) > 2 * kept:
            self._shed(kept)

    def missed(self, count: int) -> None:
        """So many progress frames are not sent here; the next frame says so."""
        self._lost += count

    def replay(self, frame: Frame) -> None:
        """Queues a frame that was kept, and that gives way to none. Progress over the largest is counted as lost."""
        data = self._serialized(frame)
        if not self._is_too_large(frame, data):
            self._queue(header(len(data)), data)

    def _serialized(self, frame: Frame) -> bytes:
        if self._lost:
            frame.coalesced = min(frame.coalesced + self._lost, MOST_COUNTED)
            self._lost = 0
        self.sequence = frame.sequence
        frame.call = self.call
        return frame.SerializeToString()

    def _is_too_large(self, frame: Frame, data: bytes) -> bool:
        """Whether a frame is over what the stream takes; it is dropped then, and counted if it is a report."""
        outbox = self._outbox
        is_report = frame.HasField("progress")
        if len(data) <= outbox.largest_frame and (
            not is_report or len(frame.progress.payload) <= outbox.largest_report
        ):
            return False
        self._lost = frame.coalesced
        if is_report:
            self._lost += 1
            outbox.dropped_as_oversized(len(data))
        return True

    def _queue(self, header: bytes, data: bytes) -> bool:
        """Queues a frame. False: it goes nowhere, since the stream is given up."""
        entries = self._entries
        if not entries and not self._outbox.gives_turn(self):
            return False
        entries += (header, data)
        self._resize(len(data))
        return True
