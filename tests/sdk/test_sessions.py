"""What tools keep across the calls of a run or session, and its end, through the whole sidecar."""

import asyncio
from typing import Any

import pytest

import pillion
import pillion.sync
from pillion import errors
from tests.sdk.conftest import StartWorker
from tests.support import SocketHost, token_of

SESSION, RUN, CALL, SHUTDOWN = (
    pillion.TeardownScope.SESSION,
    pillion.TeardownScope.RUN,
    pillion.TeardownScope.CALL,
    pillion.TeardownScope.SHUTDOWN,
)


class Opened:
    """A tool that keeps something, and what was closed."""

    def __init__(self) -> None:
        self.closed: list[str] = []
        self.contexts: list[pillion.ToolContext] = []
        self.began = asyncio.Event()

    def close(self, name: str) -> Any:
        async def closed(reason: pillion.TeardownReason) -> None:
            self.closed.append(f"{name} {reason.name}")
            if name == "broken":
                raise ValueError("canary")

        return closed

    def tool(self) -> Any:
        @pillion.tool
        async def echo(
            ctx: pillion.ToolContext, name: str | None = None, scope: str = "SESSION", label: str | None = None
        ) -> dict[str, Any]:
            self.contexts.append(ctx)
            asked = pillion.TeardownScope[scope]
            kept = await ctx.on_teardown(self.close(name or "it"), scope=asked, name=name, label=label)
            return {"reused": kept.reused, "count": kept.count, "key": ctx.session_key(asked)}

        return echo

    def slow(self) -> Any:
        @pillion.tool(name="slow")
        async def waits(ctx: pillion.ToolContext) -> None:
            self.contexts.append(ctx)
            self.began.set()
            await asyncio.Event().wait()

        return waits


@pytest.fixture
async def opened(start_worker: StartWorker) -> Opened:
    made = Opened()
    await start_worker(made.tool(), made.slow())
    return made


async def test_what_is_kept_for_a_session_is_closed_at_its_end(caller: pillion.Host, opened: Opened) -> None:
    first = await caller.call("echo", {}, session_id="s")
    again = await caller.call("echo", {}, session_id="s")
    assert first == {"reused": False, "count": 1, "key": first["key"]}
    assert again == {"reused": True, "count": 2, "key": first["key"]}
    assert (await caller.call("echo", {}, session_id="t"))["key"] != first["key"]
    await caller.call("echo", {"name": "other"}, session_id="s")
    assert not opened.closed
    assert await caller.end_session("s") == pillion.EndedScope(fired=2, failed=0, cancelled=0)
    assert opened.closed == ["other SESSION_END", "it SESSION_END"]
    assert await caller.end_session("s") == pillion.EndedScope(fired=0, failed=0, cancelled=0)
    assert not (await caller.call("echo", {}, session_id="s"))["reused"]


async def test_the_end_of_a_run_counts_what_failed_and_cancels_its_calls(caller: pillion.Host, opened: Opened) -> None:
    for name in ("broken", "whole"):
        await caller.call("echo", {"scope": "RUN", "name": name}, run_id="r")
    async with caller.start("slow", run_id="r") as running:
        await opened.began.wait()
        assert await caller.end_run("r") == pillion.EndedScope(fired=2, failed=1, cancelled=1)
        with pytest.raises(errors.CallCancelled):
            await running.result()
    assert opened.contexts[-1].cancel_reason is pillion.CancelReason.SCOPE_ENDED
    assert sorted(opened.closed) == ["broken RUN_END", "whole RUN_END"]


async def test_a_session_is_of_one_subject(caller: pillion.Host, opened: Opened) -> None:
    ada, bob = (pillion.Identity("acme", name) for name in ("ada", "bob"))
    keys = {(await caller.call("echo", {}, session_id="s", identity=subject))["key"] for subject in (ada, bob, None)}
    assert len(keys) == 3
    assert (await caller.end_session("s", bob)).fired == 1
    assert (await caller.end_session("s", bob)).fired == 0
    assert (await caller.end_session("s", ada)).fired == 1
    assert len(opened.closed) == 2


async def test_a_call_closes_what_is_its_own_before_its_outcome(caller: pillion.Host, opened: Opened) -> None:
    keys = set()
    for number in (1, 2):
        keys.add((await caller.call("echo", {"scope": "CALL"}))["key"])
        assert opened.closed == ["it CALL_END"] * number
    assert all(len(key) == 12 for key in keys)
    assert len(keys) == 2


async def test_a_scope_whose_fact_the_call_lacks_is_refused_and_says_what_would_do(
    caller: pillion.Host, start_worker: StartWorker
) -> None:
    @pillion.tool
    async def echo(ctx: pillion.ToolContext) -> Any:
        assert ctx.teardown_scopes == frozenset((CALL, SHUTDOWN))
        assert ctx.session_key(SESSION) is None
        assert ctx.session_key(SHUTDOWN) is None
        with pytest.raises(errors.TeardownRefused) as refused:
            await ctx.on_teardown(lambda reason: None, scope=SESSION)
        assert refused.value.code is errors.ReplyCode.TEARDOWN_FACT_MISSING
        return refused.value.message

    await start_worker(echo)
    message = await caller.call("echo", session_id="")
    assert "session_id" in message
    assert "call or shutdown" in message


async def test_a_plain_tool_keeps_things_too(caller: pillion.Host, start_worker: StartWorker) -> None:
    closed: list[str] = []

    @pillion.tool
    def echo(ctx: pillion.ToolContext) -> int:
        return ctx.wait(ctx.on_teardown(lambda reason: closed.append(reason.name), scope=RUN)).count

    await start_worker(echo)
    assert [await caller.call("echo", run_id="r") for _ in range(2)] == [1, 2]
    assert (await caller.end_run("r")).fired == 1
    assert closed == ["RUN_END"]


async def test_a_caller_sees_what_is_registered(caller: pillion.Host, opened: Opened) -> None:
    async with caller.start("echo", {"label": "a workspace"}, session_id="s") as call:
        key = (await call.result())["key"]
    assert call.teardowns == (pillion.RegisteredTeardown(SESSION, key, "a workspace", reused=False),)
    async with caller.start("echo", {}, session_id="s") as call:
        await call.result()
    assert [registered.reused for registered in call.teardowns] == [True]


async def test_a_worker_that_leaves_closes_what_it_kept_as_the_sidecar_says(
    caller: pillion.Host, socket_host: SocketHost
) -> None:
    opened = Opened()
    worker = pillion.Worker([opened.tool()], target=socket_host.workers_at, worker="main", token=token_of("main"))
    running = asyncio.create_task(worker.run())
    async with asyncio.timeout(10):
        await worker.attached.wait()
        await caller.call("echo", {}, session_id="s")
        await caller.call("echo", {"scope": "SHUTDOWN"})
        worker.leave()
        await running
    assert opened.closed == ["it EVICTED", "it EVICTED"]


async def test_ends_are_refused_in_words(caller: pillion.Host) -> None:
    with pytest.raises(errors.InvalidArguments, match="1 to 256 bytes"):
        await caller.end_session("")
    with pytest.raises(errors.InvalidArguments, match="1 to 256 bytes"):
        await caller.end_run("r" * 257)


async def test_sessions_are_ended_without_asyncio(socket_host: SocketHost, opened: Opened) -> None:
    def plainly() -> tuple[pillion.EndedScope, pillion.EndedScope, Any]:
        with pillion.sync.connect(socket_host.callers_at) as host:
            with host.start("echo", {}, session_id="s") as call:
                call.result()
            host.call("echo", {"scope": "RUN"}, run_id="r")
            return host.end_session("s"), host.end_run("r"), call.teardowns

    session, run, teardowns = await asyncio.to_thread(plainly)
    assert (session.fired, run.fired) == (1, 1)
    assert [registered.scope for registered in teardowns] == [SESSION]
    assert opened.closed == ["it SESSION_END", "it RUN_END"]
