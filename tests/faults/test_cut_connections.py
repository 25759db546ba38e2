"""A connection that is cut at any message of a call: each time one typed end, and nobody else notices."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from sidecar._gen.pillion.v1.context_pb2 import CancelReason
from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind, Outcome, SideEffects
from sidecar._gen.pillion.v1.tool_pb2 import Effects
from tests.faults.conftest import Inside
from tests.faults.exchange import CALLER_MESSAGES, WORKER_MESSAGES, Exchange, cuts, place
from tests.faults.proxy import FROM_SIDECAR, TO_SIDECAR, Cut, Proxy
from tests.support import (
    IDEMPOTENT,
    READ,
    UNSAFE,
    CallerPeer,
    CallLimits,
    SocketHost,
    StartHost,
    WorkerPeer,
    attach,
    on_sockets,
    tool,
)
from tests.support.links import ATTACH, EXECUTE, GrpcLink

DISCONNECT = CancelReason.CANCEL_REASON_DISCONNECT
CANCELLED = FailureKind.FAILURE_KIND_CANCELLED
OUTCOME_UNKNOWN = FailureKind.FAILURE_KIND_OUTCOME_UNKNOWN
UNAVAILABLE = FailureKind.FAILURE_KIND_UNAVAILABLE
WORKER_LOST = FailureKind.FAILURE_KIND_WORKER_LOST
NONE = SideEffects.SIDE_EFFECTS_NONE
POSSIBLE = SideEffects.SIDE_EFFECTS_POSSIBLE

HOST_LIMITS = CallLimits(worker_wait=0.05)
CASES = ((READ, True), (UNSAFE, True), (READ, False), (IDEMPOTENT, False))
"""What the tool does to the world, and whether another instance has it."""

INVOKED = WORKER_MESSAGES.index((FROM_SIDECAR, 2, "invoke"))
ASKED = WORKER_MESSAGES.index((TO_SIDECAR, 5, "request"))
STARTED = CALLER_MESSAGES.index((TO_SIDECAR, 2, "start"))
ENDED = CALLER_MESSAGES.index((FROM_SIDECAR, 5, "outcome"))


@pytest.fixture
async def host(without_debug: None, start_host: StartHost) -> SocketHost:
    started = await start_host(calls=HOST_LIMITS)
    assert isinstance(started, SocketHost)
    return started


class Bystanders:
    """A caller and a worker on connections of their own, in the middle of a call."""

    def __init__(self, caller: CallerPeer, worker: WorkerPeer) -> None:
        self.caller = caller
        self._worker = worker
        self._call = self._run = 0

    async def begin(self) -> None:
        self._call = await self.caller.start("other", {"text": "mine"})
        self._run = (await self._worker.next_invoke()).call
        await self._worker.progress(self._run, {"message": "before"})
        await self.caller.next_of("progress", self._call)

    async def see_nothing(self) -> None:
        """Their call goes on and ends as if nothing had been."""
        await self._worker.progress(self._run, {"message": "after"})
        await self._worker.result(self._run, "well")
        assert (await self.caller.outcome(self._call)).result.json == b'"well"'
        assert self.caller.bodies(self._call) == ["started", "progress", "progress", "outcome"]
        assert self._worker.bodies(self._run) == ["invoke"]


@asynccontextmanager
async def through(
    proxy_of_caller: Proxy | None, proxy_of_worker: Proxy | None, host: SocketHost
) -> AsyncIterator[Exchange]:
    """The two peers of the exchange, each behind its proxy where it has one."""
    async with AsyncExitStack() as stack:
        proxies = [await stack.enter_async_context(each) for each in (proxy_of_caller, proxy_of_worker) if each]
        callers_at = proxy_of_caller.address if proxy_of_caller else host.callers_at
        workers_at = proxy_of_worker.address if proxy_of_worker else host.workers_at
        caller = await stack.enter_async_context(CallerPeer(GrpcLink(callers_at, EXECUTE), virtual=False))
        worker = await stack.enter_async_context(WorkerPeer(GrpcLink(workers_at, ATTACH), virtual=False))
        yield Exchange(caller, worker, *proxies)


async def bystanders_of(host: SocketHost) -> Bystanders:
    bystanders = Bystanders(await host.caller(), await attach(host, tool("other"), worker="other"))
    await bystanders.begin()
    return bystanders


async def all_works_again(host: SocketHost) -> None:
    """New peers run a whole call, and the sidecar tells of itself."""
    async with through(None, None, host) as exchange:
        assert await exchange.attach(READ)
        assert await exchange.run()
        await exchange.worker.goodbye()
        await exchange.worker.end()
    assert (await host.info()).instance_id


@on_sockets
async def test_the_exchange_is_as_recorded(host: SocketHost, inside: Inside) -> None:
    callers, workers = Proxy(host.callers_at), Proxy(host.workers_at)
    async with through(callers, workers, host) as exchange:
        assert await exchange.attach(UNSAFE)
        assert await exchange.run()
        for proxy, recorded in ((callers, CALLER_MESSAGES), (workers, WORKER_MESSAGES)):
            directions = [direction for direction, _, _ in recorded]
            assert proxy.messages == (directions.count(TO_SIDECAR), directions.count(FROM_SIDECAR))
    await inside.nothing_is_left()


# --- the worker's connection


def fits(cut: Cut, outcome: Outcome, effects: "Effects.ValueType", *, spare: bool) -> bool:
    """Whether the outcome is right for a call whose worker's connection was cut there."""
    passed = place(cut, WORKER_MESSAGES)
    failure = outcome.failure
    returned = outcome.result.json == b'"done"'
    again = outcome.result.json == b'"spare"'
    if passed <= INVOKED and not (cut.inside and passed == INVOKED):
        # Nothing was handed to the lost one: another is asked, if there is one.
        return again if spare else (failure.kind, failure.side_effects) == (UNAVAILABLE, NONE)
    if effects == UNSAFE:
        lost = (failure.kind, failure.side_effects, failure.retryable) == (OUTCOME_UNKNOWN, POSSIBLE, False)
    else:
        side_effects = NONE if effects == READ else POSSIBLE
        lost = (failure.kind, failure.side_effects, failure.retryable) == (WORKER_LOST, side_effects, True)
    if passed == len(WORKER_MESSAGES):
        # The outcome had left the worker: it arrives whole or not at all.
        return returned or lost
    answered = passed > ASKED + 1 or (passed > ASKED and cut.direction == FROM_SIDECAR)
    if effects == UNSAFE or not spare or answered:
        return lost
    if passed == ASKED + 1:
        # The request had left the worker: a tool whose request was seen is not run again.
        return lost or again
    return again


async def serve_spare(worker: WorkerPeer) -> None:
    while True:
        run = await worker.next_invoke()
        await worker.result(run.call, "spare")


@on_sockets
@pytest.mark.parametrize("cut", cuts(WORKER_MESSAGES), ids=str)
async def test_a_call_whose_workers_connection_is_cut_has_one_outcome(
    host: SocketHost, inside: Inside, cut: Cut
) -> None:
    bystanders = await bystanders_of(host)
    for effects, spare in CASES if host.transport == "unix" else CASES[:1]:
        async with through(None, Proxy(host.workers_at, cut), host) as exchange:
            attached = await exchange.attach(effects)
            another = await attach(host, tool("echo", effects=effects)) if spare else None
            serving = asyncio.ensure_future(serve_spare(another)) if another is not None else None
            if attached:
                await exchange.run()
            else:
                # The lost worker's stream is over before the call is started.
                await exchange.worker.end()
                await exchange.caller.flush()
                await inside.streams_are(4 if spare else 3)
                exchange.call = await exchange.caller.start("echo", {"text": "hello"})
            await exchange.worker.end()
            outcome = await exchange.outcome()
            assert fits(cut, outcome, effects, spare=spare), outcome
            await exchange.caller.flush()
            assert len(exchange.caller.outcomes(exchange.call)) == 1
            assert exchange.caller.bodies(exchange.call)[0] == "started"
            if serving is not None and another is not None:
                # Its last write is taken by then; to cancel one would cancel its stream.
                await another.flush()
                serving.cancel()
                await asyncio.gather(serving, return_exceptions=True)
                await another.goodbye()
                await another.end()
        await inside.streams_are(2)
    await bystanders.see_nothing()
    await inside.nothing_is_left()
    await all_works_again(host)


# --- the caller's connection


@on_sockets
@pytest.mark.parametrize("cut", cuts(CALLER_MESSAGES), ids=str)
async def test_a_tool_whose_callers_connection_is_cut_is_told(host: SocketHost, inside: Inside, cut: Cut) -> None:
    bystanders = await bystanders_of(host)
    async with through(Proxy(host.callers_at, cut), None, host) as exchange:
        assert await exchange.attach(UNSAFE)
        await exchange.run()
        await exchange.caller.end()
        # Those of the bystanders and of the worker.
        await inside.streams_are(3)
        worker = exchange.worker
        await worker.flush()
        passed = place(cut, CALLER_MESSAGES)
        assert len(worker.invoked) == 0 if passed <= STARTED else len(worker.invoked) <= 1
        if passed > STARTED + 1:
            assert len(worker.invoked) == 1
        if passed > ENDED or (passed == ENDED and cut.inside):
            assert inside.counts["results"] == 1
            assert worker.bodies(worker.invoked[0].call) == ["invoke", "reply"]
        elif worker.invoked:
            run = worker.invoked[0].call
            assert await worker.cancelled(run) == DISCONNECT
            await worker.fail(run, CANCELLED, NONE)
            await worker.flush()
            assert inside.counts["failures.CANCELLED"] == 1
        await worker.goodbye()
        await worker.end()
    await bystanders.see_nothing()
    await inside.nothing_is_left()
    await all_works_again(host)
