"""Pings and pongs: answered at once, asked for at an interval, and missed three times by a peer that hangs."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from sidecar.wire.limits import MIB, WireLimits
from sidecar.wire.streams import Streams
from tests.support.virtual_time import VirtualTimeLoop
from tests.wire.conftest import Opens
from tests.wire.frames import frames_of, outcome, ping, pong, sized_outcome, start
from tests.wire.links import Link
from tests.wire.receivers import Recorder

INTERVAL = 10.0


def passes(link: Link) -> Callable[[float], None]:
    """Lets seconds pass for a stream that was just opened."""
    began = asyncio.get_running_loop().time()

    def at(seconds: float) -> None:
        # Half a second of grace for the real time that the test itself takes.
        link.stream.look(began + seconds + 0.5)

    return at


async def test_a_ping_is_answered_by_the_stream_itself(link: Link) -> None:
    await link.send(ping(7), start(call=1), ping(8))
    assert [frame.pong.nonce for frame in await link.frames(2)] == [7, 8]
    assert link.receiver.told == []


async def test_a_ping_is_answered_after_a_half_close(link: Link) -> None:
    await link.send(ping(9))
    await link.peer.half_close()
    assert [frame.pong.nonce for frame in await link.frames(1)] == [9]


async def test_a_pong_overtakes_what_is_queued(link: Link) -> None:
    await link.hold_writer()
    for call in range(1, 4):
        link.stream.lane(call).send(sized_outcome(MIB, call=call))
    await link.send(ping(5), start(call=9))
    await link.receiver.until_calls(9)
    await link.release_writer()
    assert [frame.WhichOneof("body") for frame in await link.frames(4)] == ["pong", *["outcome"] * 3]


async def test_a_flood_of_pings_queues_a_bounded_number_of_pongs(link: Link) -> None:
    await link.hold_writer()
    await link.send(*(ping(nonce) for nonce in range(1_000)), start(call=1))
    await link.receiver.until_calls(1)
    assert link.outbox.undelivered_bytes < 256 * 40
    await link.release_writer()
    assert [frame.pong.nonce for frame in await link.frames(256)] == list(range(256))
    assert link.outbox.control_dropped == 1_000 - 256


async def test_pings_go_out_at_the_interval(open_stream: Opens) -> None:
    link = await open_stream(ping_interval=INTERVAL)
    at = passes(link)
    at(INTERVAL / 2)
    assert link.outbox.empty
    for nonce in range(1, 6):
        at(INTERVAL * nonce)
        at(INTERVAL * nonce)  # looked at twice, sent once
        (frame,) = await link.message()
        assert (frame.call, frame.ping.nonce) == (0, nonce)
        await link.send(pong(nonce), start(call=nonce))
        await link.receiver.until_calls(*range(1, nonce + 1))
    assert link.receiver.told == []


async def test_three_pings_missed_are_told_once(open_stream: Opens) -> None:
    link = await open_stream(ping_interval=INTERVAL)
    at = passes(link)
    for nonce in range(1, 4):
        at(INTERVAL * nonce)
        assert link.receiver.told == []
    at(INTERVAL * 4)
    assert link.receiver.told == ["unresponsive"]
    for second in range(60):
        at(INTERVAL * 4 + second)
    assert link.receiver.told == ["unresponsive"]
    assert link.counters["unresponsive_peers"] == 1
    assert len(await link.frames(3)) == 3


async def test_a_late_pong_makes_up_for_missed_pings(open_stream: Opens) -> None:
    link = await open_stream(ping_interval=INTERVAL)
    at = passes(link)
    for nonce in range(1, 4):
        at(INTERVAL * nonce)
    await link.frames(3)
    await link.send(pong(3), start(call=1))
    await link.receiver.until_calls(1)
    for nonce in range(4, 7):
        at(INTERVAL * nonce)
    assert link.receiver.told == []
    at(INTERVAL * 7)
    assert link.receiver.told == ["unresponsive"]


async def test_a_pong_answers_its_ping_and_those_before_and_none_that_were_not_sent(open_stream: Opens) -> None:
    link = await open_stream(ping_interval=INTERVAL)
    at = passes(link)
    await link.send(pong(1), pong(2), pong(3), pong(4), start(call=1))
    await link.receiver.until_calls(1)
    for nonce in range(1, 4):
        at(INTERVAL * nonce)
    await link.frames(3)
    await link.send(pong(0), pong(1), pong(2), pong(4), start(call=2))
    await link.receiver.until_calls(1, 2)
    at(INTERVAL * 4)
    at(INTERVAL * 5)
    assert link.receiver.told == []
    at(INTERVAL * 6)
    assert link.receiver.told == ["unresponsive"]


async def test_other_frames_are_no_pongs(open_stream: Opens) -> None:
    link = await open_stream(ping_interval=INTERVAL)
    at = passes(link)
    for nonce in range(1, 5):
        at(INTERVAL * nonce)
        await link.send(start(call=nonce))
        await link.receiver.until_calls(*range(1, nonce + 1))
    assert link.receiver.told == ["unresponsive"]


async def test_without_an_interval_nobody_is_pinged(link: Link) -> None:
    at = passes(link)
    at(1_000 * INTERVAL)
    assert link.outbox.empty
    assert link.receiver.told == []


async def test_a_stream_that_is_over_is_not_pinged(open_stream: Opens) -> None:
    link = await open_stream(ping_interval=INTERVAL)
    at = passes(link)
    link.peer.cut()
    await link.ended()
    for nonce in range(1, 8):
        at(INTERVAL * nonce)
    assert link.outbox.empty
    assert link.receiver.told[-1] == "ended"


async def test_a_receiver_may_close_an_unresponsive_stream(open_stream: Opens) -> None:
    receiver = Recorder()
    link = await open_stream(ping_interval=INTERVAL, receiver=receiver)
    receiver.on_unresponsive = link.stream.close
    at = passes(link)
    for nonce in range(1, 5):
        at(INTERVAL * nonce)
    assert [frame.ping.nonce for frame in await link.rest()] == [1, 2, 3]
    await link.ended()
    assert receiver.told == ["unresponsive", "ended"]


@pytest.mark.parametrize("what", ["unresponsive", "ended", "half_closed"])
async def test_an_exception_at_being_told_is_logged(
    open_stream: Opens, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    link = await open_stream(ping_interval=INTERVAL)
    told = getattr(link.receiver, what)

    def fail() -> None:
        told()
        raise RuntimeError("on purpose")

    setattr(link.receiver, what, fail)
    at = passes(link)
    for nonce in range(1, 5):
        at(INTERVAL * nonce)
    await link.peer.half_close()
    await link.receiver.until_told("half_closed")
    link.stream.lane(1).send(outcome())
    link.stream.finish()
    assert len(await link.rest()) == 4
    await link.ended()
    assert link.raised is None
    assert link.receiver.told == ["unresponsive", "half_closed", "ended"]
    (record,) = [record for record in caplog.records if record.name == "sidecar.wire.stream"]
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "on purpose"


@pytest.mark.parametrize("kind", ["memory"], indirect=True)
@pytest.mark.parametrize("anyio_backend", [("asyncio", {"loop_factory": VirtualTimeLoop})], ids=["virtual time"])
async def test_streams_are_looked_at_once_a_second(open_stream: Opens, streams: Streams, anyio_backend: Any) -> None:
    loop = asyncio.get_running_loop()
    looking = asyncio.ensure_future(streams.run())
    silent, healthy = [await open_stream(ping_interval=INTERVAL) for _ in range(2)]
    stalled = await open_stream(WireLimits(stall_after=30.0))
    began = loop.time()
    stalled.stream.lane(1).send(outcome())

    async def answer() -> None:
        while True:
            message = await healthy.peer.read_patiently()
            for frame in frames_of([message or b""]):
                await healthy.send(pong(frame.ping.nonce))

    async def listen() -> None:
        while True:
            await silent.peer.read_patiently()

    answering, listening = asyncio.ensure_future(answer()), asyncio.ensure_future(listen())
    for seconds, told in ((29, []), (32, ["ended"])):
        await asyncio.sleep(began + seconds - loop.time())
        assert stalled.receiver.told == told
    for seconds, told in ((39, []), (42, ["unresponsive"]), (300, ["unresponsive"])):
        await asyncio.sleep(began + seconds - loop.time())
        assert silent.receiver.told == told
    assert healthy.receiver.told == []
    assert streams.lingering == 1
    for task in (answering, listening, looking):
        task.cancel()
    await asyncio.gather(answering, listening, looking, return_exceptions=True)
