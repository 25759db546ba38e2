"""Whose frame is next: by call, and by bytes, so that neither many small frames nor few large ones hold others up."""

from collections.abc import Iterable
from itertools import pairwise

import pytest

from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar.wire.limits import KIB, MIB, WireLimits
from sidecar.wire.outbox import Lane, Outbox
from tests.wire.frames import frames_of, outcome, ping, progress, sized_outcome
from tests.wire.links import Link


@pytest.fixture
def outbox() -> Outbox:
    return Outbox(WireLimits(), lambda: None)


def drained(outbox: Outbox) -> list[Frame]:
    """All that is queued, in the order in which it is written."""
    messages: list[bytes] = []
    while (message := outbox.drain()) is not None:
        messages.append(message)
    return frames_of(messages)


def fill(outbox: Outbox, call: int, size: int, count: int) -> None:
    lane = Lane(outbox, call)
    for _ in range(count):
        assert lane.send(sized_outcome(size, call=call))


def turns(calls: Iterable[int], frames: int) -> list[int]:
    """The calls of the frames that these lanes write when each writes so many a turn."""
    return [call for call in calls for _ in range(frames)]


def test_lanes_take_turns_by_a_few_frames(outbox: Outbox) -> None:
    for call in range(1, 11):
        fill(outbox, call, 100, 20)
    lanes = range(1, 11)
    assert [frame.call for frame in drained(outbox)] == turns(lanes, 8) + turns(lanes, 8) + turns(lanes, 4)


def test_lanes_of_unequal_length_take_turns_while_they_last(outbox: Outbox) -> None:
    fill(outbox, 1, 100, 30)
    fill(outbox, 2, 100, 1)
    fill(outbox, 3, 100, 10)
    assert [frame.call for frame in drained(outbox)] == [*[1] * 8, 2, *[3] * 8, *[1] * 8, *[3] * 2, *[1] * 14]


def test_a_new_lane_waits_for_one_turn_at_most(outbox: Outbox) -> None:
    for call in range(1, 4):
        fill(outbox, call, 100, 5_000)
    outbox.drain()
    fill(outbox, 9, 100, 1)
    message = outbox.drain()
    assert message is not None
    assert 9 in [frame.call for frame in frames_of([message])][: 3 * 8 + 1]


def test_a_lane_of_large_frames_gets_64_kib_a_turn(outbox: Outbox) -> None:
    fill(outbox, 1, MIB, 3)
    fill(outbox, 2, 100, 480)
    fill(outbox, 3, 100, 480)
    calls = [frame.call for frame in drained(outbox)]
    large = [position for position, call in enumerate(calls) if call == 1]
    # A large frame has earned its 1 MiB in the 16th turn; in each of the 15 before it the others write 8 frames.
    assert large[0] == 15 * 2 * 8
    assert all(after - before - 1 in (15 * 2 * 8, 16 * 2 * 8) for before, after in pairwise(large))


def test_a_lane_alone_does_not_wait_to_earn_its_frame(outbox: Outbox) -> None:
    fill(outbox, 1, MIB, 3)
    assert [frame.call for frame in drained(outbox)] == [1, 1, 1]
    assert outbox.messages == 3


def test_lanes_of_large_frames_alternate(outbox: Outbox) -> None:
    fill(outbox, 1, MIB, 4)
    fill(outbox, 2, MIB, 4)
    assert [frame.call for frame in drained(outbox)] == [1, 2] * 4


def test_a_lane_of_twice_as_large_frames_gets_half_as_many(outbox: Outbox) -> None:
    fill(outbox, 1, 256 * KIB, 20)
    fill(outbox, 2, 128 * KIB, 40)
    calls = [frame.call for frame in drained(outbox)][:30]
    assert calls.count(1) == 10
    assert calls.count(2) == 20


def test_what_a_lane_has_earned_is_not_kept_for_later(outbox: Outbox) -> None:
    fill(outbox, 1, MIB, 1)
    fill(outbox, 2, 100, 100)
    drained(outbox)
    fill(outbox, 1, MIB, 1)
    fill(outbox, 2, 100, 200)
    assert [frame.call for frame in drained(outbox)].index(1) == 15 * 8


def test_no_message_is_over_its_size_unless_it_holds_one_frame(outbox: Outbox) -> None:
    for call in range(1, 30):
        fill(outbox, call, (call * 7919) % 300 * KIB + 100, 3)
    while (message := outbox.drain()) is not None:
        assert len(message) <= 256 * KIB + 256 * 4 or len(frames_of([message])) == 1


def test_control_frames_go_first(outbox: Outbox) -> None:
    fill(outbox, 1, 100, 400)
    outbox.drain()
    for nonce in range(1, 4):
        outbox.control(ping(nonce))
    message = outbox.drain()
    assert message is not None
    frames = frames_of([message])
    assert [frame.ping.nonce for frame in frames[:3]] == [1, 2, 3]
    assert [frame.call for frame in frames[:4]] == [0, 0, 0, 1]


def test_droppable_control_frames_are_bounded_and_others_are_not(outbox: Outbox) -> None:
    for nonce in range(1, 1_001):
        outbox.control(ping(nonce), droppable=True)
    outbox.control(ping(5_000))
    assert [frame.ping.nonce for frame in drained(outbox)] == [*range(1, 257), 5_000]
    assert outbox.control_dropped == 1_000 - 256
    outbox.delivered()
    assert outbox.undelivered_bytes == 0
    outbox.control(ping(1), droppable=True)
    assert len(drained(outbox)) == 1


async def test_large_frames_do_not_hold_up_small_ones(link: Link) -> None:
    await link.hold_writer()
    for _ in range(4):
        fill(link.outbox, 1, MIB, 1)
    for call in range(2, 12):
        fill(link.outbox, call, 100, 10)
    await link.release_writer()
    calls = [frame.call for frame in await link.frames(101)]
    assert calls[:100] == turns(range(2, 12), 8) + turns(range(2, 12), 2)
    assert set(calls[100:]) == {1}
    assert len(calls) + len(await link.frames(104 - len(calls))) == 104


async def test_a_flood_of_progress_does_not_hold_up_an_outcome(link: Link) -> None:
    await link.hold_writer()
    flood = link.stream.lane(1)
    for number in range(10_000):
        flood.report(progress(b"%d" % number))
    link.stream.lane(2).send(outcome())
    await link.release_writer()
    assert [frame.call for frame in await link.frames(9)][:9] == [*[1] * 8, 2]


async def test_control_frames_overtake_what_is_queued(link: Link) -> None:
    await link.hold_writer()
    fill(link.outbox, 1, 200 * KIB, 4)
    link.stream.control(ping(7))
    await link.release_writer()
    assert [frame.WhichOneof("body") for frame in await link.frames(5)] == ["ping", *["outcome"] * 4]


def test_a_farewell_is_written_once_nothing_else_is_queued(outbox: Outbox) -> None:
    outbox.farewell(ping(9))
    fill(outbox, 1, MIB - KIB, 2)
    fill(outbox, 2, 100, 200)
    outbox.control(ping(1))
    order = drained(outbox)
    assert [frame.call for frame in order if frame.call] == [frame.call for frame in order[1:-1]]
    assert (order[0].ping.nonce, order[-1].ping.nonce) == (1, 9)
    outbox.delivered()
    assert outbox.undelivered_bytes == 0
    assert outbox.empty


def test_a_farewell_wakes_the_writer_and_is_dropped_with_all_else() -> None:
    woken: list[bool] = []
    outbox = Outbox(WireLimits(), lambda: woken.append(True))
    outbox.farewell(ping(1))
    assert woken == [True]
    outbox.abandon()
    assert (outbox.drain(), outbox.undelivered_bytes) == (None, 0)
