"""Tools that have other tools run, through the SDK at both ends."""

import asyncio
import threading
from typing import Any

import pytest

import pillion
from pillion import errors
from tests.sdk.conftest import StartWorker


@pillion.tool(effects=pillion.READ)
async def read(n: int, ctx: pillion.ToolContext) -> dict[str, Any]:
    """Says what it was called with."""
    ctx.progress({"n": n})
    return {"n": n, "id": ctx.tool_call_id, "run": ctx.run_id}


async def test_a_tool_calls_another_and_hears_its_reports(caller: pillion.Host, start_worker: StartWorker) -> None:
    reports: list[Any] = []

    @pillion.tool
    async def echo(ctx: pillion.ToolContext) -> list[Any]:
        assert await ctx.tools.has("read")
        assert not await ctx.tools.has("nobody")
        return list(
            await asyncio.gather(*(ctx.tools.call("read", {"n": n}, on_progress=reports.append) for n in range(3)))
        )

    await start_worker(echo, read)
    values = await caller.call("echo", run_id="r", tool_call_id="t")
    assert [value["n"] for value in values] == [0, 1, 2]
    assert {value["id"] for value in values} == {f"t#inner-{number}" for number in (1, 2, 3)}
    assert {value["run"] for value in values} == {"r"}
    assert sorted(report["n"] for report in reports) == [0, 1, 2]


async def test_plain_tools_call_plain_tools_though_every_thread_waits(
    caller: pillion.Host, start_worker: StartWorker
) -> None:
    ready = threading.Barrier(2)

    @pillion.tool
    def slow(n: int) -> int:
        return n + 1

    @pillion.tool
    def echo(n: int, ctx: pillion.ToolContext) -> int:
        ready.wait(10)
        answer = ctx.wait(ctx.tools.call("slow", {"n": n}, timeout=10))
        assert isinstance(answer, int)
        return answer

    await start_worker(echo, slow, concurrency=2)
    assert await asyncio.gather(*(caller.call("echo", {"n": n}) for n in range(2))) == [1, 2]


async def test_how_an_inner_call_ends_is_raised_as_for_a_caller(
    caller: pillion.Host, start_worker: StartWorker
) -> None:
    @pillion.tool
    async def slow() -> None:
        await asyncio.sleep(60)

    @pillion.tool
    async def send() -> None:
        raise pillion.ToolError("No such place.")

    @pillion.tool
    async def echo(ctx: pillion.ToolContext) -> list[str]:
        told = []
        for name, arguments, timeout in (
            ("slow", {}, 0.1),
            ("send", {}, None),
            ("nobody", {}, None),
            ("read", {}, None),
        ):
            try:
                await ctx.tools.call(name, arguments, timeout=timeout)
            except errors.CallFailed as failed:
                told.append(type(failed).__name__)
        return told

    await start_worker(echo, slow, send, read)
    assert await caller.call("echo") == ["CallTimedOut", "ToolFailed", "UnknownTool", "InvalidArguments"]


async def test_a_cancel_reaches_the_innermost_tool(caller: pillion.Host, start_worker: StartWorker) -> None:
    reasons: list[Any] = []
    deepest, all_told = asyncio.Event(), asyncio.Event()

    @pillion.tool
    async def echo(depth: int, ctx: pillion.ToolContext) -> None:
        try:
            if depth:
                await ctx.tools.call("echo", {"depth": depth - 1})
            else:
                deepest.set()
                await asyncio.sleep(60)
        except asyncio.CancelledError:
            reasons.append((depth, ctx.cancel_reason))
            if len(reasons) == 4:
                all_told.set()
            raise

    await start_worker(echo)
    async with caller.start("echo", {"depth": 3}) as call:
        await deepest.wait()
        await call.cancel()
        with pytest.raises(errors.CallCancelled):
            await call.result()
    async with asyncio.timeout(10):
        await all_told.wait()
    assert dict(reasons) == {
        3: pillion.CancelReason.CALLER,
        **dict.fromkeys((2, 1, 0), pillion.CancelReason.PARENT),
    }


async def test_what_listens_and_fails_disturbs_nothing(
    caller: pillion.Host, start_worker: StartWorker, caplog: pytest.LogCaptureFixture
) -> None:
    @pillion.tool
    async def echo(ctx: pillion.ToolContext) -> Any:
        def listen(_: Any) -> None:
            raise ValueError("a listener's own fault")

        return await ctx.tools.call("read", {"n": 1}, on_progress=listen)

    await start_worker(echo, read)
    assert (await caller.call("echo"))["n"] == 1
    assert "what listens to the progress of a call failed" in caplog.text
    caplog.clear()
