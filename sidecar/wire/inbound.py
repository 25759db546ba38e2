"""What comes in on a stream: frames, each handed to who takes it."""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, Protocol

from sidecar._gen.pillion.v1.call_pb2 import StreamErrorReason
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar.wire.batch import FrameHead

# Taken from the class: an object of it looks for a method among its fields first.
_body_of: Final = Frame.WhichOneof


class Receiver(Protocol):
    """Takes what comes in on a stream. Nothing here may wait; an exception is logged, and the stream goes on."""

    handlers: Mapping[str | None, Callable[[Frame], None]]
    """What to do with a frame, by the name of its body. Looked at for each frame; pings and pongs are the stream's."""
    large_bodies: Collection[str]
    """Bodies of frames that may fill a whole message, because they come once and not for a call."""

    def misdirected(self, frame: Frame, body: str) -> None:
        """A frame came whose body has no handler: it is illegal in this direction."""
        ...

    def oversized(self, head: FrameHead) -> None:
        """A frame came that is over a limit, alone or within a message that is. Its body is not looked at."""
        ...

    def unreadable(self, reason: "StreamErrorReason.ValueType") -> None:
        """A message came that is too large or no batch of frames. Follows `oversized` for what could be told of it."""
        ...

    def relieved(self) -> None:
        """So much was taken by the peer that the outbox is no longer congested."""
        ...

    def half_closed(self) -> None:
        """The peer will send no more, and still reads."""
        ...

    def unresponsive(self) -> None:
        """The peer answered none of the last pings. Told once."""
        ...

    def ended(self) -> None:
        """The stream is over, once. What is still open on it is lost."""
        ...


class Stream(Protocol):
    """The stream that frames come in on, which takes what its receiver does not. None of this raises."""

    closed: bool
    """Whether nothing more is to be handed on."""

    def refuse_frame(self, receiver: Receiver, frame: Frame, body: str | None, size: int) -> None:
        """Takes a frame of so many bytes, which is over the largest."""
        ...

    def receive_other(self, receiver: Receiver, frame: Frame, body: str | None) -> None:
        """Takes a frame that the receiver has no handler for."""
        ...

    def failed(self) -> None:
        """Takes note of an exception that a frame was dropped for."""
        ...


def hand_on(frames: Iterable[Frame], stream: Stream, receiver: Receiver, largest: int | None) -> None:
    """Hands frames to the receiver, in order, until the stream is closed.

    `largest`: how many bytes one may have, where that is to be looked at.
    """
    for frame in frames:
        body = _body_of(frame, "body")
        if largest is not None and (size := frame.ByteSize()) > largest and body not in receiver.large_bodies:
            stream.refuse_frame(receiver, frame, body, size)
            continue
        handle = receiver.handlers.get(body)
        try:
            if handle is not None:
                handle(frame)
            else:
                stream.receive_other(receiver, frame, body)
        except Exception:
            stream.failed()
        if stream.closed:
            return
