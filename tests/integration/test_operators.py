"""The operator's service: what runs, and a word to stop it."""

from typing import Any

import grpc.aio
import pytest

from sidecar._gen.pillion.v1.admin_pb2 import (
    CallState,
    CancelCallRequest,
    CancelCallResponse,
    ListCallsRequest,
    ListCallsResponse,
    ShutdownRequest,
    ShutdownResponse,
)
from sidecar._gen.pillion.v1.context_pb2 import CancelReason
from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind
from tests.support import CallLimits, SocketHost, StartHost, attach, on_unix, seconds, tool


class Operator:
    """Asks the sidecar at an address."""

    def __init__(self, host: SocketHost) -> None:
        self._channel = grpc.aio.insecure_channel(host.callers_at)

    async def calls(self, **fields: Any) -> ListCallsResponse:
        answer: ListCallsResponse = await self._ask("ListCalls", ListCallsRequest(**fields), ListCallsResponse)
        return answer

    async def cancel(self, execution_id: str) -> bool:
        request = CancelCallRequest(execution_id=execution_id)
        answer: CancelCallResponse = await self._ask("CancelCall", request, CancelCallResponse)
        return answer.found

    async def shut_down(self, grace: float | None = None) -> ShutdownResponse:
        request = ShutdownRequest(grace=None if grace is None else seconds(grace))
        answer: ShutdownResponse = await self._ask("Shutdown", request, ShutdownResponse)
        return answer

    async def aclose(self) -> None:
        await self._channel.close()

    async def _ask(self, method: str, request: Any, answer: Any) -> Any:
        call = self._channel.unary_unary(
            f"/pillion.v1.AdminService/{method}", type(request).SerializeToString, answer.FromString
        )
        return await call(request)


@pytest.fixture
async def operator(socket_host: SocketHost) -> Any:
    asking = Operator(socket_host)
    yield asking
    await asking.aclose()


@on_unix
async def test_calls_are_listed_by_what_they_do(socket_host: SocketHost, operator: Operator) -> None:
    assert await operator.calls() == ListCallsResponse()
    worker = await attach(socket_host, tool("echo"), tool("read"), concurrency=2)
    caller = await socket_host.caller()
    first = await caller.start("echo", tool_call_id="first")
    run = (await worker.next_invoke()).call
    await worker.progress(run)
    await worker.progress(run)
    await caller.next_of("progress", first)
    second = await caller.start("read", timeout=10)
    await worker.next_invoke()
    await caller.start("read")
    await caller.cancel(second)
    await worker.cancelled(run + 1)
    await caller.flush()
    running, cancelling, waiting = (answer := await operator.calls()).calls
    assert answer.total == 3
    assert (running.tool, running.tool_call_id, running.reports) == ("echo", "first", 2)
    assert running.execution_id == caller.frames[first][0].started.execution_id
    assert [call.state for call in (running, cancelling, waiting)] == [
        CallState.CALL_STATE_RUNNING,
        CallState.CALL_STATE_CANCELLING,
        CallState.CALL_STATE_WAITING,
    ]
    assert running.worker == cancelling.worker == "main"
    assert running.worker_instance_id == cancelling.worker_instance_id
    assert not waiting.HasField("worker_instance_id")
    assert cancelling.remaining.seconds < 10 < running.remaining.seconds
    assert running.age.ToMicroseconds() >= waiting.age.ToMicroseconds() > 0


@on_unix
async def test_calls_are_listed_by_tool_and_up_to_a_limit(socket_host: SocketHost, operator: Operator) -> None:
    worker, caller = await attach(socket_host, tool("echo"), tool("read")), await socket_host.caller()
    for name in ("echo", "read", "read"):
        await caller.start(name)
        await worker.next_invoke()
    for fields, listed, total in (
        ({"tool": "read"}, ["read", "read"], 2),
        ({"tool": "read", "limit": 1}, ["read"], 2),
        ({"limit": 2}, ["echo", "read"], 3),
        ({"tool": ""}, [], 0),
        ({"tool": "nobody"}, [], 0),
    ):
        answer = await operator.calls(**fields)
        assert ([call.tool for call in answer.calls], answer.total) == (listed, total), fields


@on_unix
async def test_an_operator_cancels_a_call(socket_host: SocketHost, operator: Operator) -> None:
    worker, caller = await attach(socket_host), await socket_host.caller()
    call = await caller.start()
    run = (await worker.next_invoke()).call
    (listed,) = (await operator.calls()).calls
    assert not await operator.cancel("exe_of_nobody")
    assert await operator.cancel(listed.execution_id)
    assert await worker.cancelled(run) == CancelReason.CANCEL_REASON_OPERATOR
    await worker.fail(run, FailureKind.FAILURE_KIND_CANCELLED)
    assert (await caller.outcome(call)).failure.kind == FailureKind.FAILURE_KIND_CANCELLED
    assert not await operator.cancel(listed.execution_id)


@on_unix
async def test_an_operator_stops_the_sidecar_and_says_how_long_calls_have(start_host: StartHost) -> None:
    host = await start_host(calls=CallLimits(cancel_grace=0.2))
    assert isinstance(host, SocketHost)
    operator = Operator(host)
    worker, caller = await attach(host), await host.caller()
    call = await caller.start()
    await worker.next_invoke()
    assert (await operator.shut_down(0.3)).running == 1
    assert (await caller.next_of("draining")).draining.grace.ToMilliseconds() == 300
    assert (await caller.outcome(call)).failure.kind == FailureKind.FAILURE_KIND_CANCELLED
    await operator.aclose()
    await host.ended()
