"""Progress gives way and is counted; what is lossless is never lost."""

import asyncio
import time
from dataclasses import replace

from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar.wire.limits import KIB, MIB, WireLimits
from sidecar.wire.outbox import Lane, Outbox
from tests.wire.conftest import Opens
from tests.wire.frames import frames_of, outcome, payloads, progress, sized_outcome, start
from tests.wire.links import Link
from tests.wire.receivers import Recorder

SMALL = WireLimits(undelivered_soft=8 * KIB, undelivered_hard=32 * KIB)


def numbered(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last + 1)]


def report(lane: Lane, first: int, last: int) -> None:
    for payload in numbered(first, last):
        lane.report(progress(payload))


def fullness(link: Link) -> tuple[bool, bool]:
    return link.outbox.congested, link.outbox.overfull


def counts(frames: list[Frame]) -> list[int]:
    return [frame.coalesced for frame in frames]


async def test_progress_that_a_reader_keeps_up_with_is_all_delivered(link: Link) -> None:
    lane = link.stream.lane(1)
    for number in range(1, 101):
        report(lane, number, number)
        (frame,) = await link.message()
        assert (frame.progress.payload, frame.sequence, frame.coalesced) == (b"%d" % number, number, 0)


async def test_the_newest_32_are_kept_and_the_first_of_them_says_how_many_were_lost(link: Link) -> None:
    await link.hold_writer()
    lane = link.stream.lane(1)
    report(lane, 1, 100)
    lane.send(outcome())
    await link.release_writer()
    frames = await link.frames(33)
    assert payloads(frames) == numbered(69, 100)
    assert counts(frames) == [68] + [0] * 32
    assert [frame.sequence for frame in frames] == [*range(69, 102)]
    assert link.outbox.statistics().coalesced == 68


async def test_each_call_keeps_its_own(link: Link) -> None:
    await link.hold_writer()
    report(link.stream.lane(1), 1, 1_000)
    report(link.stream.lane(2), 1, 5)
    await link.release_writer()
    frames = await link.frames(37)
    assert payloads([frame for frame in frames if frame.call == 1]) == numbered(969, 1_000)
    assert payloads([frame for frame in frames if frame.call == 2]) == numbered(1, 5)
    assert sum(counts(frames)) == 968


async def test_a_lossless_frame_between_progress_stays_in_place_and_counts_what_was_lost_before_it(link: Link) -> None:
    await link.hold_writer()
    lane = link.stream.lane(1)
    report(lane, 1, 10)
    between = Frame()
    between.teardown_registered.label = "between"
    lane.send(between)
    report(lane, 11, 50)
    lane.send(outcome())
    await link.release_writer()
    frames = await link.frames(34)
    assert [frame.WhichOneof("body") for frame in frames] == ["teardown_registered", *["progress"] * 32, "outcome"]
    assert payloads(frames) == numbered(19, 50)
    assert counts(frames) == [10, 8, *[0] * 32]
    assert [frame.sequence for frame in frames] == [11, *range(20, 53)]


async def test_counts_are_summed_over_hops(open_stream: Opens) -> None:
    worker = await open_stream(receiver=Recorder(("progress", "outcome")))
    caller = await open_stream()
    lane = caller.stream.lane(1)

    def forward(frame: Frame) -> None:
        if frame.HasField("progress"):
            lane.report(frame)
        else:
            lane.send(frame)

    worker.receiver.on_frame = forward
    await caller.hold_writer()
    sent = [progress(b"%d" % number, call=5, coalesced=number % 3) for number in range(1, 61)]
    last = outcome(call=5)
    last.coalesced = 4
    await worker.send(*sent, last)
    await worker.receiver.until(lambda: len(worker.receiver.frames) == 61)
    await caller.release_writer()
    frames = await caller.frames(33)
    assert payloads(frames) == numbered(29, 60)
    # 28 gave way on this hop; what they and the 29th counted was lost on the hop before.
    assert frames[0].coalesced == 28 + sum(number % 3 for number in range(1, 30))
    assert counts(frames[1:]) == [number % 3 for number in range(30, 61)] + [4]


async def test_a_count_beyond_what_a_frame_can_say_stays_at_the_most(link: Link) -> None:
    most = 2**32 - 1
    await link.hold_writer()
    lane = link.stream.lane(1)
    for number in range(1, 35):
        lane.report(progress(b"%d" % number, coalesced=most))
    lane.send(outcome())
    await link.release_writer()
    frames = await link.frames(33)
    assert counts(frames) == [most] * 32 + [0]

    other = link.stream.lane(2)
    other.report(progress(b"x" * 70 * KIB, coalesced=most))
    assert other.send(outcome())
    assert counts(await link.frames(1)) == [most]


async def test_over_the_soft_limit_a_stream_is_congested_and_the_newest_of_each_call_is_kept(
    open_stream: Opens,
) -> None:
    link = await open_stream(SMALL)
    await link.hold_writer()
    assert fullness(link) == (False, False)
    link.stream.lane(1).send(sized_outcome(9 * KIB, call=1))
    assert fullness(link) == (True, False)
    for call in (2, 3):
        lane = link.stream.lane(call)
        report(lane, 1, 50)
        lane.send(outcome())
    await link.release_writer()
    frames = await link.frames(5)
    for call in (2, 3):
        own = [frame for frame in frames if frame.call == call]
        assert payloads(own) == [b"50"]
        assert counts(own) == [49, 0]
    await link.transport.until_written()
    assert fullness(link) == (False, False)


async def test_the_receiver_is_told_when_a_stream_is_congested_no_more(open_stream: Opens) -> None:
    link = await open_stream(SMALL)
    await link.hold_writer()
    for call in range(1, 3):
        link.stream.lane(call).send(sized_outcome(9 * KIB, call=call))
    assert link.receiver.reliefs == 0
    await link.release_writer()
    await link.frames(2)
    await link.receiver.until(lambda: link.receiver.reliefs)
    assert fullness(link) == (False, False)
    link.stream.lane(3).send(outcome())
    await link.frames(1)
    await link.transport.until_written()
    assert link.receiver.reliefs == 1


async def test_over_the_hard_limit_progress_is_dropped_and_counted_by_the_outcome(open_stream: Opens) -> None:
    link = await open_stream(SMALL)
    await link.hold_writer()
    for call in range(1, 5):
        assert link.stream.lane(call).send(sized_outcome(9 * KIB, call=call))
    assert link.outbox.overfull
    before = link.outbox.undelivered_bytes
    lane = link.stream.lane(9)
    report(lane, 1, 1_000)
    assert link.outbox.undelivered_bytes == before
    assert lane.send(outcome())
    await link.release_writer()
    frames = await link.frames(5)
    (own,) = [frame for frame in frames if frame.call == 9]
    assert own.HasField("outcome")
    assert (own.coalesced, own.sequence) == (1_000, 1_001)


async def test_over_the_hard_limit_the_peer_is_read_no_further(open_stream: Opens) -> None:
    link, other = await open_stream(SMALL), await open_stream()
    overfull_when_handled: list[bool] = []

    def handle(frame: Frame) -> None:
        overfull_when_handled.append(link.outbox.overfull)
        if frame.call == 1:
            for call in range(1, 5):
                link.stream.lane(call).send(sized_outcome(9 * KIB, call=call))

    link.receiver.on_frame = handle
    await link.hold_writer()
    await link.send(start(call=1), start(call=2))
    await link.receiver.until_calls(1, 2)
    writing = asyncio.ensure_future(link.send(start(call=3)))
    # What a second stream of the connection brings there and back came after what the first one was sent.
    for _ in range(3):
        await other.settled()
    assert link.receiver.calls == [1, 2]
    await link.release_writer()
    assert len(await link.frames(4)) == 4
    await link.receiver.until_calls(1, 2, 3)
    await writing
    # The rest of the message was handled; the next one only once there was room.
    assert overfull_when_handled == [False, True, False]


async def test_over_the_hard_limit_the_rest_of_a_message_waits_too(open_stream: Opens) -> None:
    link = await open_stream(replace(SMALL, frames_per_turn=8))
    most = 0

    def handle(frame: Frame) -> None:
        nonlocal most
        link.stream.lane(frame.call).send(sized_outcome(KIB, call=frame.call))
        most = max(most, link.outbox.undelivered_bytes)

    link.receiver.on_frame = handle
    await link.hold_writer()
    calls = range(1, 1_001)
    await link.send(*(start(call=call) for call in calls))
    await link.receiver.until(lambda: link.outbox.overfull)
    await link.release_writer()
    assert len(await link.frames(len(calls))) == len(calls)
    # What the answers of one turn may have over it.
    assert most <= SMALL.undelivered_hard + 9 * KIB


async def test_nothing_lossless_is_lost_to_a_slow_reader(open_stream: Opens) -> None:
    link = await open_stream(SMALL)
    lanes = [link.stream.lane(call) for call in range(1, 41)]
    sent: dict[int, list[str]] = {lane.call: [] for lane in lanes}

    async def write() -> None:
        for turn in range(20):
            for lane in lanes:
                report(lane, turn * 10, turn * 10 + 9)
                sent[lane.call].append(f"{lane.call}.{turn}")
                assert lane.send(outcome(sent[lane.call][-1]))
            await asyncio.sleep(0)

    writing = asyncio.ensure_future(write())
    frames: list[Frame] = []
    while sum(frame.HasField("outcome") for frame in frames) < 800:
        frames += await link.message()
    await writing
    for lane in lanes:
        own = [frame for frame in frames if frame.call == lane.call]
        assert [frame.outcome.uploaded_reference for frame in own if frame.HasField("outcome")] == sent[lane.call]
        sequences = [frame.sequence for frame in own]
        assert sequences == sorted(set(sequences))
        assert len(payloads(own)) + sum(counts(own)) == 200
    await link.transport.until_written()
    assert link.outbox.undelivered_bytes == 0


def test_a_million_reports_to_a_stalled_reader_stay_bounded() -> None:
    outbox = Outbox(WireLimits(), lambda: None)
    lanes = [Lane(outbox, call) for call in range(1, 11)]
    for lane in lanes:
        lane.report(progress(b"x" * 1_000))
    assert outbox.drain() is not None  # and the write of it never returns
    frame = progress(b'{"message": "on its way"}')
    most = 0
    started = time.process_time()
    for _ in range(100_000):
        for lane in lanes:
            lane.report(frame)
        most = max(most, outbox.undelivered_bytes)
    assert most < 64 * KIB
    assert outbox.coalesced == 1_000_000 - 320
    assert time.process_time() - started < 30
    for lane in lanes:
        lane.send(outcome())
    outbox.delivered()
    messages = iter(outbox.drain, None)
    frames = frames_of(messages)
    assert sum(counts(frames)) == 1_000_000 - 320
    assert sum(frame.HasField("outcome") for frame in frames) == 10
    outbox.delivered()
    assert outbox.undelivered_bytes == 0


def test_large_reports_to_a_stalled_reader_stay_bounded() -> None:
    outbox = Outbox(WireLimits(), lambda: None)
    lanes = [Lane(outbox, call) for call in range(1, 1_201)]
    frame = progress(b"x" * 60 * KIB)
    for _ in range(8):
        for lane in lanes:
            lane.report(frame)
    assert outbox.undelivered_bytes < 65 * MIB
    assert outbox.overfull
    outbox.abandon()
    assert outbox.undelivered_bytes == 0
