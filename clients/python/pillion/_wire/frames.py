"""A gRPC message as a batch of frames, and the commonest frames as bytes.

`ExecuteRequest`, `ExecuteResponse`, `AttachRequest` and `AttachResponse` are the same bytes: field 1, repeated. So a
batch is the concatenation of its frames, each behind a tag and a length. Progress and plain results, which are most of
what a worker sends, are written here without a message object: a third of the time.
"""

from collections.abc import Sequence

from google.protobuf.message import DecodeError

from pillion._gen.pillion.v1.execute_pb2 import ExecuteResponse
from pillion._gen.pillion.v1.frame_pb2 import Frame

_SEVEN_BITS, _MORE = 0x7F, 0x80
_FRAMES_TAG = b"\x0a"
_CALL_TAG = b"\x08"
_MOST_LOST = 2**32 - 1


class Malformed(ValueError):
    """The message is not a batch of frames."""


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number >= _MORE:
        encoded.append(number & _SEVEN_BITS | _MORE)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


_SHORT = tuple(_varint(number) for number in range(1 << 11))
# A payload of fewer bytes has only lengths of this table around it.
_COMMON = len(_SHORT) - 32
_HEADERS = tuple(_FRAMES_TAG + each for each in _SHORT)


def varint(number: int) -> bytes:
    """A number as the wire has it."""
    return _SHORT[number] if number < len(_SHORT) else _varint(number)


def header(size: int) -> bytes:
    """The bytes in front of a frame of this size."""
    return _HEADERS[size] if size < len(_HEADERS) else _FRAMES_TAG + _varint(size)


def call_field(call: int) -> bytes:
    """The first field of each frame of a call."""
    return _CALL_TAG + _varint(call)


def packed(frame: bytes) -> bytes:
    """A frame as it stands in a message."""
    return header(len(frame)) + frame


def progress(call: bytes, payload: bytes) -> bytes:
    """A progress frame as it stands in a message; `call` is the call's field."""
    size = len(payload)
    if size < _COMMON:
        length = _SHORT[size]
        inner = _SHORT[size + 1 + len(length)]
        before = _HEADERS[len(call) + 3 + len(inner) + len(length) + size]
    else:
        length = varint(size)
        inner = varint(size + 1 + len(length))
        before = header(len(call) + 3 + len(inner) + len(length) + size)
    return b"%b%b\xb2\x01%b\x0a%b%b" % (before, call, inner, length, payload)


def result(call: bytes, json: bytes) -> bytes:
    """The outcome frame of a result that is one JSON value, as it stands in a message."""
    size = len(json)
    length = varint(size)
    result_size = size + 1 + len(length)
    result_length = varint(result_size)
    outcome_size = result_size + 1 + len(result_length)
    outcome_length = varint(outcome_size)
    return b"%b%b\xd2\x01%b\x0a%b\x0a%b%b" % (
        header(len(call) + 2 + len(outcome_length) + outcome_size),
        call,
        outcome_length,
        result_length,
        length,
        json,
    )


def counting(packed_frame: bytes, lost: int) -> bytes:
    """The same frame, as it stands in a message, that counts so many more lost ones."""
    frame = parse(packed_frame)[0]
    frame.coalesced = min(frame.coalesced + lost, _MOST_LOST)
    return packed(frame.SerializeToString())


def coalesced(packed_frame: bytes) -> int | None:
    """How many lost ones a progress frame counts; `None` for any other frame."""
    frame = parse(packed_frame)[0]
    return frame.coalesced if frame.WhichOneof("body") == "progress" else None


def parse(message: bytes) -> Sequence[Frame]:
    """The frames of a message, in order.

    :raises Malformed: if it is not a batch of frames.
    """
    try:
        return ExecuteResponse.FromString(message).frames
    except DecodeError:
        raise Malformed("not a batch of frames") from None
