import asyncio
import contextlib
import signal
import time
from decimal import Decimal
from typing import Any

import anyio
import pytest

import pillion
from pillion import errors
from pillion._content import write_content
from pillion.content import Audio, Content, Hints, Image, Resource, ResourceLink, Text
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outcome_pb2 import ContentBlock, FailureKind, SideEffects
from tests.support import (
    READ,
    CallLimits,
    Invocation,
    SidecarProcess,
    SocketHost,
    StartHost,
    WorkerPeer,
    attach,
    tool,
)

CANCELLED, FAILED = FailureKind.FAILURE_KIND_CANCELLED, FailureKind.FAILURE_KIND_TOOL_FAILED
NOTHING, COMMITTED = SideEffects.SIDE_EFFECTS_NONE, SideEffects.SIDE_EFFECTS_COMMITTED


@pytest.fixture
async def worker(socket_host: SocketHost) -> WorkerPeer:
    """A worker whose every frame is the test's."""
    return await attach(socket_host, tool("echo"), tool("read", effects=READ), concurrency=2_000)


async def reason_of(worker: WorkerPeer, invocation: Invocation) -> pillion.CancelReason:
    """Why the call is asked to stop, once it is."""
    return pillion.CancelReason(await worker.cancelled(invocation.call))


async def started(worker: WorkerPeer, work: Any) -> tuple[asyncio.Task[Any], Invocation]:
    """A running call of `work` and its invoke."""
    task = asyncio.ensure_future(work)
    return task, await worker.next_invoke()


async def test_a_call_answers_the_value(caller: pillion.Host, worker: WorkerPeer) -> None:
    task, invocation = await started(worker, caller.call("echo", {"n": 12345678901234567890, "d": Decimal("1.10")}))
    assert invocation.invoke.arguments == b'{"n":12345678901234567890,"d":1.10}'
    await worker.result(invocation.call, b'{"n":12345678901234567890,"d":0.1000000000000000055511151231257827}')
    assert await task == {"n": 12345678901234567890, "d": Decimal("0.1000000000000000055511151231257827")}


async def test_bytes_are_passed_on_as_they_are(caller: pillion.Host, worker: WorkerPeer) -> None:
    task, invocation = await started(worker, caller.call("echo", b'{ "a" : 1.0 }'))
    assert invocation.invoke.arguments == b'{ "a" : 1.0 }'
    await worker.result(invocation.call)
    assert await task is None


async def test_every_option_reaches_the_tool(caller: pillion.Host, worker: WorkerPeer) -> None:
    options: Any = {
        "timeout": 7.5,
        "idle_timeout": 3.0,
        "identity": pillion.Identity("acme", "ada", "c1"),
        "run_id": "r1",
        "session_id": "s1",
        "tool_call_id": "t1",
        "iteration": 4,
        "parent_anchor": "anchor",
        "trace": pillion.Trace("00-" + "1" * 32 + "-" + "2" * 16 + "-01", "a=b", "c=d"),
    }
    task, invocation = await started(worker, caller.call("echo", **options))
    context = invocation.context
    assert 6 < context.remaining.ToMilliseconds() / 1_000 <= 7.5
    assert context.idle_timeout.seconds == 3
    assert (context.identity.tenant, context.identity.principal, context.identity.conversation_id) == (
        "acme",
        "ada",
        "c1",
    )
    assert (context.run_id, context.session_id, context.tool_call_id, context.iteration) == ("r1", "s1", "t1", 4)
    assert context.parent_anchor == "anchor"
    assert (context.trace.tracestate, context.trace.baggage) == ("a=b", "c=d")
    await worker.result(invocation.call)
    await task


async def test_what_is_not_named_is_absent(caller: pillion.Host, worker: WorkerPeer) -> None:
    task, invocation = await started(worker, caller.call("echo"))
    for field in ("identity", "run_id", "session_id", "parent_anchor", "trace", "idle_timeout"):
        assert not invocation.context.HasField(field)
    await worker.result(invocation.call)
    await task


async def test_progress_comes_in_order_and_then_the_result(caller: pillion.Host, worker: WorkerPeer) -> None:
    async with caller.start("echo", {"text": "a"}) as call:
        invocation = await worker.next_invoke()
        for number in range(5):
            await worker.progress(invocation.call, {"n": number})
        await worker.result(invocation.call, b'"done"')
        before = time.time_ns()
        reports = [report async for report in call]
        assert [report.payload for report in reports] == [{"n": number} for number in range(5)]
        assert [report.sequence for report in reports] == [2, 3, 4, 5, 6]
        assert all(report.coalesced == 0 and abs(report.time_unix_nano - before) < 60e9 for report in reports)
        assert reports[0].json == b'{"n": 0}'
        assert reports[0].time.timestamp() == pytest.approx(reports[0].time_unix_nano / 1e9, abs=1e-3)
        assert await call.result() == "done"
        assert await call.result() == "done"
        assert call.execution_id
        assert call.tool_call_id
        assert call.generation
        assert [report async for report in call] == []


async def test_a_slow_reader_keeps_the_newest_reports(caller: pillion.Host, worker: WorkerPeer) -> None:
    async with caller.start("echo") as call:
        invocation = await worker.next_invoke()
        for number in range(100):
            await worker.progress(invocation.call, number)
        await worker.result(invocation.call, b"1")
        await call.ended()
        reports = [report async for report in call]
        assert reports[-1].payload == 99
        assert len(reports) <= 32
        assert len(reports) + sum(report.coalesced for report in reports) == 100


async def test_a_raw_result_has_its_blocks(caller: pillion.Host, worker: WorkerPeer) -> None:
    async with caller.start("echo") as call:
        invocation = await worker.next_invoke()
        frame_content: list[Content] = [
            Text("hello", Hints(("user",), 0.5, "2026-01-01")),
            Image(b"png", "image/png"),
            Audio(b"wav", "audio/wav"),
            ResourceLink("file:///x", "x", "X", "an x", "text/plain", 0),
            Resource("file:///y", "text"),
            Resource("file:///z", b"bytes", "application/x"),
        ]
        frame = Frame(call=invocation.call)
        frame.outcome.result.is_error = True
        frame.outcome.result.json = b'{"why":"because"}'
        for block in write_content(frame_content):
            frame.outcome.result.content.append(ContentBlock.FromString(block.SerializeToString()))
        await worker.send(frame)
        result = await call.raw()
        assert result.is_error
        assert result.value == {"why": "because"}
        assert list(result.content) == frame_content
        assert call.outcome is result
        with pytest.raises(errors.ErrorResult) as raised:
            await call.result()
        assert raised.value.result is result


async def test_no_value_is_not_null(caller: pillion.Host, worker: WorkerPeer) -> None:
    async with caller.start("echo") as call:
        await worker.result((await worker.next_invoke()).call)
        assert (await call.raw()).json is None
    async with caller.start("echo") as call:
        await worker.result((await worker.next_invoke()).call, b"null")
        assert (await call.raw()).json == b"null"


async def test_cancel_reaches_the_tool_and_its_end_the_caller(caller: pillion.Host, worker: WorkerPeer) -> None:
    async with caller.start("echo") as call:
        invocation = await worker.next_invoke()
        await call.cancel(pillion.CancelReason.PARENT)
        assert await reason_of(worker, invocation) is pillion.CancelReason.PARENT
        await worker.fail(invocation.call, CANCELLED, NOTHING)
        with pytest.raises(errors.CallCancelled) as raised:
            await call.result()
        assert raised.value.side_effects is pillion.SideEffects.NONE
        assert raised.value.execution_id == call.execution_id


async def test_leaving_the_block_cancels(caller: pillion.Host, worker: WorkerPeer) -> None:
    async with caller.start("echo") as call:
        invocation = await worker.next_invoke()
    assert await reason_of(worker, invocation) is pillion.CancelReason.CALLER
    with pytest.raises(errors.CallCancelled):
        await call.result()
    assert caller.in_flight == 1, "its slot is free with its outcome"
    await worker.fail(invocation.call, CANCELLED)
    await caller.info()
    task, invocation = await started(worker, caller.call("echo"))
    await worker.result(invocation.call)
    await task
    assert caller.in_flight == 0


@pytest.mark.parametrize("how", ["task", "scope", "timeout"])
async def test_cancelling_who_waits_cancels_the_call(caller: pillion.Host, worker: WorkerPeer, how: str) -> None:
    async def call() -> str:
        if how == "scope":
            with anyio.move_on_after(0.3) as scope:
                await caller.call("echo")
            return "moved on" if scope.cancelled_caught else "returned"
        try:
            async with asyncio.timeout(0.3 if how == "timeout" else None):
                await caller.call("echo")
        except TimeoutError:
            return "moved on"
        return "returned"

    task, invocation = await started(worker, call())
    if how == "task":
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    else:
        assert await task == "moved on"
    assert await reason_of(worker, invocation) is pillion.CancelReason.CALLER
    await worker.fail(invocation.call, CANCELLED)


async def test_a_scope_around_a_request_knows_its_own_cancellation(caller: pillion.Host) -> None:
    with anyio.move_on_after(0) as scope:
        await caller.info()
    assert scope.cancelled_caught


async def test_thousands_of_calls_share_one_stream(caller: pillion.Host, worker: WorkerPeer) -> None:
    calls = [asyncio.ensure_future(caller.call("echo", {"n": number})) for number in range(1_500)]
    for _ in calls:
        invocation = await worker.next_invoke()
        await worker.result(invocation.call, invocation.invoke.arguments)
    assert [value["n"] for value in await asyncio.gather(*calls)] == list(range(1_500))
    assert caller.in_flight == 0


async def test_failures_have_their_classes(caller: pillion.Host, worker: WorkerPeer) -> None:
    with pytest.raises(errors.UnknownTool) as unknown:
        await caller.call("nowhere")
    assert unknown.value.side_effects is pillion.SideEffects.NONE
    assert unknown.value.execution_id
    with pytest.raises(errors.InvalidArguments):
        await caller.call("echo", b'{"a":1,"a":2}')
    with pytest.raises(errors.InvalidArguments, match="bytes"):
        await caller.call("echo", {"a": "x" * (1 << 20)})
    task, invocation = await started(worker, caller.call("echo"))
    await worker.fail(invocation.call, FAILED, COMMITTED, "the disk is full")
    with pytest.raises(errors.ToolFailed, match="the disk is full") as failed:
        await task
    assert failed.value.side_effects is pillion.SideEffects.COMMITTED
    with pytest.raises(errors.JsonRefused):
        await caller.call("echo", {"a": float("nan")})


async def test_a_timeout_is_enforced(caller: pillion.Host, worker: WorkerPeer) -> None:
    task, invocation = await started(worker, caller.call("echo", timeout=0.2))
    assert await reason_of(worker, invocation) is pillion.CancelReason.DEADLINE
    await worker.fail(invocation.call, CANCELLED)
    with pytest.raises(errors.CallTimedOut):
        await task
    task, invocation = await started(worker, caller.call("echo", idle_timeout=0.2))
    assert await reason_of(worker, invocation) is pillion.CancelReason.IDLE
    await worker.fail(invocation.call, CANCELLED)
    with pytest.raises(errors.IdleTimedOut):
        await task


@pytest.mark.parametrize("workers_patience", [30.0])
async def test_a_timeout_is_enforced_here_too(start_host: StartHost, workers_patience: float) -> None:
    host: Any = await start_host(calls=CallLimits(cancel_grace=workers_patience))
    worker = await attach(host, tool("echo"))
    async with pillion.connect(host.callers_at, outcome_grace=0.1) as caller:
        task, invocation = await started(worker, caller.call("echo", timeout=0.1))
        with pytest.raises(errors.CallTimedOut, match="did not say in time"):
            await task
        await worker.fail(invocation.call, CANCELLED)


async def test_calls_wait_here_for_a_place_on_the_stream(start_host: StartHost) -> None:
    host: Any = await start_host(calls=CallLimits(in_flight_per_stream=2))
    worker = await attach(host, tool("echo"))
    async with pillion.connect(host.callers_at) as caller:
        calls = [asyncio.ensure_future(caller.call("echo", {"n": number})) for number in range(6)]
        timed = asyncio.ensure_future(caller.call("echo", timeout=0.2))
        first, second = await worker.next_invoke(), await worker.next_invoke()
        assert caller.in_flight == 2
        with pytest.raises(errors.CallTimedOut, match="before it could be sent"):
            await timed
        calls[3].cancel()
        for invocation in (first, second):
            await worker.result(invocation.call, invocation.invoke.arguments)
        for _ in range(3):
            invocation = await worker.next_invoke()
            await worker.result(invocation.call, invocation.invoke.arguments)
        values = await asyncio.gather(*calls, return_exceptions=True)
        assert [value["n"] if isinstance(value, dict) else None for value in values] == [0, 1, 2, None, 4, 5]


async def test_who_leaves_as_its_call_is_sent_cancels_it(start_host: StartHost) -> None:
    host: Any = await start_host(calls=CallLimits(in_flight_per_stream=1))
    worker = await attach(host, tool("echo"))

    async with pillion.connect(host.callers_at) as caller:

        async def second() -> None:
            async with caller.start("echo"):
                raise AssertionError("it was to be cancelled")

        async def first() -> None:
            await caller.call("echo")
            # Its place on the stream was given to the second in this very turn of the loop.
            waiting.cancel()

        running = asyncio.ensure_future(first())
        invocation = await worker.next_invoke()
        waiting = asyncio.ensure_future(second())
        await asyncio.sleep(0)
        await worker.result(invocation.call)
        await running
        with pytest.raises(asyncio.CancelledError):
            await waiting
        left = await worker.next_invoke()
        assert await reason_of(worker, left) is pillion.CancelReason.CALLER
        await worker.fail(left.call, CANCELLED)


async def test_tools_are_listed_and_watched(caller: pillion.Host, socket_host: SocketHost) -> None:
    async with contextlib.aclosing(caller.watch_tools()) as watched:
        first = await anext(watched)
        assert first.by_name == {}
        await attach(socket_host, tool("echo", effects=READ))
        while not (then := await anext(watched)).by_name:
            pass
        assert then.generation > first.generation
    listed = await caller.tools(pillion.Identity("acme"))
    assert listed.by_name["echo"].description
    assert listed.by_name["echo"].effects is pillion.READ
    assert listed == then


async def test_the_sidecar_says_what_it_is(caller: pillion.Host) -> None:
    info = await caller.info()
    assert info.oldest_protocol == info.newest_protocol == (1, 0)
    assert info.limits.max_in_flight == 1_024
    assert info.caller_principal
    assert info.uptime > 0


async def test_a_connection_that_nobody_answers_is_told_in_time(tmp_path: Any) -> None:
    with pytest.raises(errors.ConnectionFailed, match=r"within 0\.2 s"):
        async with pillion.connect(f"unix:{tmp_path}/nobody.sock", connect_timeout=0.2):
            pass


async def test_a_worker_listener_is_no_callers_listener(socket_host: SocketHost) -> None:
    with pytest.raises(errors.ConnectionFailed, match="UNIMPLEMENTED"):
        async with pillion.connect(socket_host.workers_at):
            pass


async def test_what_runs_at_the_end_of_the_connection_fails_there(socket_host: SocketHost, worker: WorkerPeer) -> None:
    async with pillion.connect(socket_host.callers_at) as caller:
        task, invocation = await started(worker, caller.call("echo"))
    with pytest.raises(errors.StreamLost):
        await task
    assert await reason_of(worker, invocation) is pillion.CancelReason.DISCONNECT
    with pytest.raises(errors.Closed):
        await caller.call("echo")
    await worker.fail(invocation.call, CANCELLED)


async def test_whoever_asks_a_connection_that_was_closed_is_told_so(socket_host: SocketHost) -> None:
    async with pillion.connect(socket_host.callers_at) as caller:
        watched = caller.watch_tools()
        await anext(watched)
        more = asyncio.ensure_future(anext(watched))
    async with asyncio.timeout(5):
        for asked in (more, caller.tools(), caller.info(), caller.end_run("r"), anext(caller.watch_tools())):
            with pytest.raises(errors.Closed):
                await asked


async def test_what_is_asked_as_the_connection_closes_is_told_so(sidecar_process: SidecarProcess) -> None:
    async with pillion.connect(sidecar_process.callers_at) as caller:
        sidecar_process.send(signal.SIGSTOP)
        asked = asyncio.ensure_future(caller.info())
        await asyncio.sleep(0)
    with pytest.raises(errors.Closed):
        await asked
    sidecar_process.send(signal.SIGCONT)


async def test_a_connection_that_is_left_by_a_scope_leaves_nothing_behind(
    socket_host: SocketHost, worker: WorkerPeer
) -> None:
    before = asyncio.all_tasks()
    with anyio.CancelScope() as scope:
        async with pillion.connect(socket_host.callers_at) as caller:
            running = asyncio.ensure_future(caller.call("echo"))
            invocation = await worker.next_invoke()
            scope.cancel()
            await anyio.sleep_forever()
    with pytest.raises(errors.StreamLost):
        await running
    assert await reason_of(worker, invocation) is pillion.CancelReason.DISCONNECT
    await worker.fail(invocation.call, CANCELLED)
    assert not {task.get_name() for task in asyncio.all_tasks() - before if task.get_name() == "pillion-link"}


async def test_a_call_is_used_within_its_block(caller: pillion.Host, worker: WorkerPeer) -> None:
    call = caller.start("echo")
    with pytest.raises(errors.Closed):
        await call.result()
    with pytest.raises(errors.Closed):
        await anext(call)
    async with call:
        await worker.result((await worker.next_invoke()).call)
        await call.ended()
        with pytest.raises(errors.Closed):
            async with call:
                pass


@pytest.mark.parametrize("far", [float("inf"), 1e300, 2**63])
async def test_a_time_may_be_as_far_as_one_likes(caller: pillion.Host, worker: WorkerPeer, far: float) -> None:
    task, invocation = await started(worker, caller.call("echo", timeout=far, idle_timeout=far))
    await worker.result(invocation.call, 1)
    assert await task == 1
    with pytest.raises(ValueError, match="NaN"):
        await caller.call("echo", timeout=float("nan"))


async def test_sending_again_needs_a_key(caller: pillion.Host) -> None:
    with pytest.raises(ValueError, match="idempotency key"):
        caller.start("echo", resend=True)
