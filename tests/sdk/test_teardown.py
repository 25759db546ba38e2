"""What a worker keeps for the ends of scopes, beside a sidecar whose every frame is the test's."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

import pillion
from pillion import errors
from pillion._gen.pillion.v1 import context_pb2
from pillion._gen.pillion.v1.frame_pb2 import Frame
from tests.support.listener import Hosting, Stream, WorkerListener

RUN_END = context_pb2.TEARDOWN_REASON_RUN_END


class Kept:
    """A tool that registers cleanups, and what became of them."""

    def __init__(self) -> None:
        self.ran: asyncio.Queue[str] = asyncio.Queue()
        """The reasons that they were given, in order; each with the name of its registration before it."""
        self._loop = asyncio.get_running_loop()
        self.go_on = asyncio.Event()
        self.block = threading.Event()
        self.cleanups: dict[str, Callable[[str], Callable[[pillion.TeardownReason], object]]] = {
            "async": self._asynchronous,
            "plain": lambda name: lambda reason: self._tell(name, reason),
            "awaits": lambda name: partial(self._plainly, self._asynchronous(name)),
            "fails": lambda name: lambda reason: self._fail(name, reason),
            "exits": lambda name: lambda reason: self._exit(name, reason),
            "waits": self._waiting,
            "stays": self._staying,
            "blocks": lambda name: lambda reason: self._block(name, reason),
            "asks": self._asking,
        }

    async def reasons(self, number: int = 1) -> list[str]:
        """Those of the next cleanups that ran."""
        async with asyncio.timeout(10):
            return [await self.ran.get() for _ in range(number)]

    def tool(self) -> Any:
        """The tool."""

        @pillion.tool
        async def keep(
            ctx: pillion.ToolContext,
            kind: str = "async",
            name: str = "a",
            scope: str = "RUN",
            cleanup_call: bool = False,
        ) -> list[Any]:
            registration = await ctx.on_teardown(
                self._cleanup(kind, name, ctx),
                scope=pillion.TeardownScope[scope],
                name=name,
                label="l",
                cleanup_call=("c", {"of": name}) if cleanup_call else None,
            )
            return [registration.reused, registration.count]

        return keep

    def _cleanup(self, kind: str, name: str, ctx: pillion.ToolContext) -> Callable[[pillion.TeardownReason], object]:
        self._context = ctx
        return self.cleanups[kind](name)

    def _asynchronous(self, name: str) -> Callable[[pillion.TeardownReason], Awaitable[None]]:
        async def clean(reason: pillion.TeardownReason) -> None:
            self._tell(name, reason)

        return clean

    @staticmethod
    def _plainly(clean: Callable[[pillion.TeardownReason], object], reason: pillion.TeardownReason) -> object:
        return clean(reason)

    def _waiting(self, name: str) -> Callable[[pillion.TeardownReason], Awaitable[None]]:
        async def clean(reason: pillion.TeardownReason) -> None:
            self._tell(name, reason)
            await self.go_on.wait()

        return clean

    def _staying(self, name: str) -> Callable[[pillion.TeardownReason], Awaitable[None]]:
        async def clean(reason: pillion.TeardownReason) -> None:
            self._tell(name, reason)
            while not self.go_on.is_set():
                try:
                    await self.go_on.wait()
                except asyncio.CancelledError:
                    continue

        return clean

    def _asking(self, name: str) -> Callable[[pillion.TeardownReason], Awaitable[None]]:
        async def clean(reason: pillion.TeardownReason) -> None:
            try:
                await self._context.on_teardown(self._asynchronous("more"), scope=pillion.TeardownScope.RUN)
            finally:
                self._tell(name, reason)

        return clean

    def _tell(self, name: str, reason: pillion.TeardownReason) -> None:
        self._loop.call_soon_threadsafe(self.ran.put_nowait, f"{name} {reason.name}")

    def _fail(self, name: str, reason: pillion.TeardownReason) -> None:
        self._tell(name, reason)
        raise ValueError("canary")

    def _exit(self, name: str, reason: pillion.TeardownReason) -> None:
        self._tell(name, reason)
        raise SystemExit("canary")

    def _block(self, name: str, reason: pillion.TeardownReason) -> None:
        self._tell(name, reason)
        self.block.wait(20)


@pytest.fixture
async def kept() -> AsyncIterator[Kept]:
    made = Kept()
    yield made
    made.go_on.set()
    made.block.set()


async def register(stream: Stream, call: int = 1, *, reused: bool = False, **arguments: Any) -> Frame:
    """Runs `keep` to its end under the id `reg_CALL`, and returns its outcome."""
    reply = await registering(stream, call, **arguments)
    reply.reply.teardown.registration_id = f"reg_{call}"
    reply.reply.teardown.reused, reply.reply.teardown.count = reused, 1 + reused
    await stream.send(reply)
    return await stream.next("outcome")


async def registering(stream: Stream, call: int = 1, **arguments: Any) -> Frame:
    """Runs `keep` until it registers, and returns the head of an answer."""
    await stream.invoke(call, "keep", pillion._json.encode(arguments))
    asked = (await stream.next("register_teardown")).register_teardown
    assert asked.scope == pillion.TeardownScope[arguments.get("scope", "RUN")].value
    assert (asked.name, asked.label) == (arguments.get("name", "a"), "l")
    if arguments.get("cleanup_call"):
        assert asked.cleanup_call.tool == "c"
        assert asked.cleanup_call.arguments == b'{"of":"%s"}' % asked.name.encode()
    else:
        assert not asked.HasField("cleanup_call")
    reply = Frame(call=call)
    reply.reply.request_id = asked.request_id
    return reply


def order(registration_id: str = "reg_1", seconds: float = 5) -> Frame:
    frame = Frame()
    frame.run_teardown.registration_id, frame.run_teardown.reason = registration_id, RUN_END
    frame.run_teardown.timeout.FromMilliseconds(int(seconds * 1_000))
    return frame


async def done(stream: Stream, number: int = 1) -> dict[str, str]:
    """What the next cleanups came to, by registration; empty where nothing went wrong."""
    frames = [(await stream.next("teardown_done")).teardown_done for _ in range(number)]
    return {frame.registration_id: frame.error for frame in frames}


@pytest.fixture
async def stream(listener: WorkerListener, hosting: Hosting, kept: Kept) -> Stream:
    """That of a worker with `keep`."""
    hosting(kept.tool())
    stream = await listener.stream()
    await stream.welcome()
    return stream


async def test_an_answer_says_whether_it_stood_already(stream: Stream) -> None:
    assert (await register(stream)).outcome.result.json == b"[false,1]"
    assert (await register(stream, 2, reused=True)).outcome.result.json == b"[true,2]"


@pytest.mark.parametrize("kind", ["async", "plain", "awaits"])
async def test_a_cleanup_runs_once_when_its_scope_ends(stream: Stream, kept: Kept, kind: str) -> None:
    await register(stream, kind=kind)
    await stream.send(order())
    assert await done(stream) == {"reg_1": ""}
    await stream.send(order())
    assert await done(stream) == {"reg_1": "no such cleanup is here"}
    assert await kept.reasons() == ["a RUN_END"]
    assert kept.ran.empty()


async def test_the_first_cleanup_of_a_registration_is_the_one_that_runs(stream: Stream, kept: Kept) -> None:
    await register(stream, name="a")
    reply = await registering(stream, 2, name="b")
    reply.reply.teardown.registration_id, reply.reply.teardown.reused = "reg_1", True
    await stream.send(reply)
    await stream.next("outcome")
    await stream.send(order())
    assert await done(stream) == {"reg_1": ""}
    assert await kept.reasons() == ["a RUN_END"]


async def test_a_cleanup_that_is_accepted_and_ordered_in_one_message_runs(stream: Stream, kept: Kept) -> None:
    reply = await registering(stream)
    reply.reply.teardown.registration_id = "reg_1"
    await stream.send(reply, order())
    assert await done(stream) == {"reg_1": ""}
    assert await kept.reasons() == ["a RUN_END"]


async def test_a_cleanup_is_kept_though_its_tool_does_not_wait_for_the_answer(stream: Stream, kept: Kept) -> None:
    reply = await registering(stream)
    cancel = Frame(call=1)
    cancel.cancel.reason = context_pb2.CANCEL_REASON_CALLER
    await stream.send(cancel)
    await stream.next("outcome")
    reply.reply.teardown.registration_id = "reg_1"
    await stream.send(reply, order())
    assert await done(stream) == {"reg_1": ""}
    assert await kept.reasons() == ["a RUN_END"]


async def test_a_refused_cleanup_is_not_kept(stream: Stream, kept: Kept) -> None:
    reply = await registering(stream)
    reply.reply.error.code = errors.ReplyCode.TEARDOWN_FACT_MISSING.value  # type: ignore[assignment]
    await stream.send(reply)
    assert (await stream.next("outcome")).outcome.HasField("failure")
    await stream.send(order())
    assert await done(stream) == {"reg_1": "no such cleanup is here"}
    assert kept.ran.empty()


@pytest.mark.parametrize(("kind", "error"), [("fails", "ValueError"), ("exits", "SystemExit")])
async def test_a_cleanup_that_fails_is_reported_by_the_name_of_its_error_alone(
    stream: Stream, kind: str, error: str
) -> None:
    await register(stream, kind=kind)
    await register(stream, 2, name="b")
    await stream.send(order(), order("reg_2"))
    assert await done(stream, 2) == {"reg_1": error, "reg_2": ""}


@pytest.mark.parametrize("kind", ["waits", "stays", "blocks"])
async def test_a_cleanup_that_hangs_is_reported_in_time_and_harms_no_other(
    stream: Stream, kept: Kept, kind: str
) -> None:
    await register(stream, kind=kind)
    await register(stream, 2, kind="plain", name="b")
    async with asyncio.timeout(5):
        await stream.send(order(seconds=0.05), order("reg_2"))
        assert await done(stream, 2) == {"reg_1": "TimeoutError", "reg_2": ""}
        ping = Frame()
        ping.ping.nonce = 1
        await stream.send(ping)
        await stream.next("pong")


async def test_a_cleanup_that_registers_another_is_refused(stream: Stream, kept: Kept) -> None:
    await register(stream, kind="asks")
    await stream.send(order())
    assert await done(stream) == {"reg_1": "RequestCancelled"}
    assert await kept.reasons() == ["a RUN_END"]


async def test_plain_cleanups_do_not_wait_for_threads_that_tools_have(
    listener: WorkerListener, hosting: Hosting, kept: Kept
) -> None:
    @pillion.tool
    def blocks() -> None:
        kept.block.wait(20)

    hosting(kept.tool(), blocks, threads=1)
    stream = await listener.stream()
    await stream.welcome()
    await register(stream, kind="plain")
    await stream.invoke(2, "blocks")
    await stream.send(order())
    assert await done(stream) == {"reg_1": ""}
    kept.block.set()
    assert (await stream.next("outcome")).outcome.HasField("result")


# --- apart from the sidecar


async def test_a_worker_comes_back_with_what_it_keeps(listener: WorkerListener, stream: Stream, kept: Kept) -> None:
    await register(stream)
    await register(stream, 2, name="b", cleanup_call=True)
    stream.end(grpc.StatusCode.UNAVAILABLE)
    again = await listener.stream()
    hello = await again.welcome()
    assert (hello.reattach.instance_id, hello.reattach.secret) == ("ins_1", "secret of ins_1")
    assert list(hello.reattach.registrations) == ["reg_1", "reg_2"]
    release = Frame()
    release.release.registration_id = "reg_1"
    await again.send(release, order("reg_1"), order("reg_2"))
    assert await done(again, 2) == {"reg_1": "no such cleanup is here", "reg_2": ""}
    assert await kept.reasons() == ["b RUN_END"]


async def test_what_was_kept_for_a_call_that_the_sidecar_forgot_runs(
    listener: WorkerListener, stream: Stream, kept: Kept
) -> None:
    await register(stream, scope="CALL")
    stream.end(grpc.StatusCode.UNAVAILABLE)
    again = await listener.stream()
    await again.welcome()
    release = Frame()
    release.release.registration_id = "reg_1"
    await again.send(release, order())
    assert await done(again) == {"reg_1": "no such cleanup is here"}
    assert await kept.reasons() == ["a CALL_END"]


async def test_a_cleanup_that_was_under_way_when_the_stream_was_lost_runs_once(
    listener: WorkerListener, stream: Stream, kept: Kept
) -> None:
    await register(stream, kind="waits")
    await stream.send(order())
    assert await kept.reasons() == ["a RUN_END"]
    stream.end(grpc.StatusCode.UNAVAILABLE)
    again = await listener.stream()
    assert list((await again.welcome()).reattach.registrations) == ["reg_1"]
    await again.send(order())
    kept.go_on.set()
    assert await done(again) == {"reg_1": ""}
    assert kept.ran.empty()


async def test_a_cleanup_that_ended_while_the_stream_was_lost_is_told_of_when_ordered_again(
    listener: WorkerListener, stream: Stream, kept: Kept
) -> None:
    await register(stream, kind="waits")
    await stream.send(order())
    assert await kept.reasons() == ["a RUN_END"]
    stream.end(grpc.StatusCode.UNAVAILABLE)
    again = await listener.stream()
    kept.go_on.set()
    assert list((await again.welcome()).reattach.registrations) == ["reg_1"]
    await again.send(order())
    assert await done(again) == {"reg_1": ""}
    assert kept.ran.empty()


async def kept_three(stream: Stream, window: float) -> None:
    """A worker that keeps three cleanups, the second of which has a cleanup call."""
    await stream.welcome(window=window)
    for number, name in enumerate("abc", 1):
        await register(stream, number, name=name, cleanup_call=name == "b")


async def test_past_the_window_a_worker_cleans_up_by_itself_but_for_what_has_a_cleanup_call(
    listener: WorkerListener, hosting: Hosting, kept: Kept, tmp_path: Path
) -> None:
    hosting(kept.tool())
    await kept_three(await listener.stream(), 0.05)
    await listener.stop()
    assert await kept.reasons(2) == ["c WORKER_LOST", "a WORKER_LOST"]
    later = WorkerListener(tmp_path / "w.sock")
    await later.start()
    stream = await later.stream()
    assert list((await stream.welcome()).reattach.registrations) == ["reg_2"]
    await stream.send(order("reg_2"))
    assert await done(stream) == {"reg_2": ""}
    assert await kept.reasons() == ["b RUN_END"]
    await later.stop()


async def test_a_hello_that_is_not_answered_within_the_window_is_taken_back(
    listener: WorkerListener, hosting: Hosting, kept: Kept
) -> None:
    hosting(kept.tool())
    stream = await listener.stream()
    await kept_three(stream, 2)
    stream.end(grpc.StatusCode.UNAVAILABLE)
    silent = await listener.stream()
    assert len((await silent.next("worker_hello")).worker_hello.reattach.registrations) == 3
    assert await kept.reasons(2) == ["c WORKER_LOST", "a WORKER_LOST"]
    stream = await listener.stream()
    assert list((await stream.welcome()).reattach.registrations) == ["reg_2"]


async def test_within_the_window_nothing_runs_by_itself(listener: WorkerListener, stream: Stream, kept: Kept) -> None:
    await register(stream)
    stream.end(grpc.StatusCode.UNAVAILABLE)
    again = await listener.stream()
    await again.welcome(window=0.05)
    await again.send(order())
    assert await done(again) == {"reg_1": ""}
    assert await kept.reasons() == ["a RUN_END"]


@pytest.mark.parametrize("how", ["another instance", "another secret"])
async def test_a_worker_that_is_not_known_any_more_cleans_up_by_itself(
    listener: WorkerListener, stream: Stream, kept: Kept, how: str
) -> None:
    await register(stream)
    await register(stream, 2, name="b", cleanup_call=True)
    stream.end(grpc.StatusCode.UNAVAILABLE)
    if how == "another secret":
        (await listener.stream()).end(grpc.StatusCode.UNAUTHENTICATED)
    again = await listener.stream()
    hello = await again.welcome("ins_2")
    assert hello.HasField("reattach") is (how == "another instance")
    release = Frame()
    release.release.registration_id = "reg_1"
    await again.send(release, order("reg_2"))
    assert await kept.reasons() == ["a WORKER_LOST"]
    assert await done(again) == {"reg_2": "no such cleanup is here"}
    assert kept.ran.empty()


# --- at the end


async def test_guarantee_12_a_worker_that_leaves_runs_what_it_is_told_to_before_it_goes(
    listener: WorkerListener, hosting: Hosting, kept: Kept
) -> None:
    worker = hosting(kept.tool())
    stream = await listener.stream()
    await stream.welcome()
    await register(stream)
    worker.leave()
    await stream.next("goodbye")
    await stream.send(order())
    assert await done(stream) == {"reg_1": ""}
    assert await stream.ended()
    stream.end()
    assert await kept.reasons() == ["a RUN_END"]


async def test_a_drain_runs_nothing_by_itself_while_the_sidecar_is_there(stream: Stream, kept: Kept) -> None:
    await register(stream)
    drain, ping = Frame(), Frame()
    drain.drain.grace.seconds = 30
    ping.ping.nonce = 5
    await stream.send(drain)
    await stream.next("goodbye")
    await stream.send(ping)
    assert (await stream.next("pong")).pong.nonce == 5
    assert kept.ran.empty()
    await stream.send(order())
    assert await done(stream) == {"reg_1": ""}
    assert await stream.ended()
    stream.end()


@pytest.mark.parametrize("there", [True, False])
async def test_what_is_left_when_a_worker_leaves_runs_newest_first_but_for_what_has_a_cleanup_call(
    listener: WorkerListener, hosting: Hosting, kept: Kept, *, there: bool
) -> None:
    worker = hosting(kept.tool())
    stream = await listener.stream()
    await stream.welcome()
    for number, name in enumerate("abc", 1):
        await register(stream, number, name=name, cleanup_call=name == "b")
    if there:
        worker.leave()
        await stream.next("goodbye")
    stream.end(grpc.StatusCode.UNAVAILABLE)
    worker.leave()
    assert await kept.reasons(2) == ["c SHUTDOWN", "a SHUTDOWN"]
    assert kept.ran.empty()


async def test_what_hangs_when_a_worker_leaves_holds_it_up_for_five_seconds_in_all(
    listener: WorkerListener, kept: Kept
) -> None:
    worker = pillion.Worker([kept.tool()], target=listener.target, worker="w", token="t")
    running = asyncio.create_task(worker.run())
    stream = await listener.stream()
    await stream.welcome()
    for number, kind in enumerate(("stays", "blocks", "waits"), 1):
        await register(stream, number, kind=kind, name=kind)
    loop = asyncio.get_running_loop()
    begun = loop.time()
    stream.end(grpc.StatusCode.UNAVAILABLE)
    worker.leave()
    async with asyncio.timeout(8):
        await running
    assert 4.5 < loop.time() - begun < 6
    assert set(await kept.reasons(3)) == {"stays SHUTDOWN", "blocks SHUTDOWN", "waits SHUTDOWN"}
    assert worker.stubborn == ("keep",)
