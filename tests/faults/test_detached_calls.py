"""Detached calls whose callers, followers and workers are lost, slow or many: one outcome, and no report lost twice."""

import asyncio

import pytest

from sidecar._gen.pillion.v1.context_pb2 import CancelReason
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind, SideEffects
from sidecar._gen.pillion.v1.tool_pb2 import Effects
from sidecar.calls.detached import Detached
from tests.faults.conftest import Inside
from tests.faults.proxy import FROM_SIDECAR, TO_SIDECAR, Cut, Proxy
from tests.integration.test_detached import begun, detach, follow, following
from tests.support import (
    IDEMPOTENT,
    READ,
    UNSAFE,
    CallerPeer,
    CallLimits,
    SocketHost,
    StartHost,
    WireLimits,
    attach,
    on_sockets,
    on_unix,
    progress,
    tool,
)
from tests.support.links import EXECUTE, GrpcLink

KIB = 1024
REPORTS = 40
FOLLOWS = 1_000
CANCELLED = FailureKind.FAILURE_KIND_CANCELLED
OUTCOME_UNKNOWN = FailureKind.FAILURE_KIND_OUTCOME_UNKNOWN
WORKER_LOST = FailureKind.FAILURE_KIND_WORKER_LOST
NONE, POSSIBLE = SideEffects.SIDE_EFFECTS_NONE, SideEffects.SIDE_EFFECTS_POSSIBLE


def kept(inside: Inside) -> Detached:
    """The detached calls of the sidecar."""
    detached = inside.pipeline.detached
    assert detached is not None
    return detached


@on_sockets
@pytest.mark.parametrize("message", range(1, 8))
@pytest.mark.parametrize("is_cut_inside", [False, True], ids=["after", "inside"])
async def test_a_stream_that_is_cut_in_mid_progress_loses_no_report(
    without_debug: None, start_host: StartHost, message: int, is_cut_inside: bool
) -> None:
    host = await start_host()
    assert isinstance(host, SocketHost)
    worker = await attach(host)
    async with Proxy(host.callers_at, Cut(FROM_SIDECAR, message, is_cut_inside)) as proxy:
        caller = CallerPeer(GrpcLink(proxy.address, EXECUTE), virtual=False)
        call = await caller.start(detachable=True, idempotency_key="k")
        run = await worker.next_invoke()
        seen: list[Frame] = []
        ticket = ""
        for number in range(REPORTS):
            await worker.progress(run.call, {"number": number})
            if not proxy.was_cut.is_set():
                await worker.flush()
        await proxy.was_cut.wait()
        await caller.end()
        seen = [frame for frame in caller.frames[call] if frame.HasField("progress")]
        ticket = next((frame.started.ticket for frame in caller.frames[call] if frame.HasField("started")), "")
        await caller.aclose()
    other = await host.caller()
    if ticket:
        again = await follow(other, ticket, seen[-1].sequence + 1 if seen else 0)
    else:
        # Its ticket was lost with the stream, and its key finds it.
        assert not seen
        again = await other.start(detachable=True, idempotency_key="k")
        assert (await other.started(again)).joined
    await worker.result(run.call, b'"done"')
    assert (await other.outcome(again)).result.json == b'"done"'
    if ticket:
        seen += [frame for frame in other.frames[again] if frame.HasField("progress")]
        assert [frame.progress.payload for frame in seen] == [b'{"number": %d}' % number for number in range(REPORTS)]
        assert not any(frame.coalesced for frame in seen)


@on_sockets
@pytest.mark.parametrize("cut", [Cut(TO_SIDECAR, 1, inside=True), Cut(TO_SIDECAR, 1)], ids=str)
async def test_a_stream_that_is_cut_around_its_start_leaves_no_call_that_nobody_knows(
    without_debug: None, start_host: StartHost, inside: Inside, cut: Cut
) -> None:
    host = await start_host(calls=CallLimits(cancel_grace=0.2))
    assert isinstance(host, SocketHost)
    worker = await attach(host)
    async with Proxy(host.callers_at, cut) as proxy:
        caller = CallerPeer(GrpcLink(proxy.address, EXECUTE), virtual=False)
        await caller.start(detachable=True)
        await proxy.was_cut.wait()
        await caller.end()
        await caller.aclose()
    await inside.streams_are(1)
    # Either it never began, or its `Started` was on its way and it goes on until its time is up.
    for call in tuple(inside.pipeline.running):
        call.cancel(CancelReason.CANCEL_REASON_OPERATOR)
    await worker.flush()
    for run in worker.invoked:
        await worker.fail(run.call, CANCELLED)
    await inside.nothing_is_left()


@on_sockets
@pytest.mark.parametrize(
    ("effects", "kind", "side_effects"),
    [(UNSAFE, OUTCOME_UNKNOWN, POSSIBLE), (IDEMPOTENT, WORKER_LOST, POSSIBLE), (READ, WORKER_LOST, NONE)],
    ids=["unsafe", "idempotent", "read"],
)
async def test_a_detached_call_whose_worker_is_lost_ends_as_any_other(
    start_host: StartHost,
    effects: "Effects.ValueType",
    kind: "FailureKind.ValueType",
    side_effects: "SideEffects.ValueType",
) -> None:
    host = await start_host()
    workers = [await attach(host, tool("echo", effects=effects)) for _ in range(2)]
    caller = await host.caller()
    _, ticket = await detach(caller)
    caller.cut()
    for worker in list(workers):
        await worker.flush()
    # An unsafe one is not run again; another is, once, and followed through it.
    while running := [worker for worker in workers if worker.invoked]:
        running[0].cut()
        workers.remove(running[0])
        if effects == UNSAFE or not workers:
            break
        await workers[0].next_invoke()
    other = await host.caller()
    failure = (await other.outcome(await follow(other, ticket))).failure
    assert (failure.kind, failure.side_effects) == (kind, side_effects)


@on_sockets
async def test_a_follower_that_does_not_read_holds_nothing_up(
    without_debug: None, start_host: StartHost, inside: Inside
) -> None:
    host = await start_host()
    worker, run, caller, call, ticket = await begun(host)
    caller.pause()
    for _ in range(100):
        await worker.send(*[progress(run.call, {"text": "x" * 4 * KIB}) for _ in range(50)])
    await worker.flush()
    assert inside.undelivered <= 512 * KIB
    assert kept(inside).kept_bytes <= 1024 * KIB
    other = await host.caller()
    again = await follow(other, ticket)
    await other.flush()
    await worker.result(run.call, b"1")
    assert (await other.outcome(again)).result.json == b"1"
    reports = [frame for frame in other.frames[again] if frame.HasField("progress")]
    assert sum(1 + frame.coalesced for frame in reports) == 5_000
    caller.resume()
    await caller.next_of("superseded", call)
    assert not caller.outcomes(call)


@on_sockets
async def test_two_followers_that_race_get_one_outcome_between_them(
    without_debug: None, start_host: StartHost, inside: Inside
) -> None:
    host = await start_host()
    worker, run, caller, call, ticket = await begun(host)
    peers = [await host.caller() for _ in range(2)]

    async def race(peer: CallerPeer) -> list[int]:
        calls = []
        for _ in range(50):
            calls.append(await follow(peer, ticket))
            await peer.next_of("started", calls[-1])
        return calls

    async def report() -> None:
        for _ in range(200):
            await worker.progress(run.call, {})
        await worker.result(run.call, b"1")

    reporting = asyncio.ensure_future(report())
    raced = await asyncio.gather(*(race(peer) for peer in peers))
    await reporting
    last = await follow(caller, ticket)
    assert (await caller.outcome(last)).result.json == b"1"
    for peer, calls in zip(peers, raced, strict=True):
        await peer.flush()
        for number in calls:
            bodies = peer.bodies(number)
            assert bodies[0] == "started"
            assert bodies[-1] in ("superseded", "outcome")
            assert sum(body in ("superseded", "outcome") for body in bodies) == 1
            sequences = [frame.sequence for frame in peer.frames[number]]
            assert sequences == sorted(sequences)
    assert caller.bodies(call)[-1] == "superseded"
    await inside.nothing_is_left()


@on_unix
@pytest.mark.parametrize("at_once", [1, FOLLOWS], ids=["one by one", "at once"])
async def test_a_thousand_follows_of_one_call(
    without_debug: None, start_host: StartHost, inside: Inside, at_once: int
) -> None:
    host = await start_host()
    worker, run, _, _, ticket = await begun(host)
    for number in range(20):
        await worker.progress(run.call, {"number": number})
    await worker.flush()
    other = await host.caller()
    for _ in range(FOLLOWS // at_once):
        await other.send(*(following(other, ticket) for _ in range(at_once)))
        if at_once == 1:
            await other.next_of("started", other.last_call)
    # All of them are handled before the call ends, which the worker's stream may tell first.
    await other.flush()
    await worker.result(run.call, b"1")
    assert (await other.outcome(FOLLOWS)).result.json == b"1"
    await other.flush()
    assert all(other.bodies(number)[-1] == "superseded" for number in range(1, FOLLOWS))
    assert all(len(other.bodies(number)) == 22 for number in range(1, FOLLOWS + 1))
    assert inside.counts["superseded_followers"] == FOLLOWS
    assert inside.counts["followed_calls"] == FOLLOWS
    assert len(kept(inside)) == 1
    await inside.nothing_is_left()


@on_unix
async def test_many_large_replays_are_refused_before_they_fill_the_memory(
    without_debug: None, start_host: StartHost, inside: Inside
) -> None:
    host = await start_host(wire=WireLimits(undelivered_soft=512 * KIB))
    worker, run, _, _, ticket = await begun(host)
    for _ in range(100):
        await worker.progress(run.call, {"text": "x" * 8 * KIB})
    await worker.flush()
    other = await host.caller()
    other.pause()
    await other.send(*(following(other, ticket) for _ in range(200)))
    second = await host.caller()
    await second.flush()
    assert inside.undelivered <= 512 * KIB + 2 * 1024 * KIB
    other.resume()
    kinds = [(await other.outcome(number)).failure.kind for number in range(50, 200)]
    assert set(kinds) == {FailureKind.FAILURE_KIND_OVERLOADED}
    again = await follow(second, ticket)
    await worker.result(run.call, b"1")
    assert (await second.outcome(again)).result.json == b"1"
