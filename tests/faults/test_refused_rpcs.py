"""RPCs that this sidecar does not do, and handlers that fail: typed, and without a word of the sidecar's inside."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, NoReturn
from urllib.parse import quote

import grpc.aio
import pytest
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor

from sidecar._gen.pillion.v1 import admin_pb2, artifacts_pb2, attach_pb2, execute_pb2
from sidecar._gen.pillion.v1.execute_pb2 import CallRequest
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind, SideEffects
from sidecar.calls import pipeline
from sidecar.calls.idempotency import Requests
from sidecar.doors import artifacts, tool_host, transfers
from sidecar.doors.callers import CallerHost
from sidecar.doors.execute import ExecuteSession
from sidecar.policy import StaticPolicy
from sidecar.storage import SqliteIdempotencyStore
from sidecar.workers.attach import AttachSession
from sidecar.workers.host import WorkerHost
from tests.faults.conftest import Inside
from tests.faults.doors import Doors, detail_of, texts_of
from tests.support import SocketHost, StartHost, attach, on_sockets, on_unix, start_of, tool

EXECUTE = execute_pb2.DESCRIPTOR.services_by_name["ToolHostService"]
ARTIFACTS = artifacts_pb2.DESCRIPTOR.services_by_name["ArtifactService"]
ADMIN = admin_pb2.DESCRIPTOR.services_by_name["AdminService"]
ATTACH = attach_pb2.DESCRIPTOR.services_by_name["WorkerHostService"]
SERVICES = (EXECUTE, ARTIFACTS, ADMIN, ATTACH)

OF_WORKERS = {"Upload", "Download"}
UNIMPLEMENTED = grpc.StatusCode.UNIMPLEMENTED
SECRET = "secret-of-the-inside"
CALL = CallRequest(start=start_of())
_CALL = "/pillion.v1.ToolHostService/Call"

INTERNAL = FailureKind.FAILURE_KIND_INTERNAL
NONE = SideEffects.SIDE_EFFECTS_NONE


def methods(services: tuple[ServiceDescriptor, ...]) -> list[MethodDescriptor]:
    return [method for service in services for method in service.methods]


async def error_of(channel: Any, method: MethodDescriptor) -> grpc.aio.AioRpcError:
    """How a method answers an empty request, which has to be by an error."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    try:
        if method.client_streaming and method.server_streaming:
            async for _ in channel.stream_stream(path)(_once()):
                pass
        elif method.client_streaming:
            await channel.stream_unary(path)(_once())
        elif method.server_streaming:
            async for _ in channel.unary_stream(path)(b""):
                pass
        else:
            await channel.unary_unary(path)(b"")
    except grpc.aio.AioRpcError as error:
        return error
    raise AssertionError(f"{path} was answered")


async def _once() -> AsyncIterator[bytes]:
    yield b""


# --- who may ask for what


@on_sockets
async def test_each_listener_serves_its_own_peers_alone(host: SocketHost) -> None:
    async with Doors(host) as doors:
        for method in methods((EXECUTE, ARTIFACTS, ADMIN)):
            if method.name not in OF_WORKERS:
                error = await error_of(doors.workers, method)
                assert error.code() is UNIMPLEMENTED, method.full_name
                assert not error.trailing_metadata(), "nothing is served here that could answer"
        assert (await error_of(doors.channel, ATTACH.methods_by_name["Attach"])).code() is UNIMPLEMENTED


@pytest.mark.parametrize("transport", ["tcp"])
async def test_the_operators_service_is_for_users_of_this_machine(host: SocketHost) -> None:
    async with Doors(host) as doors:
        for method in ADMIN.methods:
            failure = detail_of(await error_of(doors.channel, method))
            assert (failure.kind, failure.side_effects) == (FailureKind.FAILURE_KIND_DENIED, NONE)
            assert "unix socket" in failure.message
    assert not host.sidecar.stopping.is_set()


# --- what fails inside


def fail(*_: Any, **__: Any) -> NoReturn:
    raise RuntimeError(SECRET)


async def fail_later(*_: Any, **__: Any) -> NoReturn:
    raise RuntimeError(SECRET)


@on_sockets
@pytest.mark.parametrize(
    ("broken", "service", "method", "is_of_workers"),
    [
        ((tool_host.ToolHost, "_listed"), EXECUTE, "ListTools", False),
        ((tool_host.ToolHost, "_listed"), EXECUTE, "WatchTools", False),
        ((tool_host, "limits_message"), EXECUTE, "GetInfo", False),
        ((CallerHost, "execute"), EXECUTE, "Execute", False),
        ((tool_host, "run_call"), EXECUTE, "Call", False),
        ((WorkerHost, "attach"), ATTACH, "Attach", True),
        ((artifacts, "scope_from"), ARTIFACTS, "Put", False),
        ((artifacts, "scope_from"), ARTIFACTS, "List", False),
        ((artifacts, "receive"), ARTIFACTS, "Upload", False),
        ((artifacts, "scope_from"), ARTIFACTS, "Download", False),
        ((transfers, "receive"), ARTIFACTS, "Upload", True),
        ((transfers, "_secret"), ARTIFACTS, "Download", True),
    ],
)
async def test_a_handler_that_fails_tells_nothing_of_why(
    start_host: StartHost,
    inside: Inside,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    broken: tuple[Any, str],
    service: ServiceDescriptor,
    method: str,
    is_of_workers: bool,
) -> None:
    inside.may_fail = True
    monkeypatch.setattr(*broken, fail)
    host = await start_host()
    assert isinstance(host, SocketHost)
    async with grpc.aio.insecure_channel(host.workers_at if is_of_workers else host.callers_at) as channel:
        error = await error_of(channel, service.methods_by_name[method])
        assert error.code() is grpc.StatusCode.INTERNAL
        assert SECRET not in texts_of(error)
        assert "RuntimeError" not in texts_of(error)
    assert inside.counts["internal_errors"] == 1
    assert SECRET in caplog.text, "who runs the sidecar is told"


@on_unix
@pytest.mark.parametrize(
    ("broken", "kind"),
    [
        ((pipeline, "decode"), INTERNAL),
        ((pipeline, "scope_of"), INTERNAL),
        ((StaticPolicy, "decide"), FailureKind.FAILURE_KIND_DENIED),
        ((pipeline, "invocation"), INTERNAL),
        ((Requests, "enter"), INTERNAL),
    ],
    ids=["decoding", "scope", "policy", "context", "keys"],
)
async def test_a_gate_that_fails_refuses_the_call(
    host: SocketHost,
    inside: Inside,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    broken: tuple[Any, str],
    kind: "FailureKind.ValueType",
) -> None:
    inside.may_fail = True
    worker = await attach(host)
    async with Doors(host) as doors:
        with monkeypatch.context() as patched:
            patched.setattr(*broken, fail)
            for door in doors.by_name.values():
                outcome = await door.call(start_of("echo", idempotency_key="key"))
                assert (outcome.failure.kind, outcome.failure.side_effects) == (kind, NONE)
                assert SECRET not in str(outcome)
        await worker.flush()
        assert not worker.invoked
        assert SECRET in caplog.text
        caller = await host.caller()
        call = await caller.start()
        await worker.result((await worker.next_invoke()).call, 1)
        assert (await caller.outcome(call)).result.json == b"1"


@on_unix
@pytest.mark.parametrize("method", ["find", "begin"])
async def test_a_store_that_fails_refuses_the_call(
    host: SocketHost, inside: Inside, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    inside.may_fail = True
    worker, caller = await attach(host), await host.caller()
    monkeypatch.setattr(SqliteIdempotencyStore, method, fail_later)
    outcome = await caller.call("echo", idempotency_key="key")
    assert outcome.failure.kind == INTERNAL
    assert SECRET not in str(outcome)
    await worker.flush()
    assert not worker.invoked


@on_unix
async def test_a_frame_whose_handling_fails_ends_nothing_else(
    start_host: StartHost, inside: Inside, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    inside.may_fail = True
    monkeypatch.setattr(ExecuteSession, "_reply", fail)
    monkeypatch.setattr(AttachSession, "_teardown_done", fail)
    host = await start_host()
    worker, caller = await attach(host, tool("echo")), await host.caller()
    call = await caller.start()
    run = await worker.next_invoke()
    reply, done = caller.starting(), caller.starting()
    reply.reply.request_id = 1
    done.teardown_done.registration_id = "none"
    await caller.send(reply)
    await worker.send(done)
    await worker.result(run.call, 1)
    assert (await caller.outcome(call)).result.json == b"1"
    await worker.flush()
    await caller.flush()
    assert inside.counts["internal_errors"] == 2
    assert SECRET not in f"{caller.order}{worker.order}"
    assert SECRET in caplog.text


@on_sockets
async def test_the_longest_failure_fits_into_what_every_client_takes(socket_host: SocketHost) -> None:
    worker = await attach(socket_host)
    failed = Frame()
    failure = failed.outcome.failure
    failure.kind = FailureKind.FAILURE_KIND_INVALID_ARGUMENTS
    failure.message = "é" * 2_048
    for _ in range(10):
        failure.issues.add(path="p" * 256, rule="r" * 256, message="m" * 256)
    async with Doors(socket_host) as doors:
        asking: asyncio.Task[Any] = asyncio.ensure_future(
            doors.channel.unary_unary(_CALL, CallRequest.SerializeToString)(CALL)
        )
        failed.call = (await worker.next_invoke()).call
        await worker.send(failed)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await asking
    detail = detail_of(refused.value)
    assert detail.message == "é" * 512
    assert detail.issues
    # Beside these there are a status and some names. Beyond 8 KiB a client fails now and then.
    trailers = sum(len(value) for _, value in refused.value.trailing_metadata() or ())
    assert trailers + len(quote(detail.message)) < 7 * 1024
