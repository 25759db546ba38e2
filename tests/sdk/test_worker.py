import asyncio
import logging
import threading
from typing import Annotated, Any, cast

import pytest
from pydantic import BaseModel, Field, field_validator

import pillion
from pillion import errors
from pillion.content import Text
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from tests.sdk.conftest import StartWorker
from tests.support import SocketHost, on_sockets


@pytest.fixture
def quiet_log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO)
    return caplog


@on_sockets
@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_a_tool_gets_its_arguments_and_reports(
    caller: pillion.Host, start_worker: StartWorker, kind: str
) -> None:
    def work(text: str, times: int, ctx: pillion.ToolContext) -> dict[str, Any]:
        for number in range(times):
            ctx.progress({"n": number})
        return {"text": text * times, "thread": threading.current_thread() is threading.main_thread()}

    async def async_work(text: str, times: int, ctx: pillion.ToolContext) -> dict[str, Any]:
        return work(text, times, ctx)

    await start_worker(pillion.tool(name="echo")(work if kind == "plain" else async_work))
    async with caller.start("echo", {"text": "ab", "times": 3}) as call:
        assert [report.payload async for report in call] == [{"n": 0}, {"n": 1}, {"n": 2}]
        assert await call.result() == {"text": "ababab", "thread": kind == "async"}


async def test_arguments_are_refused_by_the_schema_and_by_the_annotations(
    caller: pillion.Host, start_worker: StartWorker
) -> None:
    class Even(BaseModel):
        number: int

        @field_validator("number")
        @classmethod
        def is_even(cls, number: int) -> int:
            if number % 2:
                raise ValueError(f"canary {number}")
            return number

    @pillion.tool
    async def echo(even: Even, small: Annotated[int, Field(lt=10)] = 1) -> int:
        return even.number + small

    await start_worker(echo)
    assert await caller.call("echo", {"even": {"number": 4}}) == 5
    with pytest.raises(errors.InvalidArguments) as refused:
        await caller.call("echo", {"even": {"number": 4}, "small": 10})
    assert refused.value.issues[0].path == "/small"
    with pytest.raises(errors.InvalidArguments) as refused:
        await caller.call("echo", {"even": {"number": 3}})
    assert refused.value.issues[0].path == "/even/number"
    assert "canary" not in repr(refused.value.issues)
    assert refused.value.side_effects is pillion.SideEffects.NONE


async def test_only_the_text_of_a_tool_error_travels(
    caller: pillion.Host, start_worker: StartWorker, quiet_log: pytest.LogCaptureFixture
) -> None:
    @pillion.tool
    async def echo(how: str) -> None:
        if how == "said":
            raise pillion.ToolError("no such row", retryable=True, retry_after=2, side_effects=pillion.SideEffects.NONE)
        raise ValueError("canary")

    @pillion.tool(effects=pillion.READ)
    def read(how: str) -> None:
        if how == "exit":
            raise SystemExit("canary")
        raise pillion.ToolError("read nothing")

    await start_worker(echo, read)
    with pytest.raises(errors.ToolFailed, match="no such row") as failed:
        await caller.call("echo", {"how": "said"})
    assert (failed.value.retryable, failed.value.retry_after) == (True, 2.0)
    assert failed.value.side_effects is pillion.SideEffects.NONE
    with pytest.raises(errors.ToolFailed) as failed:
        await caller.call("echo", {"how": "unsaid"})
    assert "canary" not in str(failed.value)
    assert failed.value.side_effects is pillion.SideEffects.POSSIBLE
    assert "canary" in quiet_log.text
    with pytest.raises(errors.ToolFailed, match="read nothing") as failed:
        await caller.call("read", {"how": "said"})
    assert failed.value.side_effects is pillion.SideEffects.NONE
    with pytest.raises(errors.ToolFailed):
        await caller.call("read", {"how": "exit"})


async def test_a_tool_error_made_of_whatever_ends_its_call(
    caller: pillion.Host, start_worker: StartWorker, quiet_log: pytest.LogCaptureFixture
) -> None:
    @pillion.tool
    async def echo(what: str) -> None:
        given: dict[str, Any] = {
            "an exception": pillion.ToolError(cast("Any", ValueError("no such row"))),
            "a wait": pillion.ToolError("later", retry_after=float("nan")),
            "a word": pillion.ToolError("done", side_effects=cast("Any", "none")),
        }
        raise given[what]

    await start_worker(echo)
    with pytest.raises(errors.ToolFailed, match="no such row"):
        await caller.call("echo", {"what": "an exception"}, timeout=5)
    for what in ("a wait", "a word"):
        with pytest.raises(errors.ToolFailed, match="its worker's log says why"):
            await caller.call("echo", {"what": what}, timeout=5)
    assert quiet_log.text.count("in a way that cannot be told") == 2


async def test_results_have_blocks_and_may_be_errors(caller: pillion.Host, start_worker: StartWorker) -> None:
    @pillion.tool
    async def echo(error: bool) -> dict[str, int]:
        made: Any = pillion.ToolResult({"a": 1}, content=[Text("a is 1")], is_error=error)
        return cast("dict[str, int]", made)

    await start_worker(echo)
    async with caller.start("echo", {"error": True}) as call:
        result = await call.raw()
        assert (result.value, result.content, result.is_error) == ({"a": 1}, (Text("a is 1"),), True)
    assert await caller.call("echo", {"error": False}) == {"a": 1}


async def test_numbers_survive_the_whole_way(caller: pillion.Host, start_worker: StartWorker) -> None:
    @pillion.tool
    async def echo(**arguments: Any) -> Any:
        return arguments

    await start_worker(echo)
    text = b'{"a":0.1000000000000000055511151231257827,"b":123456789012345678901234567890,"c":[1.5,-0.0,1e-7],"d":1E+2}'
    async with caller.start("echo", text) as call:
        result = await call.raw()
        assert result.json == text.replace(b"1E+2", b"100.0")


async def test_a_result_over_a_frame_is_refused_before_it_is_sent(
    caller: pillion.Host, start_worker: StartWorker, socket_host: SocketHost
) -> None:
    @pillion.tool
    async def echo(size: int) -> str:
        return "x" * size

    @pillion.tool(effects=pillion.READ)
    def read(size: int) -> Any:
        return pillion.ToolResult("x" * size, content=[Text("a")])

    await start_worker(echo, read)
    with pytest.raises(errors.ResultTooLarge) as large:
        await caller.call("echo", {"size": 1 << 20})
    assert large.value.side_effects is pillion.SideEffects.COMMITTED
    with pytest.raises(errors.ResultTooLarge) as large:
        await caller.call("read", {"size": 1 << 20})
    assert large.value.side_effects is pillion.SideEffects.NONE
    assert len(await caller.call("echo", {"size": 1_000_000})) == 1_000_000
    assert not (await socket_host.counters()).get("oversized_frames")


async def test_a_result_that_is_not_what_is_declared_fails(caller: pillion.Host, start_worker: StartWorker) -> None:
    @pillion.tool
    async def echo() -> int:
        return cast("int", "canary")

    await start_worker(echo)
    with pytest.raises(errors.ToolFailed) as failed:
        await caller.call("echo")
    assert "canary" not in str(failed.value)


async def test_progress_never_raises_and_what_is_no_json_is_dropped(
    caller: pillion.Host, start_worker: StartWorker, quiet_log: pytest.LogCaptureFixture
) -> None:
    @pillion.tool
    async def echo(ctx: pillion.ToolContext) -> str:
        kept.append(ctx)
        ctx.progress(object())
        ctx.progress("x" * 70_000)
        ctx.progress({1: 2})
        ctx.progress(float("nan"))
        ctx.progress("fine")
        return "done"

    kept: list[pillion.ToolContext] = []
    await start_worker(echo)
    async with caller.start("echo") as call:
        reports = [report async for report in call]
        assert [(report.payload, report.coalesced) for report in reports] == [("fine", 1)]
        assert await call.result() == "done"
    assert quiet_log.text.count("progress of echo was dropped") == 1
    kept[0].progress("late")


async def test_very_much_progress_is_cut_to_the_newest(caller: pillion.Host, start_worker: StartWorker) -> None:
    @pillion.tool
    async def echo(ctx: pillion.ToolContext) -> None:
        for number in range(10_000):
            ctx.progress(number)

    await start_worker(echo)
    async with caller.start("echo") as call:
        reports = [report async for report in call]
        assert reports[-1].payload == 9_999
        assert len(reports) + sum(report.coalesced for report in reports) == 10_000
        assert await call.result() is None


@pytest.mark.parametrize("kind", ["task", "thread", "looks"])
async def test_a_cancel_reaches_every_kind_of_tool(caller: pillion.Host, start_worker: StartWorker, kind: str) -> None:
    began = asyncio.Event()
    loop = asyncio.get_running_loop()
    seen: list[Any] = []

    async def in_task(ctx: pillion.ToolContext) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            seen.append(ctx.cancel_reason)

    def in_thread(ctx: pillion.ToolContext) -> None:
        loop.call_soon_threadsafe(began.set)
        try:
            ctx.sleep(60)
        finally:
            seen.append(ctx.cancel_reason)

    def looks(ctx: pillion.ToolContext) -> None:
        loop.call_soon_threadsafe(began.set)
        while not ctx.cancelled:
            ctx.signal.wait_in_thread(0.01)
        seen.append(ctx.cancel_reason)
        ctx.raise_if_cancelled()

    functions: dict[str, Any] = {"task": in_task, "thread": in_thread, "looks": looks}
    await start_worker(pillion.tool(name="echo")(functions[kind]))
    async with caller.start("echo") as call:
        await began.wait()
        await call.cancel()
        with pytest.raises(errors.CallCancelled):
            await call.result()
    assert seen == [pillion.CancelReason.CALLER]


async def test_a_tool_may_end_in_its_own_way_after_a_cancel(caller: pillion.Host, start_worker: StartWorker) -> None:
    began = asyncio.Event()

    @pillion.tool
    async def echo(ctx: pillion.ToolContext) -> str:
        began.set()
        try:
            return str(await ctx.wait_cancelled())
        except asyncio.CancelledError:
            raise pillion.ToolError("rolled back", side_effects=pillion.SideEffects.NONE) from None

    await start_worker(echo)
    async with caller.start("echo") as call:
        await began.wait()
        await call.cancel()
        with pytest.raises(errors.CallCancelled) as cancelled:
            await call.result()
    assert cancelled.value.side_effects is pillion.SideEffects.NONE


async def test_a_tool_that_cancels_itself_has_failed(caller: pillion.Host, start_worker: StartWorker) -> None:
    @pillion.tool
    async def echo() -> None:
        raise asyncio.CancelledError

    await start_worker(echo)
    with pytest.raises(errors.ToolFailed):
        await caller.call("echo")


async def test_a_hundred_blocked_threads_leave_the_stream_alive(
    caller: pillion.Host, start_worker: StartWorker, socket_host: SocketHost
) -> None:
    release = threading.Event()

    @pillion.tool
    def echo() -> int:
        release.wait(20)
        return 1

    @pillion.tool
    async def read() -> int:
        return 2

    await start_worker(echo, read, concurrency=200)
    calls = [asyncio.ensure_future(caller.call("echo")) for _ in range(100)]
    try:
        for _ in range(20):
            assert await caller.call("read", timeout=5) == 2
    finally:
        release.set()
    assert await asyncio.gather(*calls) == [1] * 100


async def test_plain_tools_wait_for_a_thread(caller: pillion.Host, start_worker: StartWorker) -> None:
    at_once, most, lock = 0, 0, threading.Lock()
    barrier = threading.Barrier(2, timeout=10)

    @pillion.tool
    def echo() -> None:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        barrier.wait()
        with lock:
            at_once -= 1

    await start_worker(echo, threads=2)
    await asyncio.gather(*(caller.call("echo") for _ in range(10)))
    assert most == 2


async def test_a_drained_worker_finishes_and_leaves(caller: pillion.Host, socket_host: SocketHost) -> None:
    began, go_on = asyncio.Event(), asyncio.Event()

    @pillion.tool
    async def echo() -> str:
        began.set()
        await go_on.wait()
        return "old"

    @pillion.tool(name="echo", description="Another version drains the instances of the one before.")
    async def newer() -> str:
        return "new"

    def worker_of(*tools: Any) -> pillion.Worker:
        return pillion.Worker(tools, target=socket_host.workers_at, worker="main", token="token-of-main")

    older = worker_of(echo)
    first = asyncio.create_task(older.run())
    await older.attached.wait()
    running = asyncio.ensure_future(caller.call("echo"))
    await began.wait()
    newest = worker_of(newer)
    second = asyncio.create_task(newest.run())
    await newest.attached.wait()
    assert await caller.call("echo") == "new"
    assert not first.done()
    go_on.set()
    assert await running == "old"
    await asyncio.wait_for(first, 10)
    newest.leave()
    await asyncio.wait_for(second, 10)
    assert (await socket_host.counters()).get("late_outcomes", 0) == 0


async def test_who_hurries_asks_tools_to_stop(caller: pillion.Host, start_worker: StartWorker) -> None:
    began = asyncio.Event()
    reasons: list[Any] = []

    @pillion.tool
    async def echo(ctx: pillion.ToolContext) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            reasons.append(ctx.cancel_reason)

    worker = await start_worker(echo)
    running = asyncio.ensure_future(caller.call("echo"))
    await began.wait()
    worker.hurry()
    with pytest.raises((errors.CallCancelled, errors.OutcomeUnknown)):
        await running
    assert reasons == [pillion.CancelReason.DRAIN]


@pytest.mark.parametrize("wrong", ["token", "listener", "tools"])
async def test_a_worker_that_is_turned_away_says_why(socket_host: SocketHost, wrong: str) -> None:
    @pillion.tool(name="forbidden" if wrong == "tools" else "echo")
    async def hosted() -> None: ...

    worker = pillion.Worker(
        [hosted],
        target=socket_host.callers_at if wrong == "listener" else socket_host.workers_at,
        worker="main",
        token="canary" if wrong == "token" else "token-of-main",
    )
    expected = {"token": "UNAUTHENTICATED", "listener": "UNIMPLEMENTED", "tools": "forbidden: The grant"}
    with pytest.raises(errors.WorkerRefused, match=expected[wrong]) as refused:
        await asyncio.wait_for(worker.run(), 10)
    assert "canary" not in str(refused.value)


async def test_the_sidecar_gets_lines_of_log(
    caller: pillion.Host, start_worker: StartWorker, quiet_log: pytest.LogCaptureFixture
) -> None:
    @pillion.tool
    def echo(ctx: pillion.ToolContext) -> None:
        ctx.log("from the tool", logging.WARNING, rows=3)

    await start_worker(echo)
    await caller.call("echo")
    [record] = [record for record in quiet_log.records if record.getMessage().endswith("from the tool")]
    assert record.name == "pillion.worker"
    assert record.levelno == logging.WARNING
    assert vars(record)["fields"] == {"rows": "3"}
    assert vars(record)["execution_id"]


def test_frames_of_both_packages_are_one_format() -> None:
    from pillion._gen.pillion.v1.frame_pb2 import Frame as Other

    assert Frame.DESCRIPTOR.file.name == Other.DESCRIPTOR.file.name
