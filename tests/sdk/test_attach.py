"""A worker and a sidecar whose every frame is the test's: what a worker does when asked for what none asks yet."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

import pillion
from pillion._gen.pillion.v1 import context_pb2, outbound_pb2, outcome_pb2, worker_pb2
from pillion._gen.pillion.v1.attach_pb2 import AttachRequest, AttachResponse
from pillion._gen.pillion.v1.frame_pb2 import Frame

RUN, RUN_END = context_pb2.TEARDOWN_SCOPE_RUN, context_pb2.TEARDOWN_REASON_RUN_END


class Stream:
    """The sidecar's end of one `Attach`."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._kept: list[Frame] = []
        self.status: asyncio.Future[tuple[grpc.StatusCode, str]] = asyncio.get_running_loop().create_future()

    async def send(self, *frames: Frame) -> None:
        await self._context.write(AttachResponse(frames=frames).SerializeToString())

    async def next(self, body: str) -> Frame:
        """The next frame with this body; what comes before it is skipped."""
        async with asyncio.timeout(10):
            while True:
                while self._kept:
                    frame = self._kept.pop(0)
                    if frame.WhichOneof("body") == body:
                        return frame
                message = await self._context.read()
                assert message is not grpc.aio.EOF, f"the stream ended before a {body}"
                self._kept += AttachRequest.FromString(message).frames

    async def ended(self) -> bool:
        """Whether the worker half-closes next, with nothing more to say."""
        async with asyncio.timeout(10):
            return not self._kept and await self._context.read() is grpc.aio.EOF

    async def welcome(self, instance: str = "ins_1", window: float = 60) -> worker_pb2.WorkerHello:
        hello = (await self.next("worker_hello")).worker_hello
        frame = Frame()
        frame.welcome.instance_id, frame.welcome.reattach_secret = instance, f"secret of {instance}"
        frame.welcome.limits.max_frame_bytes, frame.welcome.limits.max_inline_bytes = 1 << 20, 1 << 16
        frame.welcome.reattach_window.FromMilliseconds(int(window * 1_000))
        await self.send(frame)
        return hello

    async def invoke(self, call: int, tool: str, arguments: bytes = b"{}", **context: Any) -> None:
        frame = Frame(call=call)
        frame.invoke.tool, frame.invoke.arguments = tool, arguments
        frame.invoke.context.CopyFrom(context_pb2.ToolContext(execution_id=f"exe_{call}", **context))
        frame.invoke.context.remaining.seconds = 60
        await self.send(frame)

    def end(self, code: grpc.StatusCode = grpc.StatusCode.OK, details: str = "") -> None:
        self.status.set_result((code, details))


class WorkerListener:
    """A listener for workers."""

    def __init__(self, path: Path) -> None:
        self.target = f"unix:{path}"
        self.streams: asyncio.Queue[Stream] = asyncio.Queue()
        self._server = grpc.aio.server()
        handler: Any = grpc.stream_stream_rpc_method_handler(self._attach)
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("pillion.v1.WorkerHostService", {"Attach": handler}),)
        )
        self._server.add_insecure_port(self.target)

    async def _attach(self, _requests: Any, context: Any) -> None:
        stream = Stream(context)
        self.streams.put_nowait(stream)
        code, details = await stream.status
        context.set_code(code)
        context.set_details(details)

    async def start(self) -> None:
        await self._server.start()

    async def stream(self) -> Stream:
        """The next stream that a worker opens."""
        async with asyncio.timeout(10):
            return await self.streams.get()

    async def stop(self) -> None:
        await self._server.stop(0)


@pytest.fixture
async def listener(tmp_path: Path) -> AsyncIterator[WorkerListener]:
    made = WorkerListener(tmp_path / "w.sock")
    await made.start()
    yield made
    await made.stop()


Hosting = Callable[..., pillion.Worker]


@pytest.fixture
async def hosting(listener: WorkerListener) -> AsyncIterator[Hosting]:
    running: list[asyncio.Task[None]] = []

    def host(*tools: Any, **options: Any) -> pillion.Worker:
        worker = pillion.Worker(tools, target=listener.target, worker="w", token="t", **options)
        running.append(asyncio.create_task(worker.run()))
        return worker

    yield host
    for task in running:
        task.cancel()
    ends = await asyncio.gather(*running, return_exceptions=True)
    assert all(end is None or isinstance(end, asyncio.CancelledError | pillion.errors.WorkerRefused) for end in ends), (
        ends
    )


@pytest.fixture
def ran() -> "asyncio.Queue[str]":
    """What cleanups have run."""
    return asyncio.Queue()


def keeper(ran: "asyncio.Queue[str]", kind: str = "async") -> Any:
    """A tool that registers a cleanup."""
    loop = asyncio.get_running_loop()

    async def clean(reason: pillion.TeardownReason) -> None:
        ran.put_nowait(reason.name)

    def clean_in_thread(reason: pillion.TeardownReason) -> None:
        loop.call_soon_threadsafe(ran.put_nowait, reason.name)

    def fail(reason: pillion.TeardownReason) -> None:
        clean_in_thread(reason)
        raise ValueError("canary")

    cleanups: Any = {"async": clean, "plain": clean_in_thread, "fails": fail}

    @pillion.tool
    async def keep(ctx: pillion.ToolContext) -> bool:
        return await ctx.on_teardown(pillion.TeardownScope.RUN, cleanups[kind], name="n", label="l", cleanup_tool="c")

    return keep


async def registered(stream: Stream, call: int = 1, registration_id: str = "reg_1", *, reused: bool = False) -> Frame:
    """Runs `keep` to its end, and returns its outcome."""
    await stream.invoke(call, "keep")
    asked = (await stream.next("register_teardown")).register_teardown
    assert (asked.scope, asked.name, asked.label, asked.cleanup_call.tool) == (RUN, "n", "l", "c")
    reply = Frame(call=call)
    reply.reply.request_id = asked.request_id
    reply.reply.teardown.registration_id, reply.reply.teardown.reused = registration_id, reused
    await stream.send(reply)
    return await stream.next("outcome")


def teardown(registration_id: str = "reg_1") -> Frame:
    frame = Frame()
    frame.run_teardown.registration_id, frame.run_teardown.reason = registration_id, RUN_END
    frame.run_teardown.timeout.seconds = 5
    return frame


async def test_a_hello_says_what_the_worker_is(listener: WorkerListener, hosting: Hosting, ran: Any) -> None:
    hosting(keeper(ran), concurrency=7)
    hello = await (await listener.stream()).welcome()
    assert (hello.worker, hello.token, hello.concurrency) == ("w", "t", 7)
    assert [tool.name for tool in hello.tools] == ["keep"]
    assert hello.sdk.startswith("pillion-python ")
    assert not hello.HasField("reattach")


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_a_cleanup_runs_once_when_its_scope_ends(
    listener: WorkerListener, hosting: Hosting, ran: "asyncio.Queue[str]", kind: str
) -> None:
    hosting(keeper(ran, kind))
    stream = await listener.stream()
    await stream.welcome()
    assert (await registered(stream)).outcome.result.json == b"true"
    assert (await registered(stream, 2, reused=True)).outcome.result.json == b"false"
    await stream.send(teardown(), teardown())
    first, second = [(await stream.next("teardown_done")).teardown_done for _ in range(2)]
    assert {first.HasField("error"), second.HasField("error")} == {True, False}
    assert await ran.get() == "RUN_END"
    assert ran.empty()


async def test_a_cleanup_that_fails_is_reported_without_its_text(
    listener: WorkerListener, hosting: Hosting, ran: "asyncio.Queue[str]"
) -> None:
    hosting(keeper(ran, "fails"))
    stream = await listener.stream()
    await stream.welcome()
    await registered(stream)
    await stream.send(teardown())
    assert (await stream.next("teardown_done")).teardown_done.error == "ValueError"


async def test_a_worker_comes_back_with_what_it_holds(
    listener: WorkerListener, hosting: Hosting, ran: "asyncio.Queue[str]"
) -> None:
    hosting(keeper(ran))
    stream = await listener.stream()
    await stream.welcome("ins_7")
    await registered(stream, 1, "reg_1")
    await registered(stream, 2, "reg_2")
    stream.end(grpc.StatusCode.UNAVAILABLE)
    again = await listener.stream()
    hello = await again.welcome("ins_7")
    assert (hello.reattach.instance_id, hello.reattach.secret) == ("ins_7", "secret of ins_7")
    assert list(hello.reattach.registrations) == ["reg_1", "reg_2"]
    release = Frame()
    release.release.registration_id = "reg_1"
    await again.send(release, teardown("reg_1"), teardown("reg_2"))
    done = [(await again.next("teardown_done")).teardown_done for _ in range(2)]
    assert {entry.registration_id: entry.HasField("error") for entry in done} == {"reg_1": True, "reg_2": False}


async def test_past_the_window_a_worker_cleans_up_by_itself(
    listener: WorkerListener, hosting: Hosting, ran: "asyncio.Queue[str]"
) -> None:
    hosting(keeper(ran))
    stream = await listener.stream()
    await stream.welcome(window=0.05)
    await registered(stream)
    await listener.stop()
    async with asyncio.timeout(10):
        assert await ran.get() == "WORKER_LOST"


async def test_a_worker_that_leaves_cleans_up(
    listener: WorkerListener, hosting: Hosting, ran: "asyncio.Queue[str]"
) -> None:
    worker = hosting(keeper(ran))
    stream = await listener.stream()
    await stream.welcome()
    await registered(stream)
    worker.leave()
    await stream.next("goodbye")
    assert await stream.ended()
    stream.end()
    async with asyncio.timeout(10):
        assert await ran.get() == "SHUTDOWN"


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
    listener: WorkerListener, hosting: Hosting, ran: Any
) -> None:
    worker = hosting(keeper(ran))
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


async def test_a_tool_that_is_not_there_is_unavailable(listener: WorkerListener, hosting: Hosting, ran: Any) -> None:
    hosting(keeper(ran))
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


async def test_unknown_frames_are_ignored(listener: WorkerListener, hosting: Hosting, ran: Any) -> None:
    hosting(keeper(ran))
    stream = await listener.stream()
    await stream.welcome()
    await stream.send(Frame(), Frame(call=9, reply=outbound_pb2.Reply(request_id=1)))
    await stream._context.write(b"\xff\xff\xff")
    assert (await registered(stream)).outcome.HasField("result")
