"""Tokens that expire: what was begun ends, nothing new begins, and a caller that has a newer one notices nothing."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

import pillion
import pillion.sync
from pillion import errors
from sidecar._gen.pillion.v1.admin_pb2 import WatchCallsRequest
from sidecar._gen.pillion.v1.execute_pb2 import ListToolsRequest
from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind
from tests.integration.issued import EXPIRED, by_file, publish, takes
from tests.integration.listening import TOKENS, Listening, Place, until
from tests.support import attach, on_unix, tool, tools_changed
from tests.support.issuers import Issuer
from tests.support.links import EXECUTE, GrpcLink, bearing, channel_to

pytestmark = on_unix

OVER = "The token that this stream was opened with has expired; open another one, with a newer token."
EXPIRES_IN = "pillion-expires-in"
PATIENCE = 20.0
BRIEF = 3.0
"""How long the tokens live, in seconds: long enough for a busy machine to show them in time."""


@pytest.fixture
async def host(place: Place, issuer: Issuer) -> AsyncIterator[Listening]:
    """Takes tokens of the issuer to the second."""
    serving = Listening(place.by_jwt(jwt=by_file(place, issuer, leeway=0)))
    await serving.open()
    yield serving
    await serving.aclose()


def brief(issuer: Issuer, seconds: float = BRIEF) -> str:
    return issuer.token(exp=time.time() + seconds)


# --- bare stubs


async def test_a_stream_whose_token_has_expired_ends_what_it_has_and_begins_nothing(
    host: Listening, issuer: Issuer
) -> None:
    worker = await attach(host, concurrency=64)
    caller = await host.caller(brief(issuer))
    running = await caller.start(tool_call_id="before")
    before = await worker.next_invoke()
    async with asyncio.timeout(PATIENCE):
        while True:
            call = await caller.start(tool_call_id="mine")
            started = asyncio.ensure_future(worker.next_invoke())
            ended = asyncio.ensure_future(caller.outcome(call))
            await asyncio.wait((started, ended), return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                started.cancel()
                break
            await worker.result((await started).call, {})
            assert (await ended).HasField("result")
    failure = (await ended).failure
    assert (failure.kind, failure.message, failure.retryable) == (FailureKind.FAILURE_KIND_DENIED, OVER, False)
    assert caller.frames[call][0].started.tool_call_id == "mine"
    # What ran still runs, can be asked to stop, and tells how it ended.
    await worker.progress(before.call, {"message": "going on"})
    await caller.next_of("progress", running)
    await caller.cancel(running)
    await worker.cancelled(before.call)
    await worker.result(before.call, "late")
    assert (await caller.outcome(running)).HasField("failure")
    assert host.count("failures.DENIED") == 1
    refused = await host.refuses(brief(issuer, -1))
    assert (refused.code(), refused.details()) == (grpc.StatusCode.UNAUTHENTICATED, EXPIRED)


async def test_a_caller_is_told_when_its_stream_takes_no_more_calls(
    host: Listening, place: Place, issuer: Issuer
) -> None:
    link = GrpcLink(host.target, EXECUTE, token=issuer.token(exp=int(time.time()) + 100))
    told = dict(await link._call.initial_metadata())
    assert 90 < float(told[EXPIRES_IN]) <= 100
    await link.aclose()
    await host.aclose()
    by_token = Listening(place.by_token())
    await by_token.open()
    link = GrpcLink(by_token.target, EXECUTE, token=TOKENS["backend"])
    await link.half_close()
    assert EXPIRES_IN not in dict(await link._call.initial_metadata()), "that token does not"
    await link.aclose()
    await by_token.aclose()


async def test_who_watches_tools_is_told_of_none_once_its_token_has_expired(host: Listening, issuer: Issuer) -> None:
    worker = await attach(host)
    token = brief(issuer)
    async with channel_to(host.target) as channel:
        watch: Any = channel.unary_stream("/pillion.v1.ToolHostService/WatchTools", ListToolsRequest.SerializeToString)
        watching = watch(ListToolsRequest(), metadata=bearing(token))
        assert await watching.read() is not grpc.aio.EOF
        await until(lambda: refuses(host, token))
        await worker.send(tools_changed(tool("echo"), tool("read")))
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await watching.read()
        assert (ended.value.code(), ended.value.details()) == (grpc.StatusCode.UNAUTHENTICATED, OVER)


async def test_an_operator_who_looks_on_is_told_of_nothing_once_its_token_has_expired(
    place: Place, issuer: Issuer
) -> None:
    operators = [f"jwt:{issuer.name}#ann"]
    host = Listening(place.by_jwt(jwt=by_file(place, issuer, leeway=0), operators=operators))
    await host.open()
    worker, caller = await attach(host), await host.caller(issuer.token(sub="bob"))
    token = brief(issuer)
    async with channel_to(host.target) as channel:
        watch: Any = channel.unary_stream("/pillion.v1.AdminService/WatchCalls", WatchCallsRequest.SerializeToString)
        watching = watch(WatchCallsRequest(), metadata=bearing(token))
        await watching.initial_metadata()
        for value in ("before", "after"):
            call = await caller.start()
            await worker.result((await worker.next_invoke()).call, value)
            await caller.outcome(call)
            if value == "before":
                await anext(aiter(watching))
                await until(lambda: refuses(host, token))
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            _ = [news async for news in watching]
        assert (ended.value.code(), ended.value.details()) == (grpc.StatusCode.UNAUTHENTICATED, OVER)
    await host.aclose()


async def refuses(host: Listening, token: str) -> bool:
    return not await takes(host, token)


# --- the SDK


class Tools:
    """A worker of the SDK, attached: one tool that answers at once, and one that waits until it may."""

    def __init__(self, host: Listening, place: Place) -> None:
        self.begun = asyncio.Event()
        self.may = asyncio.Event()

        @pillion.tool
        async def read(n: int) -> int:
            return n

        @pillion.tool
        async def echo(ctx: pillion.ToolContext) -> str | None:
            self.begun.set()
            await self.may.wait()
            return ctx.caller_principal.reveal() if ctx.caller_principal else None

        file = place.directory / "main.token"
        self._worker = pillion.Worker([read, echo], target=host.workers_at, worker="main", token_file=file)
        self._serving = asyncio.create_task(self._worker.run())

    async def aclose(self) -> None:
        self._worker.leave()
        await self._serving


@pytest.fixture
async def tools(host: Listening, place: Place) -> AsyncIterator[Tools]:
    tools = Tools(host, place)
    yield tools
    await tools.aclose()


class Source:
    """Where a caller has its tokens from."""

    def __init__(self, issuer: Issuer, seconds: float) -> None:
        self.issuer = issuer
        self.seconds = seconds
        self.made: list[str] = []
        self.fails = False
        self._until = 0.0

    def __call__(self) -> str:
        """The one there is, until half of its time is over."""
        if self.fails:
            raise ConnectionError("the issuer is away, and a canary is in here")
        if not self.made or time.time() > self._until - self.seconds / 2:
            self._until = time.time() + self.seconds
            self.made.append(self.issuer.token(exp=self._until, jti=str(len(self.made))))
        return self.made[-1]


async def test_the_sdk_changes_streams_before_its_token_expires(tools: Tools, host: Listening, issuer: Issuer) -> None:
    source = Source(issuer, BRIEF)
    async with pillion.connect(host.target, token=source) as connected:
        async with connected.start("echo") as long:
            await tools.begun.wait()
            count = 0
            async with asyncio.timeout(PATIENCE):
                while len(source.made) < 4:
                    assert await connected.call("read", {"n": count}, timeout=10) == count
                    count += 1
            assert connected.in_flight == 1
            # On the stream that it was begun on, whose token has expired by now.
            tools.may.set()
            assert await long.result() == f"jwt:{issuer.name}#ann"

        async def is_alone() -> bool:
            """The worker's, and the newest of the caller's: those before it are over with what they had."""
            await connected.info()
            return len(host.sidecar._streams) == 2

        await until(is_alone)
        assert connected.reconnects == 0
        assert connected.connected
    assert not host.count("failures.DENIED")
    assert not host.count("refused_callers")


async def test_the_sdk_takes_tokens_from_functions_of_every_kind(
    tools: Tools, host: Listening, issuer: Issuer, tmp_path: Path
) -> None:
    async def later() -> pillion.Secret:
        await asyncio.sleep(0)
        return pillion.Secret(issuer.token())

    file = tmp_path / "token"
    file.write_text(issuer.token() + "\n")
    ways: tuple[Any, ...] = (issuer.token, later, partial(later), file.read_text, issuer.token())
    for way in ways:
        async with pillion.connect(host.target, token=way) as connected:
            assert await connected.call("read", {"n": 1}) == 1
            assert (await connected.info()).caller_principal == f"jwt:{issuer.name}#ann"

    def synchronously() -> None:
        with pillion.sync.connect(host.target, token=Source(issuer, BRIEF)) as connected:
            begun = time.monotonic()
            while time.monotonic() < begun + 1.5 * BRIEF:
                assert connected.call("read", {"n": 2}) == 2

    await asyncio.to_thread(synchronously)
    assert not host.count("failures.DENIED")


def raising() -> str:
    raise ValueError("a canary")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (raising, "The token source failed: ValueError."),
        (lambda: None, "The token source answered no token."),
        (lambda: " \n", "The token source answered no token."),
    ],
    ids=["raises", "nothing", "blanks"],
)
async def test_a_source_without_a_token_is_told_at_once(host: Listening, source: Callable[[], Any], said: str) -> None:
    with pytest.raises(errors.CannotConnect) as refused:
        async with pillion.connect(host.target, token=source):
            pass
    assert str(refused.value) == said


async def test_a_token_that_is_not_taken_is_told_at_once(host: Listening, issuer: Issuer) -> None:
    with pytest.raises(errors.NotAuthenticated, match="is for another audience"):
        async with pillion.connect(host.target, token=lambda: issuer.token(aud="another")):
            pass


async def test_calls_go_on_once_a_source_that_was_away_has_a_token_again(
    tools: Tools, host: Listening, issuer: Issuer, caplog: pytest.LogCaptureFixture
) -> None:
    source = Source(issuer, BRIEF)
    async with pillion.connect(host.target, token=source) as connected:
        assert await connected.call("read", {"n": 1}) == 1
        source.fails = True

        async def is_denied() -> bool:
            try:
                await connected.call("read", {"n": 2})
            except errors.Denied as denied:
                return str(denied) == OVER
            return False

        await until(is_denied)
        with pytest.raises(errors.NotAuthenticated, match="has expired"):
            await connected.info()
        source.fails = False

        async def is_taken() -> bool:
            return not await is_denied()

        await until(is_taken)
        assert connected.reconnects == 0
    assert "the token of before is used on: The token source failed: ConnectionError." in caplog.text
    assert "canary" not in caplog.text


async def test_the_sdk_comes_back_after_a_restart_once_it_has_a_token_that_is_taken(
    place: Place, host: Listening, issuer: Issuer
) -> None:
    source = Source(issuer, 600.0)
    port = host.target.rpartition(":")[2]
    async with pillion.connect(host.target, token=source, patience=1.0) as connected:
        await host.aclose()
        # The next one knows another key, so what is shown is not taken.
        issuer.add("two")
        issuer.withdraw("one")
        publish(place, issuer)
        settings = place.by_jwt(f"127.0.0.1:{port}", jwt=by_file(place, issuer))
        again = Listening(settings)
        await again.open()
        with pytest.raises(errors.Unreachable, match="UNAUTHENTICATED: The token is signed with a key that"):
            await connected.call("read", {"n": 1})
        source.made.clear()

        async def is_back() -> bool:
            await asyncio.sleep(0)
            return connected.connected

        await until(is_back)
        assert (await connected.info()).caller_principal == f"jwt:{issuer.name}#ann"
        await again.aclose()


async def test_a_watch_of_the_sdk_ends_with_its_token(host: Listening, issuer: Issuer) -> None:
    worker = await attach(host)
    token = brief(issuer)
    async with pillion.connect(host.target, token=token) as connected, aclosing(connected.watch_tools()) as watched:
        assert set((await anext(watched)).by_name) == {"echo"}
        await until(lambda: refuses(host, token))
        await worker.send(tools_changed(tool("echo"), tool("read")))
        with pytest.raises(errors.NotAuthenticated, match="has expired"):
            await anext(watched)
