"""A gRPC message as a batch of frames, and a frame as bytes.

`ExecuteRequest`, `ExecuteResponse`, `AttachRequest` and `AttachResponse` are the same bytes on the wire: field 1,
repeated. So a batch is the concatenation of its frames, each behind a tag and a length, and a queued frame is held as
its own bytes: its size is exact, and nothing else of the message that it came in stays alive.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from google.protobuf.message import DecodeError

from sidecar._gen.pillion.v1.execute_pb2 import ExecuteRequest
from sidecar._gen.pillion.v1.frame_pb2 import Frame

_FRAMES_TAG = 0x0A
SHORT_HEADERS = tuple(bytes((_FRAMES_TAG, length)) for length in range(0x80))
"""The bytes in front of a short frame, by its length."""
_TWO_BYTES = 1 << 14
_VARINT_BYTES = 10
_SEVEN_BITS, _MORE = 0x7F, 0x80
_CALL = 1
# The fields in front of a body: three varints and a fixed64, each behind one byte.
_BEFORE_BODY = 64
_UINT64 = 2**64 - 1
_VARINT, _FIXED64, _LENGTH_DELIMITED = 0, 1, 2


class ReportHeader(bytes):
    """What goes in front of a progress frame, which may give way to a newer one."""

    __slots__ = ()


REPORT_HEADERS = tuple(map(ReportHeader, SHORT_HEADERS))
"""The same, in front of progress."""


class MalformedMessage(ValueError):
    """The message is not a batch of frames."""


class FrameHead(NamedTuple):
    """What can be told of a frame without parsing it."""

    call: int
    """Its call; 0 where that cannot be told."""
    body: str | None
    """The name of its body; `None` where that cannot be told."""
    size: int
    """Its length in bytes."""
    frame: Frame | None = None
    """The frame itself, where it was parsed all the same."""


def header(length: int) -> bytes:
    """The bytes in front of a frame of this length."""
    if length < len(SHORT_HEADERS):
        return SHORT_HEADERS[length]
    if length < _TWO_BYTES:
        return bytes((_FRAMES_TAG, length & _SEVEN_BITS | _MORE, length >> 7))
    encoded = bytearray((_FRAMES_TAG,))
    while length >= _MORE:
        encoded.append(length & _SEVEN_BITS | _MORE)
        length >>= 7
    encoded.append(length)
    return bytes(encoded)


def join(frames: Iterable[bytes]) -> bytes:
    """The message that holds these frames, in order."""
    parts: list[bytes] = []
    for frame in frames:
        parts.append(header(len(frame)))
        parts.append(frame)
    return b"".join(parts)


def parse(message: bytes) -> Sequence[Frame]:
    """The frames of a message, in order.

    :raises MalformedMessage: if it is not a batch of frames.
    """
    try:
        return ExecuteRequest.FromString(message).frames
    except DecodeError:
        raise MalformedMessage("not a batch of frames") from None


def heads(message: bytes, at_most: int) -> list[FrameHead]:
    """The first frames of a message, by call and size, read without parsing their bodies.

    For messages too large to be parsed. Stops, without raising, at `at_most` frames or where the bytes are no batch.
    """
    found: list[FrameHead] = []
    position = 0
    while position < len(message) and len(found) < at_most:
        if message[position] != _FRAMES_TAG:
            break
        size, position = _varint(message, position + 1)
        if size < 0:
            break
        found.append(_head(message, position, size))
        position += size
    return found


def _head(message: bytes, position: int, size: int) -> FrameHead:
    """The head of the frame at a position: serialisers write the fields in order, the small ones before the body."""
    call = 0
    end = min(position + size, position + _BEFORE_BODY, len(message))
    while position < end:
        key, position = _varint(message, position)
        number, wire_type = key >> 3, key & 7
        if wire_type == _LENGTH_DELIMITED:
            field = Frame.DESCRIPTOR.fields_by_number.get(number)
            return FrameHead(call, field.name if field is not None and field.containing_oneof else None, size)
        if wire_type == _FIXED64:
            position += 8
        elif wire_type == _VARINT:
            value, position = _varint(message, position)
            if value < 0:
                break
            call = value & _UINT64 if number == _CALL else call
        else:
            break
    return FrameHead(call, None, size)


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """The number at a position and the position behind it; -1 where there is none."""
    value = 0
    for index in range(_VARINT_BYTES):
        if position >= len(data):
            break
        byte = data[position]
        position += 1
        value |= (byte & _SEVEN_BITS) << (7 * index)
        if byte < _MORE:
            return value, position
    return -1, position
