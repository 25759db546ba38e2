"""Frames in batches, both ways: nothing waits for a batch to fill, and a message is closed when it is full."""

import asyncio

from sidecar.wire.limits import KIB, MIB
from tests.wire.conftest import Opens
from tests.wire.frames import batch, outcome, progress, sized_outcome, start
from tests.wire.links import Link


async def test_frames_of_one_message_are_handled_in_order(link: Link) -> None:
    await link.send(*(start(call=call) for call in range(1, 301)))
    await link.receiver.until_calls(*range(1, 301))


async def test_frames_of_many_messages_are_handled_in_order(link: Link) -> None:
    for call in range(1, 21):
        await link.send(start(call=call))
    await link.receiver.until_calls(*range(1, 21))


async def test_one_frame_goes_out_at_once(link: Link) -> None:
    for call in range(1, 4):
        assert link.stream.lane(call).send(outcome())
        (frame,) = await link.message()
        assert (frame.call, frame.WhichOneof("body")) == (call, "outcome")


async def test_what_is_queued_together_goes_out_in_one_message(link: Link) -> None:
    for call in range(1, 101):
        link.stream.lane(call).send(outcome())
    assert [frame.call for frame in await link.message()] == list(range(1, 101))
    assert len(link.transport.writes) == 1


async def test_what_is_queued_during_a_write_goes_out_in_the_next_message(link: Link) -> None:
    await link.hold_writer()
    for call in range(1, 51):
        link.stream.lane(call).send(outcome())
        await asyncio.sleep(0)
    await link.release_writer()
    assert [frame.call for frame in await link.message()] == list(range(1, 51))
    assert len(link.transport.writes) == 2


async def test_answers_go_out_while_requests_still_come_in(open_stream: Opens) -> None:
    link = await open_stream()
    link.receiver.on_frame = link.answer
    for call in range(1, 11):
        await link.send(start(call=call), start(call=call + 100))
        assert [frame.call for frame in await link.frames(2)] == [call, call + 100]


async def test_frames_are_stamped_with_call_sequence_and_time(link: Link) -> None:
    lanes = [link.stream.lane(call) for call in (7, 9)]
    claims = progress()
    claims.call, claims.sequence, claims.time_unix_nano = 99, 99, 99
    for lane in lanes:
        lane.report(claims)
        lane.send(outcome())
    frames = await link.frames(4)
    for call in (7, 9):
        own = [frame for frame in frames if frame.call == call]
        assert [frame.sequence for frame in own] == [1, 2]
        assert all(frame.time_unix_nano > 10**18 for frame in own)
        assert [frame.WhichOneof("body") for frame in own] == ["progress", "outcome"]


async def test_a_message_is_closed_at_256_frames(link: Link) -> None:
    await link.hold_writer()
    for call in range(1, 301):
        link.stream.lane(call).send(outcome())
    await link.release_writer()
    assert [len(await link.message()) for _ in range(2)] == [256, 44]


async def test_a_message_is_closed_at_256_kib(link: Link) -> None:
    await link.hold_writer()
    for call in range(1, 41):
        link.stream.lane(call).send(sized_outcome(30 * KIB, call=call))
    await link.release_writer()
    assert [len(await link.message()) for _ in range(5)] == [8, 8, 8, 8, 8]
    assert all(len(message) <= 257 * KIB for message in link.transport.writes)


async def test_a_frame_larger_than_a_message_rides_alone(link: Link) -> None:
    await link.hold_writer()
    for call in range(1, 4):
        link.stream.lane(call).send(sized_outcome(MIB, call=call))
    await link.release_writer()
    assert [[frame.call for frame in await link.message()] for _ in range(3)] == [[1], [2], [3]]


async def test_large_traffic_crosses_both_ways_at_once(link: Link) -> None:
    lanes = [link.stream.lane(call) for call in range(1, 17)]
    for lane in lanes:
        lane.send(sized_outcome(MIB, call=lane.call))
    message = batch(*(start(call=call, arguments=b"x" * 900 * KIB) for call in range(1, 5)))

    async def write() -> None:
        for _ in range(4):
            await link.peer.write(message)

    writing = asyncio.ensure_future(write())
    frames = await link.frames(16)
    await writing
    await link.receiver.until(lambda: len(link.receiver.frames) == 16)
    assert sorted(frame.call for frame in frames) == list(range(1, 17))
