"""Frames made once and sent many times: only the call id changes.

The load generators share two cores with the sidecar, so they must not spend what they measure. A batch is
`repeated Frame frames = 1` in every message of both hops: frames that are serialised apart and joined are a valid one.
"""

from __future__ import annotations

from bench.bare.stubs import Frame

_FRAMES_TAG = b"\x0a"
_CALL_TAG = b"\x08"


def varint(value: int) -> bytes:
    """The protobuf encoding of a non-negative integer."""
    if value < 1 << 7:
        return bytes((value,))
    if value < 1 << 14:
        return bytes((value & 127 | 128, value >> 7))
    if value < 1 << 21:
        return bytes((value & 127 | 128, value >> 7 & 127 | 128, value >> 14))
    return bytes((value & 127 | 128,)) + varint(value >> 7)


def batch(*frames: Frame) -> bytes:
    """A message that holds `frames`, joinable with other messages."""
    bodies = [frame.SerializeToString() for frame in frames]
    return b"".join(_FRAMES_TAG + varint(len(body)) + body for body in bodies)


class Template:
    """One call's `frames`, serialised without their call id; `fill` puts it in."""

    def __init__(self, *frames: Frame) -> None:
        self._bodies = [frame.SerializeToString() for frame in frames]
        self._forms = [self._form(length) for length in range(1, 11)]
        self._copies = len(frames)

    def _form(self, length: int) -> bytes:
        return b"".join(
            _literal(_FRAMES_TAG + varint(1 + length + len(body)) + _CALL_TAG) + b"%b" + _literal(body)
            for body in self._bodies
        )

    def fill(self, call: int) -> bytes:
        """The frames as a message, each of them for `call`."""
        number = varint(call)
        return self._forms[len(number) - 1] % ((number,) * self._copies)


def _literal(text: bytes) -> bytes:
    """`text` as a format that yields it: a length or a payload may hold the byte of a percent sign."""
    return text.replace(b"%", b"%%")
