"""Batches and frame heads: what is joined comes back, and garbage is told from frames without reading far."""

from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sidecar._gen.pillion.v1.execute_pb2 import ExecuteRequest
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar.wire.batch import FrameHead, MalformedMessage, header, heads, join, parse
from tests.wire.frames import batch, outcome, progress, start

UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
UINT64 = st.integers(0, 2**64 - 1)
BODIES = {name for name, field in Frame.DESCRIPTOR.fields_by_name.items() if field.containing_oneof is not None}


@st.composite
def frames(draw: st.DrawFn) -> Frame:
    """A frame with any of a few bodies, or none."""
    payload = draw(st.binary(max_size=300))
    frame = draw(st.sampled_from((progress(payload), start(arguments=payload), outcome("x" * len(payload)), Frame())))
    frame.call = draw(UINT64)
    frame.sequence = draw(UINT64)
    frame.time_unix_nano = draw(UINT64)
    frame.coalesced = draw(st.integers(0, 2**32 - 1))
    return frame


@UNHURRIED
@given(st.lists(frames(), max_size=20))
def test_what_is_joined_is_parsed_again(batched: list[Frame]) -> None:
    message = join(frame.SerializeToString() for frame in batched)
    assert list(parse(message)) == batched
    assert message == ExecuteRequest(frames=batched).SerializeToString()


@UNHURRIED
@given(st.lists(frames(), max_size=20), st.integers(1, 30))
def test_heads_tell_call_body_and_size(batched: list[Frame], at_most: int) -> None:
    expected = [FrameHead(frame.call, frame.WhichOneof("body"), frame.ByteSize()) for frame in batched]
    assert heads(batch(*batched), at_most) == expected[:at_most]


@UNHURRIED
@given(st.binary(max_size=400), st.integers(1, 50))
@example(b"\x0a", 1)
@example(b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 1)
@example(b"\x0a\x01\x08", 1)
@example(b"\x0a\x0f\x08" + b"\xff" * 10 + b"\x5a\x02ab", 5)
def test_heads_of_garbage_are_bounded_and_never_raise(message: bytes, at_most: int) -> None:
    check_heads(heads(message, at_most), at_most)


@UNHURRIED
@given(st.lists(frames(), min_size=1, max_size=5), st.data())
def test_heads_of_damaged_messages_are_bounded_and_never_raise(batched: list[Frame], data: st.DataObject) -> None:
    damaged = bytearray(batch(*batched))
    for position in data.draw(st.lists(st.integers(0, max(len(damaged) - 1, 0)), max_size=8)):
        if damaged:
            damaged[position] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(damaged)))
    check_heads(heads(bytes(damaged[:cut]), 100), 100)


def check_heads(found: list[FrameHead], at_most: int) -> None:
    assert len(found) <= at_most
    for head in found:
        assert 0 <= head.call < 2**64
        assert head.body is None or head.body in BODIES
        assert head.size >= 0
        assert head.frame is None


@UNHURRIED
@given(st.lists(frames(), min_size=1, max_size=6), st.integers(0, 2_000))
def test_heads_of_a_cut_message_agree_with_those_of_the_whole(batched: list[Frame], cut: int) -> None:
    message = batch(*batched)
    whole, part = heads(message, 100), heads(message[:cut], 100)
    # The last of a message that was cut may not tell its call or body any more.
    assert part[:-1] == whole[: max(len(part) - 1, 0)]


class CountedBytes(bytes):
    """Bytes that count how many of them were looked at."""

    looks = 0

    def __getitem__(self, index: Any) -> Any:
        type(self).looks += 1
        return super().__getitem__(index)


@pytest.mark.parametrize(
    "filling",
    [b"\x08\x00", b"\x08\x80", b"\x80", b"\x00", b"\x09" + bytes(8), b"\x0d", b"\xff"],
    ids=["varints", "long varints", "endless varint", "zeros", "fixed64", "fixed32", "ones"],
)
def test_heads_never_read_far_into_a_frame(filling: bytes) -> None:
    size = 4_000_000
    body = (filling * (size // len(filling) + 1))[:size]
    CountedBytes.looks = 0
    found = heads(CountedBytes(header(size) + body), 4_096)
    assert [head.size for head in found] == [size]
    assert CountedBytes.looks < 200


def test_heads_stop_at_as_many_as_asked_for() -> None:
    CountedBytes.looks = 0
    assert len(heads(CountedBytes(header(0) * 1_000_000), 4_096)) == 4_096
    assert CountedBytes.looks < 10_000


def test_heads_stop_where_the_bytes_are_no_batch() -> None:
    good = batch(start(call=1), start(call=2))
    assert [head.call for head in heads(good + b"\x12\x00" + good, 100)] == [1, 2]
    assert [head.call for head in heads(good + b"\x0a" + b"\x80" * 20, 100)] == [1, 2]
    assert heads(b"", 100) == []
    assert heads(good, 0) == []


def test_the_last_of_repeated_calls_counts_as_it_does_when_parsed() -> None:
    frame = b"\x08\x01" + start(call=7).SerializeToString()
    message = header(len(frame)) + frame
    assert heads(message, 1)[0].call == parse(message)[0].call == 7


def test_a_call_that_is_no_number_is_told_as_none() -> None:
    for call in (b"\x08", b"\x08\x80", b"\x08" + b"\xff" * 10):
        frame = call
        assert [head.call for head in heads(header(len(frame)) + frame, 1)] == [0]


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_field_that_is_no_body_is_told_as_none(number: int) -> None:
    frame = bytes((number << 3 | 2, 3)) + b"abc"
    assert heads(header(len(frame)) + frame, 1) == [FrameHead(0, None, 5)]


def test_a_body_of_a_newer_protocol_is_told_as_none() -> None:
    frame = b"\x08\x05" + b"\xfa\x3e\x03abc"
    assert heads(header(len(frame)) + frame, 1) == [FrameHead(5, None, len(frame))]


@pytest.mark.parametrize(
    "length", [0, 1, 0x7F, 0x80, 0x81, 0x3FFF, 0x4000, 0x1FFFFF, 0x200000, 0xFFFFFFF, 0x10000000, 2**32, 2**63]
)
def test_a_header_is_the_tag_and_the_length_as_protobuf_writes_it(length: int) -> None:
    encoded = header(length)
    assert encoded[0] == 0x0A
    # Field 1 of a frame is a varint: protobuf's own encoding of the same number.
    assert encoded[1:] == (Frame(call=length).SerializeToString()[1:] or b"\x00")
    assert [head.size for head in heads(encoded, 1)] == [length]


@pytest.mark.parametrize("length", [0, 1, 0x7F, 0x80, 0x3FFF, 0x4000, 70_000])
def test_frames_of_every_length_of_header_come_back(length: int) -> None:
    sent = [progress(b"x" * length, call=1), outcome(call=2)]
    assert list(parse(batch(*sent))) == sent


@UNHURRIED
@given(st.binary(max_size=200))
def test_parsing_garbage_gives_frames_or_says_that_it_is_none(message: bytes) -> None:
    try:
        found = parse(message)
    except MalformedMessage:
        found = []
    assert all(isinstance(frame, Frame) for frame in found)


@pytest.mark.parametrize("message", [b"\x0a", b"\x0a\x05abc", b"\x0a\x01\x08", b"\x0b", b"\x00", b"\x0a\xff"])
def test_what_is_no_batch_is_malformed(message: bytes) -> None:
    with pytest.raises(MalformedMessage):
        parse(message)


def test_unknown_fields_of_a_message_are_passed_over() -> None:
    assert [frame.call for frame in parse(batch(start(call=3)) + b"\x12\x02hi")] == [3]
