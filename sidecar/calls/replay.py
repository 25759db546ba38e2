"""The newest frames of a call, kept for who follows it later."""

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from sidecar._gen.pillion.v1.frame_pb2 import Frame

BEHIND_STARTED = 2
"""The number of the first frame behind `Started`."""


class _Kept(NamedTuple):
    sequence: int
    lost: int
    """How many reports are lost with it: itself, if it is one, and those that it says were lost before it."""
    data: bytes


class KeptFrames:
    """The frames of one call between `Started` and its outcome: the newest, at most so many and so many bytes.

    Older ones give way, and the reports among them are counted.
    """

    __slots__ = ("_frames", "_lost", "_lost_to", "_most", "_most_bytes", "reports", "size")

    def __init__(self, most: int, most_bytes: int) -> None:
        self.size = 0
        """Bytes that are kept."""
        self.reports = 0
        """How many reports there were in all, kept or lost."""
        self._frames: deque[_Kept] = deque()
        self._most = most
        self._most_bytes = most_bytes
        self._lost = 0
        self._lost_to = 0

    def add(self, frame: Frame) -> None:
        """Keeps a frame, which is stamped and has no call id."""
        lost = frame.coalesced + frame.HasField("progress")
        self.reports += lost
        data = frame.SerializeToString()
        self._frames.append(_Kept(frame.sequence, lost, data))
        self.size += len(data)
        if self.size > self._most_bytes or len(self._frames) > self._most:
            self.shed(self._most_bytes)

    def shed(self, most_bytes: int) -> None:
        """Drops the oldest until at most so many bytes are left, and no more frames than may be kept."""
        frames = self._frames
        while frames and (self.size > most_bytes or len(frames) > self._most):
            dropped = frames.popleft()
            self.size -= len(dropped.data)
            self._lost += dropped.lost
            self._lost_to = dropped.sequence

    def lost_since(self, sequence: int) -> int:
        """How many reports from this number on gave way, at most: some may stand for others that never had one."""
        return lost_between(sequence, self._lost_to + 1, self._lost)

    def since(self, sequence: int) -> Iterator[Frame]:
        """What is kept from this number on, oldest first."""
        for kept in self._frames:
            if kept.sequence >= sequence:
                yield Frame.FromString(kept.data)


def lost_between(sequence: int, end: int, lost: int) -> int:
    """How many reports from one number on and before another were lost, where so many before that were lost in all.

    Who names a number has seen what was before it, and a frame for each number is all that can be missing.
    """
    return lost if sequence <= BEHIND_STARTED else max(min(lost, end - sequence), 0)
