"""How a stream ends: half-close, loss, `finish`, `close`; each time once, and with nothing left."""

import asyncio
import logging

import pytest

from sidecar.wire.limits import KIB, MIB, WireLimits
from sidecar.wire.transport import StreamLost
from tests.wire.conftest import Opens
from tests.wire.frames import outcome, ping, progress, sized_outcome, start
from tests.wire.links import Link, tasks_over

over_grpc = pytest.mark.parametrize("kind", ["unix", "tcp"], indirect=True)


async def test_after_a_half_close_running_calls_still_answer(link: Link) -> None:
    await link.send(start(call=1))
    await link.peer.half_close()
    await link.receiver.until_told("half_closed")
    assert not link.over.is_set()
    lane = link.stream.lane(1)
    lane.report(progress(b"1"))
    assert len(await link.frames(1)) == 1
    lane.send(outcome())
    assert len(await link.frames(1)) == 1
    link.stream.finish()
    assert await link.rest() == []
    await link.ended()
    assert link.receiver.told == ["half_closed", "ended"]
    assert link.raised is None


async def test_a_half_close_right_behind_the_only_call_loses_nothing(link: Link) -> None:
    link.receiver.on_frame = link.answer
    await link.send(start(call=1))
    await link.peer.half_close()
    await link.receiver.until_told("half_closed")
    link.stream.finish()
    assert [frame.call for frame in await link.rest()] == [1]


async def test_finish_writes_what_is_queued_and_ends(link: Link) -> None:
    for call in range(1, 301):
        link.stream.lane(call).send(outcome())
    link.stream.finish()
    assert [frame.call for frame in await link.rest()] == list(range(1, 301))
    await link.ended()
    assert link.raised is None
    assert link.receiver.told == ["ended"]


async def test_finish_during_a_write_loses_nothing(link: Link) -> None:
    await link.hold_writer()
    for call in range(1, 4):
        link.stream.lane(call).send(sized_outcome(MIB, call=call))
    link.stream.finish()
    await link.release_writer()
    assert [frame.call for frame in await link.rest()] == [1, 2, 3]


async def test_finish_of_an_idle_stream_ends_it(link: Link) -> None:
    link.stream.finish()
    assert await link.rest() == []
    await link.ended()
    assert link.receiver.told == ["ended"]


async def test_close_writes_what_is_queued_and_reads_no_more(link: Link) -> None:
    await link.hold_writer()
    link.stream.lane(1).send(outcome())
    link.stream.close()
    writing = asyncio.ensure_future(link.send(start(call=1)))
    link.stream.lane(2).send(outcome())
    await link.release_writer()
    assert [frame.call for frame in await link.rest()] == [1, 2]
    await link.ended()
    assert link.raised is None
    assert link.receiver.frames == []
    assert link.receiver.told == ["ended"]
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)


async def test_close_by_a_handler_leaves_the_rest_of_its_message(link: Link) -> None:
    link.receiver.on_frame = lambda frame: link.stream.close() if frame.call == 2 else None
    await link.send(*(start(call=call) for call in range(1, 6)))
    assert await link.rest() == []
    await link.ended()
    assert link.receiver.calls == [1, 2]


async def test_abandoned_calls_say_no_more_and_the_stream_does(link: Link) -> None:
    await link.hold_writer()
    lane = link.stream.lane(1)
    lane.send(outcome())
    lane.report(progress())
    link.outbox.abandon_calls()
    lane.send(outcome())
    link.stream.control(ping(7))
    link.stream.finish()
    await link.release_writer()
    assert [frame.ping.nonce for frame in await link.rest()] == [7]


async def test_a_stream_lost_while_idle_is_over(link: Link) -> None:
    await link.send(start(call=1))
    await link.receiver.until_calls(1)
    link.peer.cut()
    await link.ended()
    assert link.receiver.told[-1] == "ended"
    await tasks_over()


@over_grpc
async def test_a_stream_lost_after_a_half_close_is_over(link: Link) -> None:
    await link.peer.half_close()
    await link.receiver.until_told("half_closed")
    link.peer.cut()
    await link.ended()
    assert link.receiver.told == ["half_closed", "ended"]
    await tasks_over()


async def test_a_stream_lost_during_a_write_is_over_and_drops_its_queue(
    link: Link, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "asyncio")
    for call in range(1, 17):
        link.stream.lane(call).send(sized_outcome(MIB, call=call))
    await link.transport.until_writing()
    assert len(await link.message()) == 1
    link.peer.cut()
    await link.ended()
    assert link.receiver.told[-1] == "ended"
    assert len(link.transport.writes) < 16
    assert link.outbox.undelivered_bytes == 0
    assert link.outbox.empty
    await tasks_over()
    assert [record for record in caplog.records if record.name in ("asyncio", "sidecar.wire.stream")] == []


async def test_a_stream_lost_while_its_write_is_held_is_over(link: Link) -> None:
    await link.hold_writer()
    link.stream.lane(1).send(outcome())
    link.peer.cut()
    await link.ended()
    assert link.outbox.undelivered_bytes == 0
    await tasks_over()


async def test_a_stream_lost_while_its_reader_waits_for_room_is_over(open_stream: Opens) -> None:
    link = await open_stream(WireLimits(undelivered_soft=1 * KIB, undelivered_hard=4 * KIB))
    await link.hold_writer()
    link.stream.lane(1).send(sized_outcome(5 * KIB, call=1))
    await link.send(start(call=2))
    await link.receiver.until_calls(2)
    link.transport.release()
    link.peer.cut()
    await link.ended()
    await tasks_over()


async def test_what_is_sent_after_the_end_goes_nowhere(link: Link) -> None:
    lane = link.stream.lane(1)
    lane.report(progress())
    await link.frames(1)
    link.peer.cut()
    await link.ended()
    for _ in range(100):
        lane.report(progress(b"x" * KIB))
    assert lane.send(outcome())
    link.stream.control(outcome())
    assert link.outbox.empty
    assert link.outbox.undelivered_bytes == 0
    assert not link.outbox.overfull


async def test_the_peer_of_a_lost_stream_reads_no_good_end(link: Link) -> None:
    link.stream.lane(1).send(sized_outcome(MIB, call=1))
    await link.transport.until_writing()
    link.peer.cut()
    with pytest.raises((StreamLost, asyncio.CancelledError)):
        await link.peer.read()


async def test_one_lost_stream_leaves_the_others_alone(open_stream: Opens) -> None:
    lost, kept = await open_stream(), await open_stream()
    for link in (lost, kept):
        link.stream.lane(1).send(sized_outcome(MIB, call=1))
    lost.peer.cut()
    await lost.ended()
    assert [frame.call for frame in await kept.frames(1)] == [1]
    await kept.send(start(call=1))
    await kept.receiver.until_calls(1)


@pytest.mark.parametrize("kind", ["memory"], indirect=True)
async def test_a_run_that_is_cancelled_again_while_it_ends_leaves_no_bytes(link: Link) -> None:
    await link.hold_writer()
    link.stream.lane(1).send(outcome())
    (run,) = [task for task in asyncio.all_tasks() if getattr(task.get_coro(), "__name__", "") == "_run"]
    run.cancel()
    await asyncio.sleep(0)
    run.cancel()
    await link.ended()
    assert link.outbox.undelivered_bytes == 0
    assert link.receiver.told == ["ended"]
