import asyncio
import logging
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import pillion
from pillion import errors
from pillion._gen.pillion.v1 import context_pb2
from pillion.testing import Artifacts, Rehearsal, call


@pillion.tool
async def double(number: int, ctx: pillion.ToolContext) -> int:
    ctx.progress({"n": number})
    ctx.log("doubling", logging.INFO, number=number)
    return number * 2


async def test_a_tool_is_called_without_a_sidecar() -> None:
    rehearsal = Rehearsal()
    assert await call(double, {"number": 4}, rehearsal=rehearsal) == 8
    assert rehearsal.progress == [{"n": 4}]
    assert rehearsal.logs == [(logging.INFO, "doubling", {"number": "4"})]
    with pytest.raises(errors.InvalidArguments) as refused:
        await call(double, {"number": "x"})
    assert refused.value.issues[0].path == "/number"


async def test_a_plain_function_will_do_and_values_go_through_json() -> None:
    def echo(**arguments: Any) -> Any:
        return arguments

    assert await call(echo, {"a": (1, Decimal("1.1"))}) == {"a": [1, 1.1]}
    assert await call(echo, b'{"a":1}') == {"a": 1}


async def test_what_a_tool_raises_comes_out_as_it_is() -> None:
    async def fails() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        await call(fails)


async def test_facts_and_refusals_are_those_of_the_test() -> None:
    async def asks(ctx: pillion.ToolContext) -> Any:
        assert ctx.caller_principal is not None
        with pytest.raises(errors.RequestUnsupported):
            await ctx.kv.get("b", "k")
        return [ctx.run_id, ctx.session_id, ctx.identity, ctx.iteration, ctx.caller_principal.reveal()]

    got = await call(asks, run_id="r", identity=pillion.Identity("acme"), iteration=3, caller_principal="ada")
    assert got == ["r", None, {"tenant": "acme", "principal": None, "conversation_id": None}, 3, "ada"]


async def test_a_rehearsed_call_can_be_cancelled() -> None:
    rehearsal = Rehearsal()
    began = asyncio.Event()

    async def waits(ctx: pillion.ToolContext) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            assert ctx.cancel_reason is pillion.CancelReason.DRAIN

    task = asyncio.ensure_future(call(waits, rehearsal=rehearsal))
    await began.wait()
    rehearsal.cancel(pillion.CancelReason.DRAIN)
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_cleanups_are_kept_and_run_by_the_test() -> None:
    ran: list[str] = []

    async def opens(ctx: pillion.ToolContext) -> list[Any]:
        run = pillion.TeardownScope.RUN
        first = await ctx.on_teardown(lambda reason: ran.append(f"first {reason.name}"), scope=run, label="one")

        async def second(reason: pillion.TeardownReason) -> None:
            ran.append(f"second {reason.name}")

        other = await ctx.on_teardown(second, scope=run, name="other", cleanup_call=("close", {"a": 1}))
        again = await ctx.on_teardown(second, scope=run)
        await ctx.on_teardown(second, scope=pillion.TeardownScope.SESSION)
        return [first.reused, other.reused, again.reused, again.count, ctx.session_key(run)]

    rehearsal = Rehearsal()
    *answers, key = await call(opens, run_id="r", session_id="s", rehearsal=rehearsal)
    assert answers == [False, False, True, 2]
    assert len(key) == 12
    first, other, _ = rehearsal.cleanups
    assert (first.tool, first.label, first.count, first.key) == ("opens", "one", 2, key)
    assert (other.name, other.cleanup_call) == ("other", ("close", {"a": 1}))
    assert await rehearsal.tear_down(pillion.TeardownScope.RUN) == 2
    assert ran == ["second RUN_END", "first RUN_END"]
    assert await rehearsal.tear_down(pillion.TeardownScope.SESSION, pillion.TeardownReason.IDLE) == 1
    assert ran[2:] == ["second IDLE"]
    assert not rehearsal.cleanups


async def test_several_rehearsed_calls_may_share_what_is_kept_for_a_session() -> None:
    async def opens(ctx: pillion.ToolContext) -> bool:
        return (await ctx.on_teardown(lambda reason: None, scope=pillion.TeardownScope.SESSION)).reused

    rehearsal = Rehearsal()
    sessions = ["s", "s", "t"]
    assert [await call(opens, session_id=name, rehearsal=rehearsal) for name in sessions] == [False, True, False]
    assert await rehearsal.tear_down(pillion.TeardownScope.SESSION) == 2


async def test_a_rehearsed_call_is_refused_a_scope_that_it_has_not() -> None:
    async def opens(ctx: pillion.ToolContext, scope: str) -> bool:
        return (await ctx.on_teardown(lambda reason: None, scope=pillion.TeardownScope[scope])).reused

    async def refused(scope: str, **facts: Any) -> str:
        with pytest.raises(errors.TeardownRefused) as refusal:
            await call(opens, {"scope": scope}, **facts)
        return refusal.value.code.name

    assert await refused("RUN") == "TEARDOWN_FACT_MISSING"
    assert await refused("SESSION", session_id="") == "TEARDOWN_FACT_MISSING"
    assert not await call(opens, {"scope": "CALL"})
    assert not await call(opens, {"scope": "SHUTDOWN"})
    none = context_pb2.ToolContext(teardown_scopes=context_pb2.TeardownScopes())
    assert await refused("CALL", context=none) == "TEARDOWN_SCOPE_UNSUPPORTED"


@pytest.mark.parametrize(
    ("cleanup", "more", "sentence"),
    [
        (None, {}, "The cleanup is a function of the reason"),
        (print, {"scope": "session"}, r"such as TeardownScope\.SESSION"),
        (print, {"cleanup_call": "give_back"}, "a tool and its arguments"),
        (print, {"cleanup_call": ("give_back",)}, "a tool and its arguments"),
    ],
)
async def test_what_cannot_be_registered_is_refused_at_once(cleanup: Any, more: dict[str, Any], sentence: str) -> None:
    async def opens(ctx: pillion.ToolContext) -> None:
        await ctx.on_teardown(cleanup, **{"scope": pillion.TeardownScope.SESSION, **more})

    rehearsal = Rehearsal()
    with pytest.raises(TypeError, match=sentence):
        await call(opens, session_id="s", rehearsal=rehearsal)
    assert not rehearsal.cleanups


async def test_a_session_key_of_no_scope_is_refused() -> None:
    def opens(ctx: pillion.ToolContext) -> str | None:
        return ctx.session_key("session")  # type: ignore[arg-type]

    with pytest.raises(TypeError, match=r"such as TeardownScope\.SESSION"):
        await call(opens, session_id="s")


async def test_a_rehearsed_tool_has_artifacts(tmp_path: Path) -> None:
    @pillion.tool(wants={"data": "csv", "more": "csv"})
    async def draw(data: Path, ctx: pillion.ToolContext, more: str = "none") -> str:
        assert ctx.has_artifacts
        assert ctx.wanted is not None
        text = await asyncio.to_thread(data.read_text)
        chart = await ctx.artifacts.put(
            b"PNG of " + text.encode(), kind="chart", parents=[meta.reference for meta in ctx.wanted.values()]
        )
        source = tmp_path / "source"
        await asyncio.to_thread(source.write_bytes, b"x" * 100_000)
        await ctx.artifacts.put(source, kind="large")
        assert [meta.kind async for meta in ctx.artifacts.list()] == ["large", "chart", "csv"]
        assert await ctx.artifacts.get("art_x") is None
        with pytest.raises(errors.ArtifactRefused):
            await ctx.artifacts.put(b"x", kind="k", parents=["art_x"])
        return f"{chart.reference} {more}"

    artifacts = Artifacts()
    reference = artifacts.add(b"a,b", kind="csv", media_type="text/csv")
    chart, more = (await call(draw, {"data": reference}, artifacts=artifacts)).split()
    meta, payload = artifacts[chart]
    assert (payload, meta.kind, meta.parents, more) == (b"PNG of a,b", "chart", (reference,), "none")
    assert list(artifacts)[:2] == [reference, chart]
    assert len(artifacts) == 3
    for wrong in (chart, "art_x"):
        with pytest.raises(errors.ArtifactUnavailable):
            await call(draw, {"data": wrong}, artifacts=artifacts)
    with pytest.raises(errors.ArtifactUnavailable):
        await call(draw, {"data": reference})


async def test_an_artifact_of_another_type_is_refused_in_a_rehearsal() -> None:
    @pillion.tool(wants={"data": "note"})
    def echo(data: str) -> str:
        return data

    artifacts = Artifacts()
    assert await call(echo, {"data": artifacts.add("hello", kind="note")}, artifacts=artifacts) == "hello"
    with pytest.raises(errors.InvalidArguments):
        await call(echo, {"data": artifacts.add(b"\xff", kind="note")}, artifacts=artifacts)


async def test_without_a_store_a_rehearsed_tool_is_refused() -> None:
    async def puts(ctx: pillion.ToolContext) -> None:
        assert not ctx.has_artifacts
        await ctx.artifacts.put(b"x", kind="note")

    with pytest.raises(errors.RequestUnsupported):
        await call(puts)
