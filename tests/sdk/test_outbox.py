import asyncio
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillion._gen.pillion.v1.frame_pb2 import Frame
from pillion._wire import frames
from pillion._wire.backoff import Backoff
from pillion._wire.channel import StreamEnded
from pillion._wire.outbox import MESSAGE_FRAMES, Lane, Limits, Outbox
from pillion._wire.stream import FrameStream

PAYLOADS = st.one_of(st.binary(max_size=300), st.integers(0, 70_000).map(bytes))


@given(st.integers(0, 2**64 - 1), PAYLOADS)
def test_a_progress_frame_is_what_protobuf_writes(call: int, payload: bytes) -> None:
    frame = Frame(call=call)
    frame.progress.payload = payload
    if call:
        assert (
            frames.progress(frames.call_field(call), payload) == frames.packed(frame.SerializeToString()) or not payload
        )
    assert frames.parse(frames.progress(frames.call_field(call), payload))[0] == frame


@given(st.integers(1, 2**64 - 1), PAYLOADS)
def test_a_result_frame_is_what_protobuf_writes(call: int, json: bytes) -> None:
    frame = Frame(call=call)
    frame.outcome.result.json = json
    assert frames.result(frames.call_field(call), json) == frames.packed(frame.SerializeToString())


def test_a_message_that_is_no_batch_is_told() -> None:
    with pytest.raises(frames.Malformed):
        frames.parse(b"\xff\xff")


def drained(outbox: Outbox) -> list[Frame]:
    found: list[Frame] = []
    while (message := outbox.drain()) is not None:
        found += frames.parse(message)
        outbox.delivered()
    return found


def log(call: int) -> bytes:
    frame = Frame(call=call)
    frame.log.message = "line"
    return frame.SerializeToString()


def test_the_newest_reports_are_kept_and_the_lost_counted() -> None:
    outbox = Outbox(lambda: None)
    lane = Lane(outbox, 7)
    for number in range(100):
        assert lane.report(str(number).encode())
    assert lane.result(b"1")
    got = drained(outbox)
    assert [frame.progress.payload for frame in got[:-1]] == [str(number).encode() for number in range(68, 100)]
    assert got[0].coalesced == 68
    assert sum(frame.coalesced for frame in got) == 68
    assert got[-1].outcome.result.json == b"1"
    assert outbox.statistics().undelivered_bytes == 0
    assert outbox.statistics().coalesced == 68


def test_other_frames_among_reports_are_never_lost() -> None:
    outbox = Outbox(lambda: None)
    lane = Lane(outbox, 7)
    for number in range(100):
        lane.report(str(number).encode())
        if number % 10 == 0:
            lane.send(log(7))
    got = drained(outbox)
    assert sum(frame.HasField("log") for frame in got) == 10
    assert sum(frame.HasField("progress") for frame in got) == 32
    assert sum(frame.coalesced for frame in got) == 68
    assert outbox.statistics().undelivered_bytes == 0


def test_a_report_that_is_too_large_is_dropped_and_counted() -> None:
    outbox = Outbox(lambda: None)
    lane = Lane(outbox, 7)
    assert not lane.report(bytes(64 * 1024 + 1))
    assert lane.report(bytes(64 * 1024))
    [frame] = drained(outbox)
    assert frame.coalesced == 1


def test_one_report_a_call_is_kept_when_very_much_waits() -> None:
    outbox = Outbox(lambda: None)
    lanes = [Lane(outbox, call) for call in range(1, 20)]
    for number in range(32):
        for lane in lanes:
            lane.report(number.to_bytes() + bytes(60_000))
    assert outbox.statistics().undelivered_bytes < 9 * 1024 * 1024
    got = drained(outbox)
    assert {frame.call for frame in got} == set(range(1, 20))
    assert len(got) + sum(frame.coalesced for frame in got) == 32 * 19


def test_nothing_follows_the_last_frame_and_one_too_large_is_told() -> None:
    outbox = Outbox(lambda: None)
    outbox.limits = Limits(frame_bytes=100)
    lane = Lane(outbox, 7)
    assert not lane.result(bytes(100))
    assert lane.result(b"1")
    assert lane.result(b"2")
    assert lane.report(b"3")
    assert len(drained(outbox)) == 1


def test_small_frames_do_not_wait_for_large_ones() -> None:
    outbox = Outbox(lambda: None)
    large, small = Lane(outbox, 1), Lane(outbox, 2)
    for _ in range(2):
        frame = Frame(call=1)
        frame.log.message = "x" * 500_000
        large.send(frame.SerializeToString())
    small.send(log(2))
    assert [frame.call for frame in frames.parse(outbox.drain() or b"")] == [2, 1]


def test_a_message_is_bounded() -> None:
    outbox = Outbox(lambda: None)
    for call in range(1, 601):
        Lane(outbox, call).result(b"1")
    sizes = []
    while (message := outbox.drain()) is not None:
        sizes.append(len(frames.parse(message)))
    assert sizes == [MESSAGE_FRAMES, MESSAGE_FRAMES, 600 - 2 * MESSAGE_FRAMES]


def test_an_abandoned_outbox_takes_nothing() -> None:
    outbox = Outbox(lambda: None)
    lane = Lane(outbox, 1)
    lane.report(b"1")
    outbox.abandon()
    assert lane.report(b"2")
    assert lane.result(b"3")
    outbox.control(b"")
    assert outbox.drain() is None


def test_threads_may_report_at_once() -> None:
    outbox = Outbox(lambda: None)
    lanes = [Lane(outbox, call) for call in range(1, 9)]

    def work(lane: Lane) -> None:
        for _ in range(1_000):
            lane.report(b"1")
        lane.result(b"2")

    threads = [threading.Thread(target=work, args=(lane,)) for lane in lanes]
    for thread in threads:
        thread.start()
    got: list[Frame] = []
    while any(thread.is_alive() for thread in threads):
        got += drained(outbox)
    for thread in threads:
        thread.join()
    got += drained(outbox)
    reports = [frame for frame in got if frame.HasField("progress")]
    assert len(reports) + sum(frame.coalesced for frame in got) == 8_000
    assert sum(frame.HasField("outcome") for frame in got) == 8
    assert outbox.statistics().undelivered_bytes == 0


def test_the_wait_before_the_next_try_is_anything_up_to_a_ceiling_that_doubles() -> None:
    for round_ in range(200):
        backoff = Backoff(1.0, 8.0)
        waits = [backoff.next() for _ in range(6)]
        assert all(0 <= wait <= ceiling for wait, ceiling in zip(waits, (1, 2, 4, 8, 8, 8), strict=True)), round_
        backoff.reset()
        assert backoff.next() <= 1


class OneWay:
    """A transport that can be read, and fails in a way of its own when it is written."""

    def __init__(self) -> None:
        self.dropped = asyncio.Event()

    async def read(self) -> bytes:
        await self.dropped.wait()
        raise StreamEnded(None, "dropped")

    async def write(self, message: bytes) -> None:
        raise ZeroDivisionError(len(message))

    async def told(self) -> dict[str, str]:
        return {}

    async def finish(self) -> None: ...

    def cancel(self) -> None:
        self.dropped.set()

    async def expires_in(self) -> None: ...


async def test_a_stream_that_cannot_be_written_is_over(caplog: pytest.LogCaptureFixture) -> None:
    stream = FrameStream(OneWay(), {})
    stream.send(Frame())
    async with asyncio.timeout(10):
        assert (await stream.run()).details == "dropped"
    assert "cannot be written" in caplog.text
