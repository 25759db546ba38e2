"""A worker and a sidecar whose every frame is the test's: what a worker does when asked for what none asks yet."""

import asyncio
from typing import Any

import grpc

import pillion
from pillion._gen.pillion.v1 import context_pb2, outbound_pb2, outcome_pb2
from pillion._gen.pillion.v1.frame_pb2 import Frame
from tests.support.listener import Hosting, WorkerListener


@pillion.tool
async def keep() -> bool:
    return True


async def test_a_hello_says_what_the_worker_is(listener: WorkerListener, hosting: Hosting) -> None:
    hosting(keep, concurrency=7)
    hello = await (await listener.stream()).welcome()
    assert (hello.worker, hello.token, hello.concurrency) == ("w", "t", 7)
    assert [tool.name for tool in hello.tools] == ["keep"]
    assert hello.sdk.startswith("pillion-python ")
    assert not hello.HasField("reattach")


async def test_a_drain_is_a_goodbye_after_the_last_outcome(listener: WorkerListener, hosting: Hosting) -> None:
    go_on = asyncio.Event()

    @pillion.tool
    async def waits() -> None:
        await go_on.wait()

    hosting(waits)
    stream = await listener.stream()
    await stream.welcome()
    await stream.invoke(1, "waits")
    drain, ping = Frame(), Frame()
    drain.drain.grace.seconds = 30
    ping.ping.nonce = 5
    await stream.send(drain, ping)
    assert (await stream.next("pong")).pong.nonce == 5
    go_on.set()
    frames = [await stream.next("goodbye")]
    assert frames[0].call == 0
    assert await stream.ended() or (await stream.next("outcome")).call == 1
    stream.end()


async def test_a_drain_that_lasts_too_long_stops_tools(listener: WorkerListener, hosting: Hosting) -> None:
    @pillion.tool
    async def waits() -> None:
        await asyncio.Event().wait()

    hosting(waits)
    stream = await listener.stream()
    await stream.welcome()
    await stream.invoke(1, "waits")
    drain = Frame()
    drain.drain.grace.nanos = 50_000_000
    await stream.send(drain)
    outcome = (await stream.next("outcome")).outcome
    assert outcome.failure.kind == outcome_pb2.FAILURE_KIND_CANCELLED
    stream.end()


async def test_a_secret_that_is_not_known_any_more_makes_another_instance(
    listener: WorkerListener, hosting: Hosting
) -> None:
    worker = hosting(keep)
    stream = await listener.stream()
    await stream.welcome()
    stream.end(grpc.StatusCode.UNAVAILABLE)
    stream = await listener.stream()
    assert (await stream.next("worker_hello")).worker_hello.HasField("reattach")
    stream.end(grpc.StatusCode.UNAUTHENTICATED, "another secret")
    stream = await listener.stream()
    assert not (await stream.welcome("ins_2")).HasField("reattach")
    await worker.attached.wait()
    assert worker.instance_id == "ins_2"


async def test_a_tool_that_is_not_there_is_unavailable(listener: WorkerListener, hosting: Hosting) -> None:
    hosting(keep)
    stream = await listener.stream()
    await stream.welcome()
    await stream.invoke(1, "nowhere")
    failure = (await stream.next("outcome")).outcome.failure
    assert failure.kind == outcome_pb2.FAILURE_KIND_UNAVAILABLE
    assert failure.side_effects == outcome_pb2.SIDE_EFFECTS_NONE


async def test_a_wanted_artifact_takes_the_place_of_its_reference(listener: WorkerListener, hosting: Hosting) -> None:
    @pillion.tool(wants={"image": "file/png"})
    async def look(image: bytes, ctx: pillion.ToolContext) -> list[Any]:
        assert ctx.wanted is not None
        return [len(image), ctx.wanted["image"].reference]

    hosting(look)
    stream = await listener.stream()
    await stream.welcome()
    wanted = context_pb2.WantedArtifacts()
    wanted.arguments["image"].meta.reference = "art_1"
    wanted.arguments["image"].inline.content = b"12345"
    await stream.invoke(1, "look", b'{"image":"art_1"}', wanted=wanted)
    assert (await stream.next("outcome")).outcome.result.json == b'[5,"art_1"]'


async def test_what_is_asked_is_answered_on_its_call(listener: WorkerListener, hosting: Hosting) -> None:
    @pillion.tool
    async def asks(key: str, ctx: pillion.ToolContext) -> str | None:
        entry = await ctx.kv.get("b", key)
        return None if entry is None else entry.value.decode()

    hosting(asks)
    stream = await listener.stream()
    await stream.welcome()
    await stream.invoke(1, "asks", b'{"key":"one"}')
    await stream.invoke(2, "asks", b'{"key":"two"}')
    asked = {}
    for _ in range(2):
        frame = await stream.next("outbound_request")
        asked[frame.call] = frame.outbound_request
    for call in (2, 1):
        reply = Frame(call=call)
        reply.reply.request_id = asked[call].request_id
        if call == 1:
            reply.reply.kv_got.entry.value = asked[call].kv_get.key.encode()
        else:
            reply.reply.kv_got.SetInParent()
        await stream.send(reply)
    got = {}
    for _ in range(2):
        frame = await stream.next("outcome")
        got[frame.call] = frame.outcome.result.json
    assert got == {1: b'"one"', 2: b"null"}


async def test_a_lost_stream_ends_what_was_asked(listener: WorkerListener, hosting: Hosting) -> None:
    ends: asyncio.Queue[str] = asyncio.Queue()

    @pillion.tool
    def asks(ctx: pillion.ToolContext) -> None:
        try:
            ctx.wait(ctx.kv.get("b", "k"))
        except pillion.errors.RequestCancelled:
            reason = ctx.cancel_reason
            asyncio.run_coroutine_threadsafe(ends.put(reason.name if reason else "none"), loop)

    loop = asyncio.get_running_loop()
    hosting(asks)
    stream = await listener.stream()
    await stream.welcome()
    await stream.invoke(1, "asks")
    await stream.next("outbound_request")
    stream.end(grpc.StatusCode.UNAVAILABLE)
    async with asyncio.timeout(10):
        assert await ends.get() == "DISCONNECT"


async def test_unknown_frames_are_ignored(listener: WorkerListener, hosting: Hosting) -> None:
    hosting(keep)
    stream = await listener.stream()
    await stream.welcome()
    await stream.send(Frame(), Frame(call=9, reply=outbound_pb2.Reply(request_id=1)))
    await stream._context.write(b"\xff\xff\xff")
    await stream.invoke(1, "keep")
    assert (await stream.next("outcome")).outcome.HasField("result")
