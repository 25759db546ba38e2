"""What both hops say of the protocol itself: version, limits, errors of the stream."""

from typing import Protocol

from sidecar._gen.pillion.v1.call_pb2 import Limits, ProtocolVersion, StreamErrorReason
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar.wire.limits import WireLimits

PROTOCOL = ProtocolVersion(major=1, minor=0)
"""The one version spoken here."""


class Versions(Protocol):
    """A hello, as far as it states versions."""

    @property
    def minimum(self) -> ProtocolVersion:
        """The oldest version spoken; unset means 1.0."""
        ...

    @property
    def maximum(self) -> ProtocolVersion:
        """The newest version spoken; unset means 1.0."""
        ...


def agreed_version(hello: Versions) -> ProtocolVersion | None:
    """The newest version that both speak; `None` where there is none."""
    spoken = (PROTOCOL.major, PROTOCOL.minor)
    oldest = (hello.minimum.major or 1, hello.minimum.minor)
    newest = (hello.maximum.major or 1, hello.maximum.minor)
    return PROTOCOL if oldest <= spoken <= newest else None


def limits_message(limits: WireLimits, max_in_flight: int) -> Limits:
    """What a peer is told it may send."""
    return Limits(
        max_frame_bytes=limits.max_frame_bytes,
        max_inline_bytes=limits.max_inline_bytes,
        max_message_bytes=limits.max_message_bytes,
        max_in_flight=max_in_flight,
    )


def stream_error(reason: "StreamErrorReason.ValueType", message: str, call: int | None = None) -> Frame:
    """A frame that says what was wrong with one that belongs to no open call."""
    frame = Frame()
    error = frame.stream_error
    error.reason = reason
    error.message = message
    if call is not None:
        error.call = call
    return frame
