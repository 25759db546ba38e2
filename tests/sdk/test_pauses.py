"""Tools that pause and callers that resume them, through the SDK at both ends."""

import asyncio
import logging
import pickle
from typing import Any

import pytest

import pillion
import pillion.sync
from pillion import errors
from pillion.testing import call
from tests.sdk.conftest import StartWorker
from tests.support import SocketHost


@pillion.tool
async def echo(amount: int, ctx: pillion.ToolContext) -> dict[str, Any]:
    """Waits for a person's word."""
    if ctx.resume is None:
        schema = {"type": "boolean"}
        raise pillion.Pause(f"Transfer {amount}?", kind="confirm", schema=schema, state={"seen": amount})
    ctx.progress({"message": "going on"})
    return {"answer": ctx.resume.answer, "state": ctx.resume.state, "id": ctx.tool_call_id}


async def test_a_tool_pauses_and_its_caller_resumes_it(caller: pillion.Host, start_worker: StartWorker) -> None:
    await start_worker(echo)
    with pytest.raises(errors.CallPaused, match="Transfer 5") as raised:
        await caller.call("echo", {"amount": 5}, tool_call_id="t")
    paused = raised.value.paused
    assert (paused.kind, paused.message, paused.schema) == ("confirm", "Transfer 5?", {"type": "boolean"})
    assert paused.ticket is not None
    assert await caller.resume(paused.ticket, True) == {"answer": True, "state": {"seen": 5}, "id": "t"}
    with pytest.raises(errors.TicketInvalid) as used:
        await caller.resume(raised.value, True)
    assert used.value.side_effects is pillion.SideEffects.NONE
    assert not used.value.retryable


async def test_the_call_that_goes_on_reports_and_has_a_raw_result(
    caller: pillion.Host, start_worker: StartWorker
) -> None:
    await start_worker(echo)
    identity = pillion.Identity("acme", "ann")
    async with caller.start("echo", {"amount": 5}, identity=identity) as first:
        paused = await first.ended()
    assert isinstance(paused, pillion.Paused)
    with pytest.raises(errors.TicketInvalid):
        await caller.resume(paused)
    async with caller.start_resumed(paused, b'"yes"', identity=identity) as second:
        reports = [report.payload async for report in second]
        assert (await second.raw()).value["answer"] == "yes"
    assert reports == [{"message": "going on"}]
    assert second.tool_call_id == first.tool_call_id
    assert second.execution_id != first.execution_id


async def test_a_ticket_neither_prints_nor_serialises(
    caller: pillion.Host, start_worker: StartWorker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    await start_worker(echo)
    with pytest.raises(errors.CallPaused) as raised:
        await caller.call("echo", {"amount": 5})
    paused = raised.value.paused
    assert paused.ticket is not None
    ticket = paused.ticket.reveal()
    for shown in (repr(paused), str(paused), repr(paused.ticket), str(paused.ticket), repr(raised.value), caplog.text):
        assert ticket not in shown
    with pytest.raises(TypeError):
        pickle.dumps(paused.ticket)
    assert (await caller.resume(ticket))["answer"] is None


async def test_a_plain_tool_pauses_with_bytes(caller: pillion.Host, start_worker: StartWorker) -> None:
    @pillion.tool
    def read(ctx: pillion.ToolContext) -> list[Any]:
        if ctx.resume is None:
            raise pillion.Pause("More?", state=b"\x00raw")
        assert "raw" not in repr(ctx.resume)
        return [ctx.resume.state_bytes == b"\x00raw", ctx.resume.answer_json.decode(), ctx.resume.answer]

    await start_worker(read)
    with pytest.raises(errors.CallPaused) as raised:
        await caller.call("read")
    assert raised.value.paused.kind == "input"
    assert raised.value.paused.schema is None
    assert await caller.resume(raised.value, {"a": [1.5]}) == [True, '{"a":[1.5]}', {"a": [1.5]}]


async def test_an_inner_pause_goes_through_its_outer_tool(caller: pillion.Host, start_worker: StartWorker) -> None:
    runs: list[str] = []

    @pillion.tool
    async def read(ctx: pillion.ToolContext) -> Any:
        runs.append("middle")
        return await ctx.tools.call("echo", {"amount": 3})

    @pillion.tool
    async def slow(ctx: pillion.ToolContext) -> Any:
        runs.append("outer")
        async with asyncio.TaskGroup() as group:
            inner = group.create_task(ctx.tools.call("read"))
            group.create_task(asyncio.sleep(60)) if ctx.resume is None else None
        return ["outer", inner.result()]

    await start_worker(echo, read, slow)
    with pytest.raises(errors.CallPaused, match="Transfer 3") as raised:
        await caller.call("slow", tool_call_id="t")
    assert raised.value.paused.schema == {"type": "boolean"}
    value = await caller.resume(raised.value, "yes")
    assert value == ["outer", {"answer": "yes", "state": {"seen": 3}, "id": "t#inner-1#inner-1"}]
    assert runs == ["outer", "middle"] * 2


async def test_a_tool_may_catch_the_pause_of_another_and_pause_by_itself(
    caller: pillion.Host, start_worker: StartWorker
) -> None:
    @pillion.tool
    async def read(ctx: pillion.ToolContext) -> Any:
        try:
            answer = await ctx.tools.call("echo", {"amount": 3})
        except errors.CallPaused as pause:
            raise pillion.Pause(f"For read: {pause.paused.message}", state="mine") from pause
        assert ctx.resume is not None
        return [ctx.resume.state, answer["state"], answer["answer"]]

    @pillion.tool
    async def slow(ctx: pillion.ToolContext) -> str:
        outcome = await ctx.tools.outcome("echo", {"amount": 1})
        assert isinstance(outcome, pillion.Paused)
        assert outcome.ticket is None
        with pytest.raises(ValueError, match="has no ticket"):
            await caller.resume(outcome)
        return "went on without it"

    await start_worker(echo, read, slow)
    with pytest.raises(errors.CallPaused, match="For read: Transfer 3") as raised:
        await caller.call("read")
    assert await caller.resume(raised.value, 7) == ["mine", {"seen": 3}, 7]
    assert await caller.call("slow") == "went on without it"


async def test_a_pause_of_another_connection_is_not_the_tools_own(
    caller: pillion.Host, start_worker: StartWorker, caplog: pytest.LogCaptureFixture
) -> None:
    @pillion.tool
    async def read() -> Any:
        return await caller.call("echo", {"amount": 3})

    await start_worker(echo, read)
    with pytest.raises(errors.ToolFailed):
        await caller.call("read")
    assert "read failed in" in caplog.text


async def test_a_pause_that_cannot_be_told_fails_its_call(
    caller: pillion.Host, start_worker: StartWorker, caplog: pytest.LogCaptureFixture
) -> None:
    @pillion.tool
    async def read(what: str) -> None:
        match what:
            case "state":
                raise pillion.Pause("More?", state=object())
            case "schema":
                raise pillion.Pause("More?", schema={"const": object()})
            case "kind":
                raise pillion.Pause("More?", kind=7)  # type: ignore[arg-type]
            case _:
                raise pillion.Pause("More?", state=b"x" * 70_000)

    await start_worker(read)
    for what in ("state", "schema", "kind"):
        with pytest.raises(errors.ToolFailed):
            await caller.call("read", {"what": what})
    with pytest.raises(errors.ResultTooLarge, match="65,536"):
        await caller.call("read", {"what": "large"})


async def test_a_message_of_any_length_is_told(caller: pillion.Host, start_worker: StartWorker) -> None:
    @pillion.tool
    async def read() -> None:
        raise pillion.Pause("ä" * 9_000)

    await start_worker(read)
    with pytest.raises(errors.CallPaused) as raised:
        await caller.call("read")
    assert len(raised.value.paused.message.encode()) == 4_096


async def test_a_pause_is_rehearsed() -> None:
    with pytest.raises(pillion.Pause) as raised:
        await call(echo, {"amount": 5})
    pause = raised.value
    assert (pause.kind, pause.message, pause.schema) == ("confirm", "Transfer 5?", {"type": "boolean"})
    assert "Transfer" not in repr(pause)
    value = await call(echo, {"amount": 5}, resume=pause, answer=[True])
    assert value == {"answer": [True], "state": {"seen": 5}, "id": "test-call"}
    assert (await call(echo, {"amount": 5}, resume=pause))["answer"] is None


async def test_a_caller_without_asyncio_resumes(
    caller: pillion.Host, socket_host: SocketHost, start_worker: StartWorker
) -> None:
    await start_worker(echo)

    def talk() -> tuple[Any, Any]:
        with pillion.sync.connect(socket_host.callers_at) as host:
            with pytest.raises(errors.CallPaused) as first:
                host.call("echo", {"amount": 1})
            with host.start("echo", {"amount": 2}) as started:
                second = started.ended()
            assert isinstance(second, pillion.Paused)
            with host.start_resumed(second, "second") as resumed:
                return host.resume(first.value, "first"), resumed.result()

    first, second = await asyncio.to_thread(talk)
    assert (first["answer"], second["answer"]) == ("first", "second")


def test_a_pause_without_a_message_is_refused_where_it_is_made() -> None:
    with pytest.raises(ValueError, match="needs a message"):
        pillion.Pause("")
