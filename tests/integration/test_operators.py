"""The operator's service: what runs, and a word to stop it."""

import asyncio
import sys
import time
from asyncio.subprocess import PIPE
from typing import Any, Self

import grpc.aio
import pytest
from google.protobuf.duration_pb2 import Duration

from sidecar._gen.pillion.v1.admin_pb2 import (
    AdminServiceEndScopeResponse,
    CallEventKind,
    CallState,
    ListCallsResponse,
    WatchCallsRequest,
    WatchCallsResponse,
)
from sidecar._gen.pillion.v1.call_pb2 import CallerHello
from sidecar._gen.pillion.v1.context_pb2 import CancelReason, Identity
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind
from tests.integration.teardowns import RUN, kept, ran
from tests.support import CallLimits, MemoryHost, SocketHost, StartHost, attach, on_unix, seconds, tool
from tests.support.documents import ROOT
from tests.support.operators import Operator

STARTED = CallEventKind.CALL_EVENT_KIND_STARTED
ENDED = CallEventKind.CALL_EVENT_KIND_ENDED


@pytest.fixture
async def operator(socket_host: SocketHost) -> Any:
    async with Operator(socket_host) as asking:
        yield asking


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
async def test_an_operator_ends_sessions_of_any_subject(socket_host: SocketHost, operator: Operator) -> None:
    worker, caller = await attach(socket_host), await socket_host.caller()
    ann = Identity(tenant="acme", principal="ann")
    ids = [await kept(worker, caller), await kept(worker, caller, identity=ann)]
    running = await caller.start(session_id="s", identity=ann)
    run = (await worker.next_invoke()).call
    ending = asyncio.ensure_future(operator.end_scope(session_id="s", identity=ann))
    assert await worker.cancelled(run) == CancelReason.CANCEL_REASON_SCOPE_ENDED
    await worker.fail(run, FailureKind.FAILURE_KIND_CANCELLED)
    assert (await caller.outcome(running)).failure.kind == FailureKind.FAILURE_KIND_CANCELLED
    await ran(worker, ids[1])
    assert await ending == AdminServiceEndScopeResponse(fired=1, cancelled=1)
    # Calls that name no principal are their caller's: by default the operator's own.
    assert await operator.end_scope(session_id="s", caller_principal="token:other") == AdminServiceEndScopeResponse()
    ending = asyncio.ensure_future(operator.end_scope(session_id="s"))
    await ran(worker, ids[0])
    assert await ending == AdminServiceEndScopeResponse(fired=1)
    for wrong in ({}, {"run_id": ""}, {"session_id": "s" * 257}):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await operator.end_scope(**wrong)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@on_unix
async def test_the_program_ends_sessions_and_runs(socket_host: SocketHost) -> None:
    worker, caller = await attach(socket_host), await socket_host.caller()
    named = Identity(tenant="acme", principal="ann")
    ids = [await kept(worker, caller), await kept(worker, caller, scope=RUN, run_id="r", identity=named)]
    commands = [
        ("end-session", "s"),
        ("end-run", "r", "--tenant", "acme", "--principal", "ann"),
    ]
    for command, registration, error in zip(commands, ids, (None, "It was gone."), strict=True):
        ending = await pillion(socket_host, *command)
        assert (await worker.next_teardown()).registration_id == registration
        await worker.torn_down(registration, error)
        output, errors = await ending.communicate()
        failed = int(error is not None)
        assert errors.decode() == f"It has ended: 0 calls cancelled, 1 cleanup run, {failed} of them failed.\n"
        assert (ending.returncode, output) == (failed, b"")
    ending = await pillion(socket_host, "end-session", "s")
    _, errors = await ending.communicate()
    assert errors.decode().startswith("There was nothing to end:")
    assert ending.returncode == 0


async def pillion(host: SocketHost, *command: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sidecar", *command, "--address", host.callers_at), stdout=PIPE, stderr=PIPE, cwd=ROOT
    )


@on_unix
async def test_a_grace_as_long_as_can_be_said_still_drains(start_host: StartHost) -> None:
    host = await start_host()
    assert isinstance(host, SocketHost)
    operator = Operator(host)
    worker, caller = await attach(host), await host.caller()
    call = await caller.start()
    run = (await worker.next_invoke()).call
    assert (await operator.shut_down(Duration(seconds=2**63 - 1))).running == 1
    await caller.next_of("draining")
    await worker.result(run)
    assert (await caller.outcome(call)).HasField("result")
    await operator.aclose()
    await host.ended()


@on_unix
async def test_an_operator_stops_the_sidecar_and_says_how_long_calls_have(start_host: StartHost) -> None:
    host = await start_host(calls=CallLimits(cancel_grace=0.2))
    assert isinstance(host, SocketHost)
    operator = Operator(host)
    worker, caller = await attach(host), await host.caller()
    call = await caller.start()
    await worker.next_invoke()
    assert (await operator.shut_down(seconds(0.3))).running == 1
    assert (await caller.next_of("draining")).draining.grace.ToMilliseconds() == 300
    assert (await caller.outcome(call)).failure.kind == FailureKind.FAILURE_KIND_CANCELLED
    await operator.aclose()
    await host.ended()


# --- what happens to calls, as it happens


class Watching:
    """Somebody who looks on, over the socket."""

    def __init__(self, host: SocketHost, **fields: Any) -> None:
        self._channel = grpc.aio.insecure_channel(host.callers_at)
        watch = self._channel.unary_stream(
            "/pillion.v1.AdminService/WatchCalls", WatchCallsRequest.SerializeToString, WatchCallsResponse.FromString
        )
        self._stream = watch(WatchCallsRequest(**fields))

    async def __aenter__(self) -> Self:
        await self._stream.initial_metadata()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    async def next(self) -> WatchCallsResponse:
        async with asyncio.timeout(20):
            event = await self._stream.read()
        assert isinstance(event, WatchCallsResponse)
        return event

    async def kinds(self, count: int) -> list[str]:
        events = [await self.next() for _ in range(count)]
        return [CallEventKind.Name(event.kind).removeprefix("CALL_EVENT_KIND_") for event in events]


@on_unix
async def test_what_happens_to_a_call_is_seen_as_it_happens(socket_host: SocketHost) -> None:
    worker, caller = await attach(socket_host), await socket_host.caller()
    await caller.send(Frame(caller_hello=CallerHello(can_answer=["roots/list"])))
    async with Watching(socket_host) as watching:
        call = await caller.start("echo", tool_call_id="mine")
        run = (await worker.next_invoke()).call
        started = await watching.next()
        assert (started.kind, started.call.tool, started.call.tool_call_id) == (STARTED, "echo", "mine")
        assert abs(started.time_unix_nano - time.time_ns()) < 60e9
        await worker.progress(run, {"message": "half  way"})
        report = await watching.next()
        assert (report.call.line, report.call.reports, report.call.worker) == ("half way", 1, "main")
        asked = Frame(call=run)
        asked.outbound_request.request_id = 1
        asked.outbound_request.caller_request.method = "roots/list"
        await worker.send(asked)
        assert await watching.kinds(1) == ["QUESTION"]
        await caller.cancel(call)
        cancelled = await watching.next()
        assert cancelled.reason == CancelReason.CANCEL_REASON_CALLER
        assert cancelled.call.state == CallState.CALL_STATE_CANCELLING
        await worker.fail(run, FailureKind.FAILURE_KIND_CANCELLED)
        ended = await watching.next()
        assert (ended.kind, ended.failure) == (ENDED, FailureKind.FAILURE_KIND_CANCELLED)
        assert ended.call.execution_id == started.call.execution_id
        # One that is refused before it is known what it is for begins and ends all the same.
        await caller.call("")
        assert await watching.kinds(2) == ["STARTED", "ENDED"]
        call = await caller.start("echo")
        await worker.result((await worker.next_invoke()).call, {})
        await caller.outcome(call)
        assert await watching.kinds(1) == ["STARTED"]
        assert not (await watching.next()).failure


@on_unix
async def test_who_looks_on_first_sees_what_runs_already(socket_host: SocketHost) -> None:
    worker, caller = await attach(socket_host, tool("echo"), tool("read")), await socket_host.caller()
    for name in ("echo", "read"):
        await caller.start(name)
        await worker.next_invoke()
    async with Watching(socket_host) as everything, Watching(socket_host, tool="read") as one:
        first, second = await everything.next(), await everything.next()
        assert [first.call.tool, second.call.tool] == ["echo", "read"]
        assert (await one.next()).call.execution_id == second.call.execution_id
        await worker.result(1, {})
        await worker.result(2, {})
        assert await everything.kinds(2) == ["ENDED", "ENDED"]
        assert (await one.next()).call.tool == "read"
    # Nobody looks on any more, and calls go on.
    call = await caller.start()
    await worker.result((await worker.next_invoke()).call, {})
    assert (await caller.outcome(call)).HasField("result")


async def test_who_looks_on_too_slowly_is_told_how_much_was_lost(memory_host: MemoryHost) -> None:
    worker, caller = await attach(memory_host), await memory_host.caller()
    with memory_host.pipeline.watched(None) as watcher:
        call = await caller.start()
        run = (await worker.next_invoke()).call
        for _ in range(2_000):
            await worker.progress(run)
        await worker.flush()
        taken = [await watcher.take() for _ in range(1_024)]
        assert [event.lost for event in taken] == [0] * 1_024
        await worker.result(run, {})
        await caller.outcome(call)
        ended = await watcher.take()
        assert (ended.kind, ended.lost) == (ENDED, 2_001 - 1_024)
    assert memory_host.pipeline.watch is None


@on_unix
async def test_only_operators_look_on(start_host: StartHost) -> None:
    host = await start_host()
    assert isinstance(host, SocketHost)
    async with grpc.aio.insecure_channel(host.workers_at) as channel:
        watch: Any = channel.unary_stream("/pillion.v1.AdminService/WatchCalls")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await watch(b"").read()
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
