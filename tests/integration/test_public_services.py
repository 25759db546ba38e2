"""What every gRPC tool expects of a server: health, reflection, channelz."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc.aio
import pytest
from grpc_channelz.v1.channelz_pb2 import GetServersRequest, GetServersResponse
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest, ServerReflectionResponse

from tests.support import SidecarProcess, SocketHost, attach, on_sockets, on_unix

SERVING, NOT_SERVING = HealthCheckResponse.SERVING, HealthCheckResponse.NOT_SERVING
UNKNOWN = HealthCheckResponse.SERVICE_UNKNOWN
_PATIENCE = 15.0


class Health:
    """How one service is, as it changes."""

    def __init__(self, answers: AsyncIterator[HealthCheckResponse]) -> None:
        self._answers = answers

    async def next(self) -> int:
        async with asyncio.timeout(_PATIENCE):
            return (await anext(self._answers)).status


@asynccontextmanager
async def health(callers_at: str, service: str) -> AsyncIterator[Health]:
    """Watches a service inside the block."""
    async with grpc.aio.insecure_channel(callers_at) as channel:
        watch = channel.unary_stream(
            "/grpc.health.v1.Health/Watch", HealthCheckRequest.SerializeToString, HealthCheckResponse.FromString
        )(HealthCheckRequest(service=service))
        try:
            yield Health(aiter(watch))
        finally:
            watch.cancel()


@on_sockets
async def test_the_health_of_a_worker_is_whether_an_instance_takes_calls(socket_host: SocketHost) -> None:
    async with health(socket_host.callers_at, "worker/main") as main:
        assert await main.next() == NOT_SERVING
        first = await attach(socket_host)
        assert await main.next() == SERVING
        second = await attach(socket_host)
        first.cut()
        await second.goodbye()
        assert await main.next() == NOT_SERVING


@on_sockets
async def test_the_health_of_the_sidecar_is_that_it_serves(socket_host: SocketHost) -> None:
    async with health(socket_host.callers_at, "") as whole:
        assert await whole.next() == SERVING
    async with health(socket_host.callers_at, "worker/nobody") as nobody:
        assert await nobody.next() == UNKNOWN


@on_unix
async def test_a_sidecar_that_drains_does_not_serve(sidecar_process: SidecarProcess) -> None:
    worker, caller = await attach(sidecar_process), await sidecar_process.caller()
    call = await caller.start()
    run = await worker.next_invoke()
    async with health(sidecar_process.callers_at, "") as whole:
        assert await whole.next() == SERVING
        sidecar_process.send(signal.SIGTERM)
        assert await whole.next() == NOT_SERVING
        await worker.result(run.call)
        assert (await caller.outcome(call)).HasField("result")
    assert await sidecar_process.ended() == 0


async def listed(target: str) -> set[str]:
    """The services that reflection tells of."""
    async with grpc.aio.insecure_channel(target) as channel:
        ask = channel.stream_stream(
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
            ServerReflectionRequest.SerializeToString,
            ServerReflectionResponse.FromString,
        )
        async with asyncio.timeout(_PATIENCE):
            [answer] = [answer async for answer in ask(iter([ServerReflectionRequest(list_services="")]))]
    return {each.name for each in answer.list_services_response.service}


async def servers(target: str) -> int:
    """How many servers channelz tells of."""
    async with grpc.aio.insecure_channel(target) as channel:
        ask: grpc.aio.UnaryUnaryMultiCallable[GetServersRequest, GetServersResponse] = channel.unary_unary(
            "/grpc.channelz.v1.Channelz/GetServers", GetServersRequest.SerializeToString, GetServersResponse.FromString
        )
        return len((await ask(GetServersRequest(), timeout=_PATIENCE)).server)


@on_unix
async def test_users_of_this_machine_are_told_what_is_served(socket_host: SocketHost) -> None:
    assert {"pillion.v1.ToolHostService", "pillion.v1.AdminService"} <= await listed(socket_host.callers_at)
    assert await servers(socket_host.callers_at) >= 1


@on_sockets
async def test_nobody_else_is(socket_host: SocketHost) -> None:
    targets = [socket_host.workers_at] + ([socket_host.callers_at] if socket_host.transport == "tcp" else [])
    for target in targets:
        for look in (listed, servers):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await look(target)
            assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
