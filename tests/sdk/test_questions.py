"""Tools that ask their caller, through the SDK at both ends."""

import asyncio
from typing import Any

import pytest

import pillion
import pillion.sync
from pillion import errors
from tests.sdk.conftest import StartWorker
from tests.support import SocketHost

ELICIT = "elicitation/create"


@pillion.tool
async def echo(message: str, ctx: pillion.ToolContext) -> dict[str, Any]:
    """Asks, and says what came of it."""
    try:
        answer = await ctx.caller.elicit(message, {"type": "object"}, timeout=20)
    except errors.PeerFailed as failed:
        return {"code": failed.peer_code, "message": failed.message, "data": failed.peer_data}
    except errors.RequestRefused as refused:
        return {"refused": type(refused).__name__, "why": refused.code.name}
    return {"action": answer.action, "content": answer.content}


async def accept(question: pillion.Question) -> dict[str, Any]:
    assert question.method == ELICIT
    assert question.params == {"message": "Sure?", "requestedSchema": {"type": "object"}}
    assert 0 < question.timeout <= 20
    return {"action": "accept", "content": {"inner": question.tool}}


async def test_a_caller_answers_what_its_tools_ask(socket_host: SocketHost, start_worker: StartWorker) -> None:
    @pillion.tool
    async def slow(ctx: pillion.ToolContext) -> Any:
        assert ctx.caller.methods == frozenset((ELICIT,))
        assert ctx.caller.can(ELICIT)
        assert not ctx.caller.can("roots/list")
        return await ctx.tools.call("echo", {"message": "Sure?"})

    await start_worker(echo, slow)
    async with pillion.connect(socket_host.callers_at, can_answer={ELICIT: accept}) as caller:
        assert await caller.call("echo", {"message": "Sure?"}) == {"action": "accept", "content": {"inner": None}}
        assert await caller.call("slow") == {"action": "accept", "content": {"inner": "echo"}}


async def test_an_error_of_the_caller_is_the_tools_to_see(socket_host: SocketHost, start_worker: StartWorker) -> None:
    async def refuse(_: pillion.Question) -> None:
        raise pillion.PeerError(-32001, "Not now.", {"until": 5})

    await start_worker(echo)
    async with pillion.connect(socket_host.callers_at, can_answer={ELICIT: refuse}) as caller:
        assert await caller.call("echo", {"message": "?"}) == {
            "code": -32001,
            "message": "Not now.",
            "data": {"until": 5},
        }


async def test_a_handler_that_fails_says_nothing_of_why(
    socket_host: SocketHost, start_worker: StartWorker, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(_: pillion.Question) -> None:
        raise ValueError("a secret of the caller")

    await start_worker(echo)
    async with pillion.connect(socket_host.callers_at, can_answer={ELICIT: fail}) as caller:
        told = await caller.call("echo", {"message": "?"})
    assert "secret" not in str(told)
    assert told["message"] == "The caller failed to answer."
    caplog.clear()


async def test_a_caller_that_answers_nothing_is_not_asked(caller: pillion.Host, start_worker: StartWorker) -> None:
    await start_worker(echo)
    told = await caller.call("echo", {"message": "?"})
    assert told == {"refused": "PeerRefused", "why": "UNSUPPORTED_BY_CALLER"}


async def test_people_may_take_longer_than_the_call(socket_host: SocketHost, start_worker: StartWorker) -> None:
    async def late(question: pillion.Question) -> dict[str, Any]:
        await asyncio.sleep(1.5)
        return {"action": "decline"}

    await start_worker(echo)
    async with pillion.connect(socket_host.callers_at, can_answer={ELICIT: late}, outcome_grace=0.1) as caller:
        told = await caller.call("echo", {"message": "?"}, timeout=0.7, human_timeout=30)
    assert told == {"action": "decline", "content": None}


async def test_the_plain_face_answers_in_a_thread(socket_host: SocketHost, start_worker: StartWorker) -> None:
    await start_worker(echo)

    def accept_plainly(question: pillion.Question) -> dict[str, Any]:
        return {"action": "accept", "content": {"asked": question.params["message"]}}

    def ask() -> Any:
        with pillion.sync.connect(socket_host.callers_at, can_answer={ELICIT: accept_plainly}) as caller:
            return caller.call("echo", {"message": "Plain?"})

    assert await asyncio.to_thread(ask) == {"action": "accept", "content": {"asked": "Plain?"}}


async def test_a_handler_is_cancelled_when_its_call_is_over(socket_host: SocketHost, start_worker: StartWorker) -> None:
    asked, told = asyncio.Event(), asyncio.Event()

    async def think(_: pillion.Question) -> None:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            told.set()

    @pillion.tool
    async def slow(ctx: pillion.ToolContext) -> Any:
        """Does not wait for its answer."""
        question = asyncio.ensure_future(ctx.caller.elicit("?", {"type": "object"}))
        await asked.wait()
        question.cancel()
        return "gone on"

    await start_worker(slow)
    async with pillion.connect(socket_host.callers_at, can_answer={ELICIT: think}) as caller:
        assert await caller.call("slow") == "gone on"
        async with asyncio.timeout(10):
            await told.wait()
        # The place of a handler is free again, for another call's.
        asked.clear()
        assert await caller.call("slow") == "gone on"
