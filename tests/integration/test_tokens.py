"""Callers by TCP on loopback: each shows a token, and is who the token is of."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.descriptor import MethodDescriptor
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.reflection_pb2_grpc import ServerReflectionStub

import pillion
import pillion.sync
from pillion import errors
from sidecar._gen.pillion.v1 import admin_pb2, artifacts_pb2, execute_pb2
from sidecar._gen.pillion.v1.admin_pb2 import ListCallsRequest
from sidecar._gen.pillion.v1.admin_pb2_grpc import AdminServiceStub
from tests.integration.listening import LOOPBACK, TOKENS, WRONG, Listening, Place, until
from tests.support import attach, on_unix, tool
from tests.support.links import bearing, channel_to

BACKEND, OTHER = TOKENS["backend"], TOKENS["other"]
SERVICES = (
    execute_pb2.DESCRIPTOR.services_by_name["ToolHostService"],
    artifacts_pb2.DESCRIPTOR.services_by_name["ArtifactService"],
    admin_pb2.DESCRIPTOR.services_by_name["AdminService"],
)
METHODS = [method for service in SERVICES for method in service.methods]
REFUSED: dict[str, tuple[tuple[str, str | bytes], ...]] = {
    "nothing": (),
    "a wrong token": bearing(WRONG),
    "the beginning of a token": bearing(BACKEND[:-1]),
    "more than a token": bearing(BACKEND + "0"),
    "an empty token": bearing(""),
    "another scheme": (("authorization", f"Basic {BACKEND}"),),
    "no scheme": (("authorization", BACKEND),),
    "another place": (("x-token", BACKEND), ("authorization-bin", f"Bearer {BACKEND}".encode())),
    "two tokens": (*bearing(BACKEND), *bearing(WRONG)),
    "nothing but a scheme": (("authorization", "Bearer"),),
}


@pytest.fixture
def address() -> str:
    return LOOPBACK[0]


@pytest.fixture
async def host(place: Place, address: str) -> AsyncIterator[Listening]:
    serving = Listening(place.by_token(address))
    await serving.open()
    yield serving
    await serving.aclose()


@on_unix
@pytest.mark.parametrize("address", LOOPBACK)
async def test_a_caller_is_who_its_token_is_of(host: Listening) -> None:
    assert host.callers_at.rpartition(":")[0] in ("127.0.0.1", "[::1]")
    worker = await attach(host)
    caller = await host.caller(BACKEND)
    call = await caller.start("echo", identity={"tenant": "acme"})
    run = await worker.next_invoke()
    assert run.context.caller_principal == "token:backend"
    await worker.result(run.call, "done")
    assert (await caller.outcome(call)).result.json == b'"done"'
    assert await host.who_am_i(BACKEND) == "token:backend"
    assert await host.who_am_i(OTHER) == "token:other"


@on_unix
@pytest.mark.parametrize("address", LOOPBACK)
async def test_the_sdk_shows_tokens(host: Listening, place: Place) -> None:
    @pillion.tool
    async def echo(n: int, ctx: pillion.ToolContext) -> list[object]:
        return [n, ctx.caller_principal.reveal() if ctx.caller_principal else None]

    worker = pillion.Worker([echo], target=host.workers_at, worker="main", token_file=place.directory / "main.token")
    serving = asyncio.create_task(worker.run())
    for ways in ({"token": BACKEND}, {"token": pillion.Secret(BACKEND)}, {"token_file": place.tokens["backend"]}):
        async with pillion.connect(host.target, **ways) as connected:
            assert await connected.call("echo", {"n": 1}) == [1, "token:backend"]
            assert (await connected.info()).caller_principal == "token:backend"
            assert set((await connected.tools()).by_name) == {"echo"}

    def synchronously() -> None:
        with pillion.sync.connect(host.target, token_file=place.tokens["backend"]) as connected:
            assert connected.call("echo", {"n": 2}) == [2, "token:backend"]

    await asyncio.to_thread(synchronously)
    for wrong in (None, WRONG):
        with pytest.raises(errors.NotAuthenticated, match="Show a token"):
            async with pillion.connect(host.target, token=wrong):
                pass
    worker.leave()
    await serving


@on_unix
@pytest.mark.parametrize("method", METHODS, ids=lambda method: f"{method.containing_service.name}.{method.name}")
async def test_no_method_answers_who_shows_no_token(
    host: Listening, method: MethodDescriptor, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    path = f"/{method.containing_service.full_name}/{method.name}"
    async with channel_to(host.target) as channel:
        make: Any = getattr(
            channel,
            f"{'stream' if method.client_streaming else 'unary'}_{'stream' if method.server_streaming else 'unary'}",
        )
        for number, (case, metadata) in enumerate(REFUSED.items(), 1):
            call = make(path)(*(() if method.client_streaming else (b"",)), metadata=metadata)
            async with asyncio.timeout(10):
                assert await call.code() is grpc.StatusCode.UNAUTHENTICATED, case
            assert await call.details() == (
                "Show a token that this listener knows, as metadata: authorization: Bearer TOKEN."
            )
            assert host.count("refused_callers") == number
    assert not host.count("internal_errors")
    assert WRONG not in caplog.text
    assert BACKEND not in caplog.text


@on_unix
async def test_health_is_told_to_everybody(host: Listening) -> None:
    async with channel_to(host.target) as channel:
        health: Any = HealthStub(channel)
        assert (await health.Check(health_pb2.HealthCheckRequest())).status == health_pb2.HealthCheckResponse.SERVING
    assert not host.count("refused_callers")


async def code_of(call: Any) -> grpc.StatusCode:
    async with asyncio.timeout(10):
        code: grpc.StatusCode = await call.code()
        return code


@on_unix
async def test_what_tells_of_everybody_is_not_there_by_tcp(host: Listening) -> None:
    async with channel_to(host.target) as opened:
        channel: Any = opened
        shown = bearing(BACKEND)
        asked: Any = AdminServiceStub(channel)
        assert await code_of(asked.ListCalls(ListCallsRequest(), metadata=shown)) is grpc.StatusCode.PERMISSION_DENIED
        for path in ("/grpc.channelz.v1.Channelz/GetServers", "/grpc.reflection.v1alpha.ServerReflection/X"):
            call = channel.unary_unary(path)(b"", metadata=shown)
            assert await code_of(call) is grpc.StatusCode.UNIMPLEMENTED
        info = await channel.unary_unary("/pillion.v1.ToolHostService/GetInfo")(b"", metadata=shown)
        assert not execute_pb2.GetInfoResponse.FromString(info).counters


@on_unix
async def test_what_was_asked_for_is_there_by_tcp(place: Place) -> None:
    host = Listening(place.by_token(operators=["token:backend"], reflection=True))
    await host.open()
    async with channel_to(host.target) as opened:
        channel: Any = opened
        asked: Any = AdminServiceStub(channel)
        assert (await asked.ListCalls(ListCallsRequest(), metadata=bearing(BACKEND))).total == 0
        refused = asked.ListCalls(ListCallsRequest(), metadata=bearing(OTHER))
        assert await code_of(refused) is grpc.StatusCode.PERMISSION_DENIED
        assert "listen.operators" in await refused.details()
        reflecting: Any = ServerReflectionStub(channel)
        listing = reflection_pb2.ServerReflectionRequest(list_services="")
        stream = reflecting.ServerReflectionInfo(iter([listing]), metadata=bearing(OTHER))
        names = [service.name for service in (await stream.read()).list_services_response.service]
        assert "pillion.v1.ToolHostService" in names
        assert await code_of(reflecting.ServerReflectionInfo(iter([listing]))) is grpc.StatusCode.UNAUTHENTICATED
    await host.aclose()


@on_unix
async def test_tokens_are_read_again_when_their_files_change(host: Listening, place: Place) -> None:
    worker = await attach(host, tool("read"))
    caller = await host.caller(BACKEND)
    await caller.flush()
    new = "the-new-token-of-the-backend-0123"
    # Both are taken while callers change to the new one, which is the first.
    place.secret("backend.token", f"{new}\n\n{BACKEND}")
    await until(lambda: taken(host, new))
    assert await host.who_am_i(BACKEND) == "token:backend"
    place.secret("backend.token", new)
    await until(lambda: refused(host, BACKEND))
    assert await host.who_am_i(new) == "token:backend"
    # One that cannot be used leaves those of before.
    place.secret("backend.token", "short")
    place.secret("other.token", WRONG)
    call = await caller.start("read")
    await worker.result((await worker.next_invoke()).call, "still open")
    assert (await caller.outcome(call)).result.json == b'"still open"'
    place.secret("backend.token", BACKEND)
    await until(lambda: taken(host, WRONG))
    assert await host.who_am_i(WRONG) == "token:other"
    assert await host.who_am_i(BACKEND) == "token:backend"
    assert (await host.refuses(new)).code() is grpc.StatusCode.UNAUTHENTICATED


@on_unix
async def test_the_sdk_reads_its_token_again(host: Listening, place: Place) -> None:
    file = place.directory / "of-the-caller.token"
    file.write_text(BACKEND)
    async with pillion.connect(host.target, token_file=file) as connected:
        new = "the-new-token-of-the-backend-0123"
        place.secret("backend.token", new)
        await until(lambda: taken(host, new))
        with pytest.raises(errors.NotAuthenticated):
            await connected.info()
        file.write_text(new)
        assert (await connected.info()).caller_principal == "token:backend"
        file.unlink()
        assert (await connected.info()).caller_principal == "token:backend"


async def taken(host: Listening, token: str) -> bool:
    try:
        await host.who_am_i(token)
    except grpc.aio.AioRpcError:
        return False
    return True


async def refused(host: Listening, token: str) -> bool:
    return not await taken(host, token)


@on_unix
async def test_a_workers_token_is_read_again_and_its_instances_stay(host: Listening, place: Place) -> None:
    worker = await attach(host)
    place.secret("main.token", f"a-new-token-of-main\n{WRONG}")
    counted = host.count("reloads")
    async with asyncio.timeout(20):
        while host.count("reloads") == counted:
            await host.who_am_i(BACKEND)
    for token, is_taken in (("a-new-token-of-main", True), (WRONG, True), ("token-of-main", False)):
        peer = await host.worker()
        if is_taken:
            await peer.hello(tool("echo"), token=token)
        else:
            await peer.present(tool("echo"), token=token)
            assert (await peer.end()).code is grpc.StatusCode.UNAUTHENTICATED
    caller = await host.caller(BACKEND)
    await caller.start("echo")
    assert (await worker.next_invoke()).call
