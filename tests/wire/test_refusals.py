"""What is over a limit or cannot be read is refused alone, and the stream goes on."""

import asyncio
from itertools import pairwise

import pytest

from sidecar._gen.pillion.v1.call_pb2 import StreamErrorReason
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar.wire.batch import FrameHead, header, parse
from sidecar.wire.limits import KIB, MIB, WireLimits
from sidecar.wire.outbox import Lane, Outbox
from sidecar.wire.transport import StreamLost
from tests.wire.conftest import Opens
from tests.wire.frames import batch, outcome, progress, sized_outcome, start
from tests.wire.links import Link

TOO_LARGE = StreamErrorReason.STREAM_ERROR_REASON_MESSAGE_TOO_LARGE
MALFORMED = StreamErrorReason.STREAM_ERROR_REASON_MALFORMED_MESSAGE


async def test_a_frame_over_the_largest_is_not_sent_and_its_neighbours_are(link: Link) -> None:
    before, large, after = (link.stream.lane(call) for call in (1, 2, 3))
    assert before.send(outcome())
    assert not large.send(sized_outcome(link.outbox.largest_frame + 1, call=2))
    assert large.send(outcome("too large"))
    assert after.send(outcome())
    assert [(frame.call, frame.sequence) for frame in await link.frames(3)] == [(1, 1), (2, 1), (3, 1)]


async def test_a_frame_of_exactly_the_largest_size_is_sent_and_received(open_stream: Opens) -> None:
    link = await open_stream()
    # What came at the limit may be passed on, with stamps that make it larger.
    assert link.outbox.largest_frame == MIB + WireLimits().envelope_bytes
    assert link.stream.lane(1).send(sized_outcome(link.outbox.largest_frame, call=1))
    (frame,) = await link.message()
    assert frame.ByteSize() == link.outbox.largest_frame
    sent = start(call=1)
    sent.start.arguments = b"x" * (MIB - sent.ByteSize() - 4)
    sent.start.arguments += b"x" * (MIB - sent.ByteSize())
    assert sent.ByteSize() == MIB
    await link.send(sent)
    await link.receiver.until_calls(1)
    assert link.receiver.heads == []


async def test_a_peer_may_ask_for_smaller_frames_of_every_kind(link: Link) -> None:
    link.outbox.limit_frames(5 * KIB)
    lane = link.stream.lane(1)
    assert not lane.send(sized_outcome(5 * KIB + 1, call=1))
    lane.report(progress(b"x" * 8 * KIB))
    assert lane.send(outcome())
    (frame,) = await link.frames(1)
    assert frame.WhichOneof("body") == "outcome"
    assert frame.coalesced == 1


def test_a_peer_may_not_ask_for_frames_too_small_to_say_why_or_larger_than_the_limit() -> None:
    outbox = Outbox(WireLimits(), lambda: None)
    largest = outbox.largest_frame
    outbox.limit_frames(10 * largest)
    assert outbox.largest_frame == largest
    outbox.limit_frames(1)
    assert 4_000 < outbox.largest_frame <= 4 * KIB


@pytest.mark.parametrize("lost", [1, 1_000, 2**32 - 1])
def test_a_frame_that_comes_to_count_others_is_within_what_the_peer_takes(lost: int) -> None:
    outbox = Outbox(WireLimits(progress_kept=1), lambda: None)
    outbox.limit_frames(5 * KIB)
    lane = Lane(outbox, 1)
    lane.report(progress(b"given way", coalesced=lost - 1))
    assert lane.send(sized_outcome(outbox.largest_frame, call=1))
    lane.report(progress(b"newer"))
    message = outbox.drain()
    assert message is not None
    frame, newer = parse(message)
    assert newer.progress.payload == b"newer"
    assert (frame.WhichOneof("body"), frame.coalesced) == ("outcome", lost)
    assert 5 * KIB - 6 < frame.ByteSize() <= 5 * KIB


async def test_progress_of_exactly_the_inline_limit_is_sent(link: Link) -> None:
    lane = link.stream.lane(1)
    lane.report(progress(b"x" * (64 * KIB + 1)))
    lane.report(progress(b"x" * 64 * KIB))
    (frame,) = await link.message()
    assert (len(frame.progress.payload), frame.coalesced) == (64 * KIB, 1)


async def test_progress_over_the_inline_limit_is_dropped_and_the_next_frame_says_so(link: Link) -> None:
    lane = link.stream.lane(1)
    lane.report(progress(b"first"))
    lane.report(progress(b"x" * 70 * KIB))
    lane.report(progress(b"last"))
    frames = await link.frames(2)
    assert [(frame.progress.payload, frame.coalesced) for frame in frames] == [(b"first", 0), (b"last", 1)]
    assert link.outbox.oversized_reports == 1


async def test_a_received_frame_over_the_largest_is_refused_alone(link: Link) -> None:
    large = start(call=2, arguments=b"x" * MIB)
    await link.send(start(call=1), large, start(call=3))
    await link.receiver.until_calls(1, 3)
    (head,) = link.receiver.heads
    assert (head.call, head.body, head.size) == (2, "start", large.ByteSize())
    assert head.frame == large
    assert link.counters["oversized_frames"] == 1


async def test_a_message_over_the_largest_is_refused_and_each_of_its_calls_told(link: Link) -> None:
    frames = [start(call=call, arguments=b"x" * 900 * KIB) for call in range(1, 20)]
    await link.send(start(call=100))
    await link.send(*frames)
    await link.send(start(call=101))
    await link.receiver.until_calls(100, 101)
    assert link.receiver.heads == [FrameHead(frame.call, "start", frame.ByteSize()) for frame in frames]
    assert link.receiver.reasons == [TOO_LARGE]
    assert link.receiver.told == ["oversized"] * 19 + ["unreadable"]
    assert link.counters["oversized_messages"] == 1


async def test_a_message_of_exactly_the_largest_size_is_read(link: Link) -> None:
    frames = [start(call=call, arguments=b"x" * 1000 * KIB) for call in range(1, 17)]
    room = 16 * MIB - len(batch(*frames))
    last = start(call=17, arguments=b"x" * (room - 100))
    while (surplus := room - len(batch(last))) > 0:
        last.start.arguments += b"x" * surplus
    message = batch(*frames, last)
    assert len(message) == 16 * MIB
    await link.peer.write(message)
    await link.receiver.until_calls(*range(1, 18))
    assert link.receiver.told == []


async def test_of_a_message_over_the_largest_4096_frames_are_told_in_turns(link: Link) -> None:
    seen: list[int] = []

    async def look() -> None:
        while not link.receiver.reasons:
            seen.append(len(link.receiver.heads))
            await asyncio.sleep(0)

    looking = asyncio.ensure_future(look())
    await link.send(*(start(call=call, arguments=b"x" * 2 * KIB) for call in range(1, 10_001)))
    await link.send(start(call=20_000))
    await link.receiver.until_calls(20_000)
    await looking
    assert [head.call for head in link.receiver.heads] == list(range(1, 4_097))
    assert link.receiver.reasons == [TOO_LARGE]
    assert max(after - before for before, after in pairwise(seen)) == 256


async def test_a_message_over_the_largest_that_is_no_batch_is_told_and_the_stream_goes_on(link: Link) -> None:
    await link.peer.write(b"\x12" * (16 * MIB + 1))
    await link.peer.write(header(17 * MIB) + b"\x08\x01" * (17 * MIB // 2))
    await link.send(start(call=1))
    await link.receiver.until_calls(1)
    assert link.receiver.heads == [FrameHead(1, None, 17 * MIB)]
    assert link.receiver.reasons == [TOO_LARGE, TOO_LARGE]
    assert link.counters["malformed_messages"] == 0


@pytest.mark.parametrize("kind", ["unix", "tcp"], indirect=True)
async def test_a_message_over_64_mib_is_a_lost_stream(link: Link) -> None:
    await link.peer.write(header(64 * MIB) + bytes(64 * MIB))
    await link.ended()
    assert link.receiver.frames == []
    assert link.receiver.heads == []
    assert link.receiver.reasons == []
    with pytest.raises(StreamLost):
        await link.peer.read()


@pytest.mark.parametrize("message", [b"\x0a\x7f\x08", b"\xff\xff", b"\x0b", b"\x0a\x02\x08\x80", b"hello"])
async def test_a_malformed_message_is_told_and_the_stream_goes_on(link: Link, message: bytes) -> None:
    await link.send(start(call=1))
    await link.peer.write(message)
    await link.send(start(call=2))
    await link.receiver.until_calls(1, 2)
    assert link.receiver.reasons == [MALFORMED]
    assert link.receiver.heads == []
    assert link.counters["malformed_messages"] == 1


async def test_an_empty_message_is_an_empty_batch(link: Link) -> None:
    await link.peer.write(b"")
    await link.send(start(call=1))
    await link.receiver.until_calls(1)
    assert link.receiver.told == []


async def test_unknown_frames_are_ignored_and_counted(link: Link) -> None:
    unknown = b"\x08\x05" + b"\xfa\x3e\x03abc"  # call 5, field 1007
    await link.peer.write(header(len(unknown)) + unknown + batch(start(call=6), Frame(call=7)))
    await link.receiver.until_calls(6)
    assert link.receiver.told == []
    await link.settled()
    assert link.counters["unknown_frames"] == 2


async def test_a_frame_in_the_wrong_direction_is_misdirected(link: Link) -> None:
    await link.send(outcome(call=4), start(call=5))
    await link.receiver.until_calls(5)
    ((frame, body),) = link.receiver.strays
    assert (frame.call, body) == (4, "outcome")


@pytest.mark.parametrize("what", ["misdirected", "handler", "oversized", "unreadable"])
async def test_an_exception_of_the_receiver_is_logged_and_the_stream_goes_on(
    link: Link, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    def fail(*_args: object) -> None:
        raise RuntimeError("on purpose")

    receiver = link.receiver
    if what == "handler":
        receiver.on_frame = lambda frame: fail() if frame.call == 1 else None
        await link.send(start(call=1))
    else:
        setattr(receiver, what, fail)
        await link.peer.write(
            {
                "misdirected": batch(outcome(call=1)),
                "oversized": batch(start(call=1, arguments=b"x" * 2 * MIB)),
                "unreadable": b"\xff",
            }[what]
        )
    await link.send(start(call=2))
    await receiver.until(lambda: 2 in receiver.calls)
    assert link.counters["internal_errors"] == 1
    (record,) = [record for record in caplog.records if record.name == "sidecar.wire.stream"]
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "on purpose"


async def test_a_long_message_leaves_the_loop_to_others_every_256_frames(open_stream: Opens) -> None:
    link = await open_stream(WireLimits())
    seen: list[int] = []

    async def look() -> None:
        while len(link.receiver.frames) < 2_000:
            seen.append(len(link.receiver.frames))
            await asyncio.sleep(0)

    looking = asyncio.ensure_future(look())
    await link.send(*(start(call=call) for call in range(1, 2_001)))
    await link.receiver.until_calls(*range(1, 2_001))
    await looking
    steps = [after - before for before, after in pairwise(seen)]
    assert max(steps) == 256
    assert {256 * turn for turn in range(1, 8)} <= set(seen)


async def test_a_message_of_large_frames_leaves_the_loop_to_others_more_often(link: Link) -> None:
    seen: list[int] = []

    async def look() -> None:
        while len(link.receiver.frames) < 16:
            seen.append(len(link.receiver.frames))
            await asyncio.sleep(0)

    looking = asyncio.ensure_future(look())
    await link.send(*(start(call=call, arguments=b"x" * 100 * KIB) for call in range(1, 17)))
    await link.receiver.until_calls(*range(1, 17))
    await looking
    assert max(after - before for before, after in pairwise(seen)) * 100 * KIB <= WireLimits().bytes_per_turn


async def test_large_bodies_may_be_over_the_largest_frame(link: Link) -> None:
    link.receiver.large_bodies = ("start",)
    await link.send(start(call=1, arguments=b"x" * 2 * MIB))
    await link.receiver.until_calls(1)
    assert link.receiver.heads == []
