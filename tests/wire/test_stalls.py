"""A peer that stops reading is given up: its calls end, its queue goes, and only the transport lingers."""

import asyncio
import gc
import tracemalloc

from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar.wire.limits import KIB, MIB, WireLimits
from sidecar.wire.streams import Streams
from tests.wire.conftest import Opens
from tests.wire.frames import outcome, progress, sized_outcome, start
from tests.wire.links import Link, tasks_over

STALL_AFTER = 60.0


async def stall(link: Link, calls: int = 8) -> None:
    """Sends more than any transport takes from a peer that does not read, and lets a minute pass."""
    for call in range(1, calls + 1):
        link.stream.lane(call).send(sized_outcome(MIB, call=call))
    await link.transport.until_writing()
    # The writer goes from one write to the next at once, so one is on its way whenever anything else runs.
    link.stream.look(asyncio.get_running_loop().time() + STALL_AFTER + 1)


async def test_a_stalled_stream_is_given_up_and_lingers_until_its_peer_reads(link: Link, streams: Streams) -> None:
    await stall(link)
    assert link.stream.stalled
    assert link.receiver.told == ["ended"]
    assert link.counters["stalled_streams"] == 1
    assert streams.lingering == 1
    assert not link.over.is_set()
    # What was on its way arrives, what was queued is gone, and the stream is over.
    assert 1 <= len(await link.rest()) < 8
    await link.ended()
    assert link.raised is None
    assert streams.lingering == 0
    assert link.outbox.undelivered_bytes == 0


async def test_a_stalled_stream_is_over_when_its_peer_leaves(link: Link, streams: Streams) -> None:
    await stall(link)
    link.peer.cut()
    await link.ended()
    assert link.receiver.told == ["ended"]
    assert streams.lingering == 0
    await tasks_over()


async def test_the_queue_of_a_stalled_stream_is_dropped(link: Link) -> None:
    await stall(link, calls=40)
    assert link.outbox.empty
    assert link.outbox.undelivered_bytes <= MIB
    lane = link.stream.lane(99)
    large = sized_outcome(MIB, call=99)
    for _ in range(10):
        lane.report(progress(b"x" * KIB))
        lane.send(large)
    assert link.outbox.empty
    assert link.outbox.undelivered_bytes <= MIB
    assert not link.outbox.congested


async def test_the_memory_of_a_stalled_stream_is_given_back(open_stream: Opens) -> None:
    link = await open_stream()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for call in range(1, 33):
            link.stream.lane(call).send(sized_outcome(MIB, call=call))
        await link.transport.until_writing()
        assert tracemalloc.get_traced_memory()[0] - before > 30 * MIB
        link.stream.look(asyncio.get_running_loop().time() + STALL_AFTER + 1)
        gc.collect()
        # The message that is being written, and the one that the test keeps, are the same bytes or one copy of them.
        assert tracemalloc.get_traced_memory()[0] - before < (len(link.transport.writes) + 3) * MIB
    finally:
        tracemalloc.stop()


async def test_a_stalled_stream_reads_no_more(link: Link) -> None:
    await stall(link)
    writing = asyncio.ensure_future(link.send(start(call=1)))
    await link.rest()
    await link.ended()
    assert link.receiver.frames == []
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)


async def test_a_slow_write_is_not_a_stalled_one(link: Link) -> None:
    loop = asyncio.get_running_loop()
    await link.hold_writer()
    link.stream.look(loop.time() + STALL_AFTER - 1)
    assert not link.stream.stalled
    link.stream.lane(1).send(outcome())
    await link.release_writer()
    assert len(await link.frames(1)) == 1
    await link.transport.until_written()
    # An idle stream does not stall, however long it is idle.
    link.stream.look(loop.time() + 1_000 * STALL_AFTER)
    assert not link.stream.stalled


async def test_the_time_of_each_write_counts_for_itself(link: Link) -> None:
    loop = asyncio.get_running_loop()
    await link.hold_writer()
    began = loop.time()
    link.stream.lane(1).send(outcome())
    await link.release_writer()
    await link.frames(1)
    await link.hold_writer()
    link.stream.look(began + STALL_AFTER)
    assert not link.stream.stalled
    link.stream.look(loop.time() + STALL_AFTER + 1)
    assert link.stream.stalled


async def test_a_stream_stalls_once(link: Link) -> None:
    await stall(link)
    for _ in range(5):
        link.stream.look(asyncio.get_running_loop().time() + 10 * STALL_AFTER)
    assert link.counters["stalled_streams"] == 1
    assert link.receiver.told == ["ended"]


async def test_a_stream_that_stalls_while_its_reader_waits_for_room_is_given_up(open_stream: Opens) -> None:
    link = await open_stream(WireLimits(undelivered_soft=KIB, undelivered_hard=2 * MIB))

    def answer(_frame: Frame) -> None:
        for call in range(1, 9):
            link.stream.lane(call).send(sized_outcome(MIB, call=call))

    link.receiver.on_frame = answer
    await link.send(start(call=1))
    await link.receiver.until_calls(1)
    await link.transport.until_writing()
    link.stream.look(asyncio.get_running_loop().time() + STALL_AFTER + 1)
    assert link.receiver.told == ["ended"]
    link.peer.cut()
    await link.ended()
    await tasks_over()


async def test_a_finishing_stream_stalls_too(link: Link) -> None:
    for call in range(1, 9):
        link.stream.lane(call).send(sized_outcome(MIB, call=call))
    link.stream.finish()
    await link.transport.until_writing()
    link.stream.look(asyncio.get_running_loop().time() + STALL_AFTER + 1)
    assert link.stream.stalled
    await link.rest()
    await link.ended()


async def test_lingering_streams_are_capped(open_stream: Opens, streams: Streams) -> None:
    first, second = await open_stream(), await open_stream()
    await stall(first)
    assert not streams.full
    await stall(second)
    assert (streams.lingering, streams.full) == (2, True)
    await first.rest()
    await first.ended()
    assert (streams.lingering, streams.full) == (1, False)


async def test_open_streams_are_capped(open_stream: Opens) -> None:
    streams = Streams(most=2)
    links = [await open_stream() for _ in range(2)]
    with streams.keeping(links[0].stream):
        assert (len(streams), streams.full) == (1, False)
        with streams.keeping(links[1].stream):
            assert (len(streams), streams.full) == (2, True)
        assert (len(streams), streams.full) == (1, False)
    assert len(streams) == 0


async def test_a_stalled_stream_leaves_the_others_alone(open_stream: Opens) -> None:
    stalled, other = await open_stream(), await open_stream()
    await stall(stalled)
    await other.send(start(call=1))
    await other.receiver.until_calls(1)
    other.stream.lane(1).send(sized_outcome(MIB, call=1))
    assert [frame.call for frame in await other.frames(1)] == [1]
