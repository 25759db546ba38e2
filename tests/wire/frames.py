"""Frames as the tests make them and look at them."""

from collections.abc import Iterable

from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar.wire.batch import join, parse


def progress(payload: bytes = b"{}", *, call: int = 0, coalesced: int = 0) -> Frame:
    frame = Frame(call=call, coalesced=coalesced)
    frame.progress.payload = payload
    return frame


def outcome(reference: str = "done", *, call: int = 0) -> Frame:
    frame = Frame(call=call)
    frame.outcome.uploaded_reference = reference
    return frame


def start(tool: str = "echo", *, call: int = 1, arguments: bytes = b"") -> Frame:
    frame = Frame(call=call)
    frame.start.tool = tool
    frame.start.arguments = arguments
    return frame


def ping(nonce: int) -> Frame:
    frame = Frame()
    frame.ping.nonce = nonce
    return frame


def pong(nonce: int) -> Frame:
    frame = Frame()
    frame.pong.nonce = nonce
    return frame


def sized_outcome(size: int, *, call: int) -> Frame:
    """An outcome that has exactly this many bytes once a lane has stamped it."""
    stamped = outcome("", call=call)
    stamped.sequence = 1
    stamped.time_unix_nano = 1
    padding = size - stamped.ByteSize()
    while True:
        stamped.outcome.uploaded_reference = "x" * padding
        surplus = stamped.ByteSize() - size
        if surplus == 0:
            return outcome("x" * padding)
        padding -= surplus


def batch(*frames: Frame) -> bytes:
    """A message of these frames."""
    return join(frame.SerializeToString() for frame in frames)


def frames_of(messages: Iterable[bytes]) -> list[Frame]:
    """All frames of some messages, in order."""
    return [frame for message in messages for frame in parse(message)]


def payloads(frames: Iterable[Frame]) -> list[bytes]:
    """What progress was reported, in order."""
    return [frame.progress.payload for frame in frames if frame.HasField("progress")]
