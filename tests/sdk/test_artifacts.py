"""Artifacts by the SDK: what tools are handed and put, and what callers do with them."""

import asyncio
import hashlib
import io
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field

import pillion
from pillion import errors
from tests.sdk.conftest import StartWorker

KIB, MIB = 1024, 1024 * 1024
LARGE = bytes(range(256)) * 12 * KIB
SMALL = b"a,b\n1,2\n"


class Row(BaseModel):
    """What a JSON artifact of the tests holds."""

    a: int


def here(caller: pillion.Host) -> pillion.HostArtifacts:
    """Where the calls of these tests keep theirs."""
    return caller.artifacts.within(session_id="s")


# --- what a tool is handed


def taking(annotation: Any) -> pillion.Tool[[Any], Any]:
    """A tool whose artifact has this annotation, and that says what it was handed."""

    async def echo(data: Any) -> str:
        return str(data)

    echo.__annotations__["data"] = annotation
    return pillion.tool(wants={"data": "note"})(echo)


@pytest.mark.parametrize("content", [SMALL, b"", LARGE], ids=["small", "empty", "large"])
@pytest.mark.parametrize("is_plain", [False, True], ids=["async", "plain"])
async def test_a_tool_is_handed_what_its_annotation_says(
    caller: pillion.Host, start_worker: StartWorker, content: bytes, *, is_plain: bool
) -> None:
    seen: dict[str, Any] = {}

    def keep(raw: bytes, file: Path, stream: bytes, ctx: pillion.ToolContext) -> str:
        assert ctx.wanted is not None
        seen["kinds"] = {name: meta.kind for name, meta in ctx.wanted.items()}
        seen["file"] = file
        return ",".join(hashlib.sha256(each).hexdigest() for each in (raw, file.read_bytes(), stream))

    wants = {"raw": "csv", "file": "csv", "stream": "csv"}
    if is_plain:

        @pillion.tool(wants=wants)
        def echo(raw: bytes, file: Path, stream: pillion.OpenArtifact, ctx: pillion.ToolContext) -> str:
            return keep(raw, file, ctx.wait(stream.read()), ctx)
    else:

        @pillion.tool(wants=wants)
        async def echo(raw: bytes, file: Path, stream: pillion.OpenArtifact, ctx: pillion.ToolContext) -> str:
            chunks = [chunk async for chunk in stream]
            assert all(len(chunk) <= 256 * KIB for chunk in chunks)
            assert stream.meta.size == len(content)
            return await asyncio.to_thread(keep, raw, file, b"".join(chunks), ctx)

    await start_worker(echo)
    meta = await here(caller).put(content, kind="csv", media_type="text/csv")
    arguments = dict.fromkeys(wants, meta.reference)
    digest = hashlib.sha256(content).hexdigest()
    assert await caller.call("echo", arguments, session_id="s") == ",".join([digest] * 3)
    assert seen["kinds"] == wants
    assert seen["file"].name == "file.csv"
    for _ in range(200):
        if not await asyncio.to_thread(seen["file"].parent.exists):
            break
        await asyncio.sleep(0.01)
    assert not await asyncio.to_thread(seen["file"].parent.exists), "its file is removed after the call"


@pytest.mark.parametrize(
    ("annotation", "put", "expected"),
    [
        (str, "héllo", "héllo"),
        (str, b"h\xc3\xa9llo", "héllo"),
        (bytes, "hé", "b'h\\xc3\\xa9'"),
        (Row, {"a": 1}, "a=1"),
        (list[Row], b'[{"a": 1}]', "[Row(a=1)]"),
        (Any, {"a": [1.10, None]}, "{'a': [1.1, None]}"),
        (Any, "7", "7"),
        (Any, b"7", "b'7'"),
        (bytes | None, b"7", "b'7'"),
        (Annotated[str, Field(description="The text.", max_length=2)], "long", "long"),
    ],
)
async def test_a_payload_is_converted_as_the_annotation_says(
    caller: pillion.Host, start_worker: StartWorker, annotation: Any, put: Any, expected: str
) -> None:
    await start_worker(taking(annotation))
    schema = (await caller.tools()).by_name["echo"].input_schema["properties"]["data"]
    assert schema["type"] == "string", "callers send a reference"
    meta = await here(caller).put(put, kind="note")
    assert await caller.call("echo", {"data": meta.reference}, session_id="s") == expected


async def test_an_optional_artifact_may_be_left_away(caller: pillion.Host, start_worker: StartWorker) -> None:
    @pillion.tool(wants={"data": "note"})
    async def echo(ctx: pillion.ToolContext, data: bytes | None = None) -> str:
        return f"{data!r} {ctx.wanted}"

    await start_worker(echo)
    assert await caller.call("echo", {}, session_id="s") == "None None"


@pytest.mark.parametrize(
    ("annotation", "put"), [(str, b"\xff"), (Row, {"a": "canary"}), (Row, b"{canary"), (dict[str, int], b"[]")]
)
async def test_an_artifact_that_is_not_what_the_tool_takes_is_refused(
    caller: pillion.Host, start_worker: StartWorker, annotation: Any, put: Any
) -> None:
    await start_worker(taking(annotation))
    meta = await here(caller).put(put, kind="note")
    with pytest.raises(errors.InvalidArguments, match="The artifact for data is not what the tool takes") as raised:
        await caller.call("echo", {"data": meta.reference}, session_id="s")
    assert "canary" not in str(raised.value)


async def test_what_is_not_there_fails_before_the_tool_runs(caller: pillion.Host, start_worker: StartWorker) -> None:
    @pillion.tool(wants={"data": "note"})
    async def echo(data: bytes) -> None:
        raise AssertionError(data)

    await start_worker(echo)
    foreign = await caller.artifacts.put(b"x", kind="note")
    told = set()
    for reference in (foreign.reference, "art_" + "0" * 22, "", "../x"):
        with pytest.raises(errors.ArtifactUnavailable) as raised:
            await caller.call("echo", {"data": reference}, session_id="s")
        told.add(str(raised.value))
    assert len(told) == 1


async def test_one_that_expires_before_it_is_read_is_no_fault_of_the_tool(
    caller: pillion.Host, start_worker: StartWorker
) -> None:
    deleted: Callable[[], Any]

    @pillion.tool(wants={"first": "note", "data": "note"})
    async def echo(first: pillion.OpenArtifact, data: pillion.OpenArtifact) -> str:
        await deleted()
        with pytest.raises(errors.ArtifactMissing):
            await data.read()
        return "read"

    await start_worker(echo)
    meta = await here(caller).put(LARGE, kind="note")

    async def delete() -> None:
        await here(caller).delete(meta.reference)

    deleted = delete
    arguments = {"first": meta.reference, "data": meta.reference}
    assert await caller.call("echo", arguments, session_id="s") == "read"


# --- what a tool does itself


@pytest.mark.parametrize("is_plain", [False, True], ids=["async", "plain"])
async def test_a_tool_has_the_five_verbs(
    caller: pillion.Host, start_worker: StartWorker, tmp_path: Path, *, is_plain: bool
) -> None:
    source, target = tmp_path / "large.csv", tmp_path / "copy"
    await asyncio.to_thread(source.write_bytes, LARGE)

    async def work(ctx: pillion.ToolContext) -> list[str]:
        artifacts = ctx.artifacts
        small = await artifacts.put({"a": 1}, kind="k", label="small", digest=True)
        large = await artifacts.put(source, kind="k", parents=[small.reference])
        assert (large.media_type, large.label, large.size) == ("text/csv", "large.csv", len(LARGE))
        assert large.origin == pillion.ArtifactOrigin("r", "t", "echo", ctx.execution_id)
        assert large.parents == (small.reference,)
        found = await artifacts.get(small.reference)
        assert found is not None
        assert found[1] == {"a": 1}
        found = await artifacts.get(large.reference)
        assert found is not None
        assert found[1] == LARGE
        await artifacts.save(large.reference, target)
        async with artifacts.open(large.reference, len(LARGE) - 3) as opened:
            assert await opened.read() == LARGE[-3:]
        with pytest.raises(errors.ArtifactRefused):
            async with artifacts.open(large.reference, len(LARGE) + 1):
                pass
        names = [meta.reference async for meta in artifacts.list()]
        assert names == [large.reference, small.reference]
        await artifacts.delete(small.reference)
        await artifacts.delete("nothing")
        assert await artifacts.head(small.reference) is None
        assert await artifacts.get(small.reference) is None
        with pytest.raises(errors.ArtifactMissing):
            await artifacts.save(small.reference, target)
        with pytest.raises(errors.ArtifactRefused) as refused:
            await artifacts.put(b"x", kind="k", parents=[small.reference])
        assert refused.value.code is errors.ReplyCode.ARTIFACT_UNKNOWN_PARENT
        return names

    if is_plain:

        @pillion.tool
        def echo(ctx: pillion.ToolContext) -> list[str]:
            assert ctx.has_artifacts
            return ctx.wait(work(ctx))
    else:

        @pillion.tool
        async def echo(ctx: pillion.ToolContext) -> list[str]:
            return await work(ctx)

    await start_worker(echo)
    (large, _) = await caller.call("echo", session_id="s", run_id="r", tool_call_id="t")
    found = await here(caller).get(large)
    assert found is not None
    assert found[1] == LARGE
    assert await asyncio.to_thread(target.read_bytes) == LARGE


async def test_a_call_without_a_place_keeps_what_it_puts_by_its_execution(
    caller: pillion.Host, start_worker: StartWorker
) -> None:
    @pillion.tool
    async def echo(ctx: pillion.ToolContext) -> str:
        return (await ctx.artifacts.put("hello", kind="note")).reference

    await start_worker(echo)
    async with caller.start("echo") as call:
        reference = await call.result()
    found = await caller.artifacts.within(execution_id=call.execution_id).get(reference)
    assert found is not None
    assert found[1] == "hello"
    assert await caller.artifacts.get(reference) is None


# --- results


@pytest.mark.parametrize("is_plain", [False, True], ids=["async", "plain"])
@pytest.mark.parametrize("length", [200, 3 * MIB])
async def test_a_large_result_is_placed(
    caller: pillion.Host, start_worker: StartWorker, length: int, *, is_plain: bool
) -> None:
    placement = pillion.Placement(over_bytes=100, kind="report")
    if is_plain:

        @pillion.tool(placement=placement)
        def echo() -> str:
            return "x" * length
    else:

        @pillion.tool(placement=placement)
        async def echo() -> str:
            return "x" * length

    await start_worker(echo)
    meta = await caller.call("echo", session_id="s", idempotency_key="k")
    assert isinstance(meta, pillion.ArtifactMeta)
    assert (meta.kind, meta.size, meta.label) == ("report", length + 2, "echo result")
    found = await here(caller).get(meta.reference)
    assert found is not None
    assert found[1] == "x" * length
    assert (await caller.call("echo", session_id="s", idempotency_key="k")).reference == meta.reference


async def test_a_large_result_with_blocks_is_placed_and_its_blocks_stay(
    caller: pillion.Host, start_worker: StartWorker
) -> None:
    @pillion.tool(placement=pillion.Placement(over_bytes=100))
    async def echo() -> Any:
        return pillion.ToolResult("x" * 3 * MIB, content=[pillion.content.Text("a summary")])

    await start_worker(echo)
    async with caller.start("echo", session_id="s") as call:
        result = await call.raw()
    assert result.placed is not None
    assert len(result.content) == 1


@pytest.mark.parametrize(("placement", "keeps_artifacts"), [(None, None), (pillion.Placement(100), False)])
async def test_without_a_placement_or_a_store_it_is_too_large(
    caller: pillion.Host, start_worker: StartWorker, placement: pillion.Placement | None
) -> None:
    @pillion.tool(placement=placement)
    async def echo(length: int) -> str:
        return "x" * length

    await start_worker(echo)
    with pytest.raises(errors.ResultTooLarge) as raised:
        await caller.call("echo", {"length": 3 * MIB}, session_id="s")
    assert raised.value.side_effects is pillion.SideEffects.COMMITTED
    assert len(await caller.call("echo", {"length": 200}, session_id="s")) == 200


# --- callers


async def some(content: bytes, size: int = 100_000) -> AsyncIterator[bytes]:
    for start in range(0, len(content), size):
        yield content[start : start + size]


@pytest.mark.parametrize("content", [SMALL, b"", LARGE], ids=["small", "empty", "large"])
async def test_a_caller_puts_bytes_files_and_streams(caller: pillion.Host, tmp_path: Path, content: bytes) -> None:
    artifacts = here(caller)
    path = tmp_path / "data.json"
    await asyncio.to_thread(path.write_bytes, content)
    file = io.BytesIO(b"before" + content)
    file.seek(6)
    for data, size in ((content, None), (path, None), (file, None), (some(content), len(content))):
        meta = await artifacts.put(data, kind="k", digest=True, size=size)
        assert meta.digest == f"sha-256:{hashlib.sha256(content).hexdigest()}"
        found = await artifacts.get(meta.reference)
        assert found is not None
        assert found[1] == content
        assert meta.media_type == ("application/json" if data is path else "application/octet-stream")
        target = tmp_path / "target"
        assert (await artifacts.save(meta.reference, target)).reference == meta.reference
        assert await asyncio.to_thread(target.read_bytes) == content
    assert len([meta async for meta in artifacts.list()]) == 4


async def test_what_a_caller_does_wrong_is_told_in_the_same_classes(caller: pillion.Host, tmp_path: Path) -> None:
    artifacts = here(caller)
    with pytest.raises(errors.ArtifactRefused) as refused:
        await artifacts.put(b"x", kind=" ")
    assert refused.value.code is errors.ReplyCode.ARTIFACT_INVALID
    with pytest.raises(errors.ArtifactRefused):
        await artifacts.put(LARGE, kind=" ")
    with pytest.raises(errors.ArtifactRefused, match="UTF-8"):
        await artifacts.put(b"\xff" * 3 * MIB, kind="k", shape=pillion.ArtifactShape.TEXT)
    with pytest.raises(TypeError, match="size="):
        await artifacts.put(some(b"x"), kind="k")
    with pytest.raises(ValueError, match="were to come"):
        await artifacts.put(some(LARGE), kind="k", size=len(LARGE) + 1)
    for size in (0, 2):
        with pytest.raises(ValueError, match="were to come"):
            await artifacts.put(some(b"x"), kind="k", size=size)
    with pytest.raises(FileNotFoundError):
        await artifacts.put(tmp_path / "none", kind="k")
    with pytest.raises(errors.ArtifactMissing):
        await artifacts.save("art_" + "0" * 22, tmp_path / "none")
    assert not await asyncio.to_thread((tmp_path / "none").exists)
    assert await artifacts.get("../x") is None
    assert await artifacts.head("") is None
    assert not [meta async for meta in artifacts.list()]


async def test_scopes_are_apart(caller: pillion.Host) -> None:
    assert "artifacts" in (await caller.info()).features
    ann = pillion.Identity(tenant="acme", principal="ann")
    places: list[dict[str, Any]] = [
        {},
        {"session_id": "1"},
        {"run_id": "1"},
        {"execution_id": "1"},
        {"identity": ann},
        {"identity": ann, "session_id": "1"},
        {"identity": pillion.Identity(tenant="acme", principal="ann", conversation_id="1")},
    ]
    artifacts = [caller.artifacts.within(**place) for place in places]
    own = [(await each.put(b"x", kind="k")).reference for each in artifacts]
    for each, mine in zip(artifacts, own, strict=True):
        assert [meta.reference async for meta in each.list()] == [mine]
        assert [await each.head(other) is not None for other in own] == [other == mine for other in own]


@pytest.mark.parametrize("keeps_artifacts", [False])
async def test_without_a_store_a_caller_is_refused_and_told_beforehand(caller: pillion.Host) -> None:
    assert "artifacts" not in (await caller.info()).features
    for ask in (
        caller.artifacts.put(b"x", kind="k"),
        caller.artifacts.put(LARGE, kind="k"),
        caller.artifacts.head("art_x"),
        caller.artifacts.get("art_x"),
        caller.artifacts.delete("art_x"),
        anext(aiter(caller.artifacts.list())),
    ):
        with pytest.raises(errors.RequestUnsupported):
            await ask


async def test_a_download_that_is_left_leaves_nothing(caller: pillion.Host) -> None:
    artifacts = here(caller)
    meta = await artifacts.put(b"x" * 64 * MIB, kind="k")
    async with artifacts.open(meta.reference) as opened:
        async for chunk in opened:
            assert chunk
            break
    assert await artifacts.head(meta.reference) is not None, "the connection is as good as before"


async def test_tools_that_call_tools_share_their_artifacts(caller: pillion.Host, start_worker: StartWorker) -> None:
    @pillion.tool(wants={"data": "note"}, placement=pillion.Placement(over_bytes=10))
    async def read(data: bytes) -> str:
        return data.decode() * 2

    @pillion.tool
    async def echo(ctx: pillion.ToolContext) -> str:
        note = await ctx.artifacts.put("hello, ", kind="note")
        placed = await ctx.tools.call("read", {"data": note.reference})
        found = await ctx.artifacts.get(placed.reference)
        assert found is not None
        assert found[0].parents == (note.reference,)
        return str(found[1])

    await start_worker(echo, read)
    for session in (None, "s"):
        assert await caller.call("echo", session_id=session) == "hello, hello, "
