"""Each row of a tool's context, on the SDK at both ends; with bare stubs in tests/integration/test_context_rows.py."""

import asyncio
import pickle
from collections.abc import Callable
from typing import Any

import pytest

import pillion
from pillion import errors
from pillion.credentials import Bearer
from tests.sdk.conftest import StartWorker
from tests.support import SocketHost, StartHost
from tests.support.issuing import section

SESSION = pillion.TeardownScope.SESSION

Seen = list[pillion.ToolContext]


@pytest.fixture
def seen() -> Seen:
    """The contexts that the tool `echo` was called with."""
    return []


@pytest.fixture
def echo(seen: Seen) -> pillion.Tool[..., Any]:
    """A tool that keeps its context, and returns."""

    @pillion.tool
    async def echo(ctx: pillion.ToolContext) -> None:
        seen.append(ctx)

    return echo


async def waits(ctx: pillion.ToolContext) -> None:
    """A tool that runs until it is told to stop."""
    ctx.progress("running")
    await asyncio.Event().wait()


def noting(told: list[pillion.CancelReason | None], ended: asyncio.Event) -> pillion.Tool[..., Any]:
    """The tool `echo`, which waits, and notes why it was told to stop."""

    async def echo(ctx: pillion.ToolContext) -> None:
        try:
            await waits(ctx)
        finally:
            told.append(ctx.cancel_reason)
            ended.set()

    return pillion.tool(echo)


# --- of agentfootprint


async def test_row_facts_are_as_the_caller_named_them_and_none_where_it_did_not(
    caller: pillion.Host, start_worker: StartWorker, echo: Callable[..., Any], seen: Seen
) -> None:
    await start_worker(echo)
    identity = pillion.Identity("acme", "ana", "c")
    await caller.call("echo", tool_call_id="t", iteration=3, run_id="r", session_id="s", identity=identity)
    await caller.call("echo")
    named, unnamed = seen
    assert (named.tool_call_id, named.iteration, named.run_id, named.session_id) == ("t", 3, "r", "s")
    assert named.identity == identity
    assert unnamed.tool_call_id
    assert (unnamed.iteration, unnamed.run_id, unnamed.session_id, unnamed.identity) == (0, None, None, None)


async def test_row_signal_is_a_cancellation_with_its_reason(caller: pillion.Host, start_worker: StartWorker) -> None:
    told: list[pillion.CancelReason | None] = []
    ended = asyncio.Event()
    await start_worker(noting(told, ended))
    async with caller.start("echo") as call:
        await anext(call)
        await call.cancel()
        with pytest.raises(errors.CallCancelled):
            await call.result()
    await asyncio.wait_for(ended.wait(), 10)
    assert told == [pillion.CancelReason.CALLER]


async def test_row_credentials_are_pushed_where_declared_and_pulled_where_asked_for(
    start_host: StartHost, start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVICE_TOKEN", "canary-token")
    text = section("github", "environment", variable="SERVICE_TOKEN")
    host = await start_host(credentials=text, granted={"main": ("github",)})
    assert isinstance(host, SocketHost)

    @pillion.tool(needs=[pillion.Need("github")])
    async def echo(ctx: pillion.ToolContext) -> list[bool]:
        pulled = await ctx.credentials.request("github")
        assert isinstance(pulled, Bearer)
        assert isinstance(ctx.credential, Bearer)
        with pytest.raises(errors.RequestRefused):
            await ctx.credentials.request("gitlab")
        return [ctx.has_credentials, ctx.credential is ctx.credentials["github"], pulled.token == ctx.credential.token]

    @pillion.tool(effects=pillion.READ)
    async def read(ctx: pillion.ToolContext) -> list[bool]:
        return [ctx.has_credentials, ctx.credential is None, len(ctx.credentials) == 0]

    await start_worker(echo, read, target=host.workers_at)
    async with pillion.connect(host.callers_at) as caller:
        assert await caller.call("echo") == [True, True, True]
        assert await caller.call("read") == [True, True, True]


async def test_row_credentials_are_said_not_to_be_there(
    caller: pillion.Host, start_worker: StartWorker, echo: Callable[..., Any], seen: Seen
) -> None:
    await start_worker(echo)
    await caller.call("echo")
    assert not seen[0].has_credentials


async def test_row_artifacts_are_wanted_and_put(caller: pillion.Host, start_worker: StartWorker) -> None:
    @pillion.tool(wants={"data": "note"})
    async def echo(ctx: pillion.ToolContext, data: str = "") -> list[Any]:
        kept = await ctx.artifacts.put(data.upper(), kind="note")
        again = await ctx.artifacts.get(kept.reference)
        assert again is not None
        assert (again[0].kind, again[1]) == ("note", data.upper())
        return [ctx.has_artifacts, ctx.wanted is not None, data]

    await start_worker(echo)
    put = await caller.artifacts.within(session_id="s").put("a,b", kind="note")
    assert await caller.call("echo", {"data": put.reference}, session_id="s") == [True, True, "a,b"]
    assert await caller.call("echo", session_id="s") == [True, False, ""]


@pytest.mark.parametrize("keeps_artifacts", [False])
async def test_row_artifacts_are_said_not_to_be_there(
    caller: pillion.Host, start_worker: StartWorker, echo: Callable[..., Any], seen: Seen
) -> None:
    await start_worker(echo)
    await caller.call("echo")
    assert not seen[0].has_artifacts


async def test_row_progress_reaches_the_caller_and_raises_in_no_tool(
    caller: pillion.Host, start_worker: StartWorker
) -> None:
    @pillion.tool
    async def echo(ctx: pillion.ToolContext) -> None:
        ctx.progress({"message": "half way", "done": 1})
        ctx.progress(object())

    await start_worker(echo)
    async with caller.start("echo") as call:
        assert [report.payload async for report in call] == [{"message": "half way", "done": 1}]
        await call.result()


async def test_row_teardown_is_registered_for_a_scope_and_fires_at_its_end(
    caller: pillion.Host, start_worker: StartWorker
) -> None:
    ran: list[pillion.TeardownReason] = []
    contexts: Seen = []

    @pillion.tool
    async def echo(ctx: pillion.ToolContext) -> bool:
        contexts.append(ctx)
        return (await ctx.on_teardown(ran.append, scope=SESSION, label="browser")).reused

    await start_worker(echo)
    assert [await caller.call("echo", session_id="s") for _ in range(2)] == [False, True]
    first, second = contexts
    assert first.teardown_scopes == frozenset((pillion.TeardownScope.CALL, pillion.TeardownScope.SHUTDOWN, SESSION))
    assert first.session_key(SESSION) == second.session_key(SESSION)
    assert len(first.session_key(SESSION) or "") == 12
    assert first.session_key(pillion.TeardownScope.RUN) is None
    ended = await caller.end_session("s")
    assert (ended.fired, ended.failed, ended.cancelled) == (1, 0, 0)
    assert ran == [pillion.TeardownReason.SESSION_END]


async def test_row_teardown_is_refused_where_the_call_lacks_the_fact(
    caller: pillion.Host, start_worker: StartWorker
) -> None:
    @pillion.tool
    async def echo(ctx: pillion.ToolContext) -> str:
        with pytest.raises(errors.TeardownRefused) as refused:
            await ctx.on_teardown(lambda _: None, scope=SESSION)
        return refused.value.code.name

    await start_worker(echo)
    assert await caller.call("echo") == "TEARDOWN_FACT_MISSING"


async def test_row_tools_are_asked_for_and_run(caller: pillion.Host, start_worker: StartWorker) -> None:
    @pillion.tool(effects=pillion.READ)
    async def read(n: int, ctx: pillion.ToolContext) -> list[Any]:
        return [n, ctx.tool_call_id, ctx.run_id]

    @pillion.tool
    async def echo(ctx: pillion.ToolContext) -> list[Any]:
        assert ctx.has_tools
        return [await ctx.tools.has("read"), await ctx.tools.has("nobody"), await ctx.tools.call("read", {"n": 1})]

    await start_worker(echo, read)
    assert await caller.call("echo", tool_call_id="t", run_id="r") == [True, False, [1, "t#inner-1", "r"]]


# --- of klieo


async def test_row_agent_events_are_progress_of_any_shape(caller: pillion.Host, start_worker: StartWorker) -> None:
    event = {"kind": "tool_call_completed", "name": "search", "ok": True}

    @pillion.tool
    async def echo(ctx: pillion.ToolContext) -> None:
        ctx.progress(event)

    await start_worker(echo)
    async with caller.start("echo") as call:
        assert [report.payload async for report in call] == [event]
        await call.result()


async def test_row_cancel_comes_of_the_clock_too(caller: pillion.Host, start_worker: StartWorker) -> None:
    told: list[pillion.CancelReason | None] = []
    ended = asyncio.Event()
    await start_worker(noting(told, ended))
    with pytest.raises(errors.CallTimedOut):
        await caller.call("echo", timeout=0.5)
    await asyncio.wait_for(ended.wait(), 10)
    assert told == [pillion.CancelReason.DEADLINE]


async def test_row_server_outbound_is_what_the_caller_declared(
    socket_host: SocketHost, start_worker: StartWorker
) -> None:
    @pillion.tool
    async def echo(ctx: pillion.ToolContext) -> list[Any]:
        answer = await ctx.caller.request("elicitation/create", {"message": "Sure?"})
        with pytest.raises(errors.PeerRefused):
            await ctx.caller.request("roots/list")
        return [sorted(ctx.caller.methods or ()), answer]

    async def accept(question: pillion.Question) -> dict[str, Any]:
        return {"action": "accept", "asked": question.params}

    await start_worker(echo)
    async with pillion.connect(socket_host.callers_at, can_answer={"elicitation/create": accept}) as caller:
        methods, answer = await caller.call("echo")
    assert methods == ["elicitation/create"]
    assert answer == {"action": "accept", "asked": {"message": "Sure?"}}


async def test_row_caller_principal_neither_prints_nor_serialises(
    caller: pillion.Host, start_worker: StartWorker, echo: Callable[..., Any], seen: Seen
) -> None:
    await start_worker(echo)
    await caller.call("echo", identity=pillion.Identity(principal="root"))
    principal = seen[0].caller_principal
    assert principal is not None
    assert principal.reveal().startswith("local:")
    assert "local:" not in f"{principal} {principal!r} {seen[0]!r}"
    with pytest.raises(TypeError):
        pickle.dumps(principal)


@pytest.mark.parametrize("transport", ["tcp"])
async def test_row_caller_principal_is_none_where_nothing_proves_it(
    caller: pillion.Host, start_worker: StartWorker, echo: Callable[..., Any], seen: Seen
) -> None:
    await start_worker(echo)
    await caller.call("echo", parent_anchor="anchor")
    assert (seen[0].caller_principal, seen[0].parent_anchor) == (None, None)


async def test_row_parent_anchor_is_carried_verbatim_and_neither_prints_nor_serialises(
    caller: pillion.Host, start_worker: StartWorker, echo: Callable[..., Any], seen: Seen
) -> None:
    await start_worker(echo)
    await caller.call("echo", parent_anchor='{"of": "canary"} ')
    anchor = seen[0].parent_anchor
    assert anchor is not None
    assert anchor.reveal() == '{"of": "canary"} '
    assert "canary" not in f"{anchor} {anchor!r} {seen[0]!r}"
    with pytest.raises(TypeError):
        pickle.dumps(anchor)
