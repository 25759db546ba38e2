"""Callers that do not read: what is kept for them is bounded, others notice nothing, in the end they are given up."""

import asyncio
import contextlib

import grpc
import pytest

from sidecar._gen.pillion.v1.context_pb2 import CancelReason
from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind
from sidecar.wire.transport import StreamLost
from tests.faults.conftest import Inside
from tests.support import CallerPeer, Host, StartHost, WireLimits, WorkerPeer, attach, on_sockets, on_unix, progress

KIB = 1024
REPORT = {"message": "x" * (8 * KIB)}
REPORTS = 2_000
"""About 16 MiB, where gRPC's own windows take far less than one."""
A_MESSAGE = 100
STARTS = 1_500

DISCONNECT = CancelReason.CANCEL_REASON_DISCONNECT
OVERLOADED = FailureKind.FAILURE_KIND_OVERLOADED
UNKNOWN_TOOL = FailureKind.FAILURE_KIND_UNKNOWN_TOOL


async def flood(worker: WorkerPeer, run: int) -> None:
    """Reports far more than a stream holds."""
    reports = [progress(run, REPORT)] * A_MESSAGE
    for _ in range(REPORTS // A_MESSAGE):
        await worker.send(*reports)
    await worker.flush()


async def works(host: Host, caller: CallerPeer, worker: WorkerPeer) -> None:
    """Another caller's call goes through."""
    call = await caller.start()
    await worker.result((await worker.next_invoke()).call, "well")
    assert (await caller.outcome(call)).result.json == b'"well"'


@on_sockets
async def test_a_caller_that_reads_late_gets_the_newest_and_the_outcome(host: Host, inside: Inside) -> None:
    worker, caller, other = await attach(host), await host.caller(), await host.caller()
    call = await caller.start()
    run = (await worker.next_invoke()).call
    caller.pause()
    await flood(worker, run)
    # What is kept of it: 32 reports, and what gRPC is handing over.
    assert inside.undelivered < 64 * len(str(REPORT)) + 256 * KIB
    await works(host, other, worker)
    await worker.result(run, "done")
    await worker.flush()
    caller.resume()
    assert (await caller.outcome(call)).result.json == b'"done"'
    frames = caller.frames[call]
    assert [frame.sequence for frame in frames] == sorted(frame.sequence for frame in frames)
    reports = sum(frame.HasField("progress") for frame in frames)
    assert reports + sum(frame.coalesced for frame in frames) == REPORTS
    assert 32 <= reports < REPORTS // 4


@on_sockets
async def test_a_caller_that_stops_reading_is_given_up(start_host: StartHost, inside: Inside) -> None:
    host = await start_host(wire=WireLimits(stall_after=1.0))
    worker, caller, other = await attach(host), await host.caller(), await host.caller()
    calls = [await caller.start() for _ in range(3)]
    runs = [(await worker.next_invoke()).call for _ in calls]
    caller.pause()
    await flood(worker, runs[0])
    for run in runs:
        assert await worker.cancelled(run) == DISCONNECT
        await worker.fail(run)
    await worker.flush()
    assert inside.counts["stalled_streams"] == 1
    assert inside.counts["failures.CANCELLED"] == 3
    # The RPC lingers, and holds no more than the message that is being written.
    assert inside.undelivered <= 256 * KIB + 16 * KIB
    assert inside.streams.lingering == 1
    await works(host, other, worker)
    caller.resume()
    end = await caller.end()
    assert end.code is grpc.StatusCode.ABORTED
    assert end.message == "The caller stopped reading."
    await inside.streams_are(2)
    assert not [frame for call in calls for frame in caller.frames[call] if frame.HasField("outcome")]


@on_sockets
async def test_a_caller_that_stops_reading_and_leaves_is_forgotten(start_host: StartHost, inside: Inside) -> None:
    host = await start_host(wire=WireLimits(stall_after=1.0))
    worker, caller = await attach(host), await host.caller()
    await caller.start()
    run = (await worker.next_invoke()).call
    caller.pause()
    await flood(worker, run)
    assert await worker.cancelled(run) == DISCONNECT
    await worker.fail(run)
    caller.cut()
    await inside.streams_are(1)
    await works(host, await host.caller(), worker)


@on_unix
@pytest.mark.parametrize("tool", ["nobody", "echo"], ids=["refused", "run"])
async def test_a_caller_that_starts_without_reading_is_held_back(
    without_debug: None, start_host: StartHost, inside: Inside, tool: str
) -> None:
    limits = WireLimits(undelivered_soft=8 * KIB, undelivered_hard=32 * KIB)
    host = await start_host(wire=limits)
    worker, caller, other = await attach(host, concurrency=1_024), await host.caller(), await host.caller()

    async def serve() -> None:
        while True:
            await worker.result((await worker.next_invoke()).call, "x" * KIB)

    async def start_on() -> None:
        with contextlib.suppress(StreamLost):
            for _ in range(STARTS // 10):
                await caller.send(*[caller.starting(tool, {"text": "x" * 8 * KIB}) for _ in range(10)])

    serving = asyncio.ensure_future(serve())
    caller.pause()
    starting = asyncio.ensure_future(start_on())
    while not inside.is_overfull:
        await other.flush()
    # One more message of theirs may be answered, and one be on its way.
    assert inside.undelivered < limits.undelivered_hard + 256 * KIB
    # Its own stream is not read any more; those of others are.
    for _ in range(20):
        assert (await other.call("nobody")).failure.kind == UNKNOWN_TOOL
        assert (await other.call("echo")).result.json
    assert not starting.done()
    caller.resume()
    await starting
    kinds = [(await caller.outcome(call)).failure.kind for call in range(1, STARTS + 1)]
    refusal = UNKNOWN_TOOL if tool == "nobody" else 0
    assert set(kinds) == {refusal, OVERLOADED}
    assert kinds[0] == refusal
    assert all(caller.bodies(call)[0] == "started" for call in range(1, STARTS + 1))
    assert all(len(caller.outcomes(call)) == 1 for call in range(1, STARTS + 1))
    # Now that it reads, it may start again.
    assert (await caller.call("echo")).result.json
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
