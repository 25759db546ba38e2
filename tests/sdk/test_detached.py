"""Detached calls, as callers with the SDK have them."""

import asyncio
from typing import Any

import pytest

import pillion
import pillion.sync
from pillion import errors
from tests.faults.proxy import Proxy
from tests.sdk.conftest import StartWorker
from tests.support import SidecarProcess, SocketHost


class Steps:
    """A tool that takes a step whenever the test says so."""

    def __init__(self) -> None:
        self.began: asyncio.Queue[pillion.ToolContext] = asyncio.Queue()
        self.steps: asyncio.Queue[bool] = asyncio.Queue()

    async def run(self, ctx: pillion.ToolContext) -> int:
        """Reports each step; answers how many there were."""
        self.began.put_nowait(ctx)
        number = 0
        while await self.steps.get():
            number += 1
            ctx.progress({"step": number})
        return number

    def go(self, times: int = 1) -> None:
        for _ in range(times):
            self.steps.put_nowait(True)

    def end(self) -> None:
        self.steps.put_nowait(False)


@pytest.fixture
async def steps(start_worker: StartWorker, socket_host: SocketHost) -> Steps:
    made = Steps()
    await start_worker(pillion.tool(name="echo")(made.run), target=socket_host.workers_at)
    return made


async def reports(call: pillion.Call, number: int) -> list[Any]:
    """The next reports of a call."""
    return [(await anext(call)).payload["step"] for _ in range(number)]


async def test_a_detached_call_is_followed_by_another_connection(socket_host: SocketHost, steps: Steps) -> None:
    async with pillion.connect(socket_host.callers_at) as caller:
        async with caller.start("echo", detachable=True) as call:
            ticket = await call.detach()
            assert call.ticket == ticket
            steps.go(2)
            assert await reports(call, 1) == [1]
        # Left, and not cancelled.
        with pytest.raises(errors.StreamLost):
            await call.result()
    async with pillion.connect(socket_host.callers_at) as caller, caller.follow(ticket) as followed:
        assert await reports(followed, 2) == [1, 2]
        steps.go()
        steps.end()
        assert await reports(followed, 1) == [3]
        assert await followed.result() == 3
        assert followed.execution_id == call.execution_id
        assert followed.tool_call_id == call.tool_call_id
        async with caller.follow(ticket, from_sequence=3) as again:
            assert [report.payload["step"] async for report in again] == [2, 3]
            assert await again.result() == 3
        with pytest.raises(errors.TicketInvalid):
            async with caller.follow("tic_none") as nothing:
                await nothing.result()


async def test_what_is_no_ticket_of_a_detached_call_is_refused_at_once(socket_host: SocketHost) -> None:
    async with pillion.connect(socket_host.callers_at) as caller:
        for ticket in (None, pillion.Secret("tic_of_a_pause")):
            with pytest.raises(TypeError, match="that of a pause is for `resume`"):
                caller.follow(ticket)  # type: ignore[arg-type]


async def test_a_call_that_was_not_detached_is_cancelled_when_it_is_left(socket_host: SocketHost, steps: Steps) -> None:
    async with pillion.connect(socket_host.callers_at) as caller:
        async with caller.start("echo", detachable=True):
            context = await steps.began.get()
        assert await context.wait_cancelled() is pillion.CancelReason.CALLER


async def test_a_follower_that_leaves_lets_the_call_go_on_and_one_that_cancels_does_not(
    socket_host: SocketHost, steps: Steps
) -> None:
    async with pillion.connect(socket_host.callers_at) as caller:
        async with caller.start("echo", detachable=True) as call:
            ticket = await call.detach()
        async with caller.follow(ticket) as left:
            steps.go()
            await reports(left, 1)
        async with caller.follow(ticket) as followed:
            await followed.cancel()
            assert isinstance(await followed.ended(), errors.CallCancelled)


async def test_who_is_superseded_is_told_by_an_error_of_its_own(socket_host: SocketHost, steps: Steps) -> None:
    async with (
        pillion.connect(socket_host.callers_at) as first,
        pillion.connect(socket_host.callers_at) as second,
        first.start("echo", detachable=True) as call,
    ):
        ticket = await call.detach()
        async with second.follow(ticket) as followed:
            with pytest.raises(errors.Superseded) as superseded:
                await call.result()
            assert superseded.value.execution_id == call.execution_id
            assert [report async for report in call] == []
            assert first.in_flight == 0
            steps.end()
            assert await followed.result() == 0


async def test_a_refused_call_has_no_ticket(socket_host: SocketHost, steps: Steps) -> None:
    async with pillion.connect(socket_host.callers_at) as caller:
        async with caller.start("nobody", detachable=True) as call:
            with pytest.raises(errors.UnknownTool):
                await call.detach()
            assert call.ticket is None
        async with caller.start("echo") as call:
            with pytest.raises(ValueError, match="detachable=True"):
                await call.detach()
        fresh = caller.start("echo", detachable=True)
        with pytest.raises(errors.Closed):
            await fresh.detach()
        assert steps.began.qsize() <= 1


async def test_a_lost_stream_is_made_good_and_no_report_is_missing(socket_host: SocketHost, steps: Steps) -> None:
    async with Proxy(socket_host.callers_at) as proxy, pillion.connect(proxy.address) as caller:
        async with caller.start("echo", detachable=True) as call:
            seen = []
            for _ in range(4):
                steps.go(3)
                seen += await reports(call, 3)
                proxy.cut()
                proxy.admit()
            steps.end()
            seen += [report.payload["step"] async for report in call]
            assert seen == list(range(1, 13))
            assert await call.result() == 12
        assert caller.reconnects >= 3
        # Nothing was run again.
        assert steps.began.qsize() == 1


async def test_a_cancel_that_may_be_lost_with_the_stream_is_said_again(socket_host: SocketHost, steps: Steps) -> None:
    async with (
        Proxy(socket_host.callers_at) as proxy,
        pillion.connect(proxy.address) as caller,
        caller.start("echo", detachable=True) as call,
    ):
        await call.detach()
        context = await steps.began.get()
        # What is written to a connection that is lost is lost with it, and nobody knows that yet.
        proxy.cut()
        await call.cancel()
        proxy.admit()
        assert isinstance(await call.ended(), errors.CallCancelled)
        assert context.cancel_reason is pillion.CancelReason.CALLER


async def test_a_stream_that_does_not_come_back_is_told_and_the_ticket_is_good(
    socket_host: SocketHost, steps: Steps
) -> None:
    async with (
        Proxy(socket_host.callers_at) as proxy,
        pillion.connect(proxy.address, patience=0.3) as caller,
        caller.start("echo", detachable=True) as call,
    ):
        ticket = await call.detach()
        proxy.cut()
        with pytest.raises(errors.StreamLost) as lost:
            await call.result()
        assert lost.value.side_effects is pillion.SideEffects.POSSIBLE
    steps.end()
    async with pillion.connect(socket_host.callers_at) as caller, caller.follow(ticket) as followed:
        assert await followed.result() == 0


async def test_a_call_is_followed_again_by_itself_when_the_sidecar_is_killed(
    sidecar_process: SidecarProcess, start_worker: StartWorker
) -> None:
    made = Steps()
    await start_worker(
        pillion.tool(name="read", effects=pillion.READ)(made.run),
        pillion.tool(name="echo")(made.run),
        target=sidecar_process.workers_at,
    )
    async with (
        pillion.connect(sidecar_process.callers_at) as caller,
        caller.start("read", detachable=True) as safe,
        caller.start("echo", detachable=True) as unsafe,
    ):
        await made.began.get()
        await made.began.get()
        await asyncio.gather(safe.detach(), unsafe.detach())
        await sidecar_process.kill()
        await sidecar_process.start()
        with pytest.raises(errors.WorkerLost) as lost:
            await safe.result()
        assert (lost.value.retryable, lost.value.side_effects) == (True, pillion.SideEffects.NONE)
        with pytest.raises(errors.OutcomeUnknown):
            await unsafe.result()


async def test_the_synchronous_face_detaches_and_follows(socket_host: SocketHost, start_worker: StartWorker) -> None:
    @pillion.tool
    async def echo(n: int, ctx: pillion.ToolContext) -> int:
        ctx.progress({"n": n})
        return n

    await start_worker(echo)

    def work() -> None:
        with pillion.sync.connect(socket_host.callers_at) as host:
            with host.start("echo", {"n": 7}, detachable=True) as call:
                ticket = call.detach()
                assert call.ticket == ticket
                assert call.result() == 7
            with host.follow(ticket) as followed:
                assert [report.payload for report in followed] == [{"n": 7}]
                assert followed.result() == 7

    await asyncio.to_thread(work)


async def test_a_call_that_is_left_while_its_stream_is_lost_is_cancelled_all_the_same(
    socket_host: SocketHost, steps: Steps
) -> None:
    async with Proxy(socket_host.callers_at) as proxy, pillion.connect(proxy.address) as caller:
        async with caller.start("echo", detachable=True) as call:
            context = await steps.began.get()
            steps.go()
            await reports(call, 1)
            proxy.cut()
        proxy.admit()
        assert await context.wait_cancelled() is pillion.CancelReason.CALLER
