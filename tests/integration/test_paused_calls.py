"""Paused calls of a whole sidecar: with its database, its log and all its doors."""

import asyncio
import os
from pathlib import Path

import grpc.aio
import pytest

from sidecar._gen.pillion.v1.context_pb2 import Identity, Resume, TeardownScope
from sidecar._gen.pillion.v1.execute_pb2 import CallRequest, CallResponse, EndScopeRequest, EndScopeResponse
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outbound_pb2 import ArtifactGet, OutboundRequest
from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind
from sidecar._gen.pillion.v1.worker_pb2 import RegisterTeardown
from sidecar.config import Allow
from tests.support import SocketHost, attach, on_unix, start_of, tool
from tests.support.artifacts import put_request
from tests.support.pausing import pause, paused, resume, resuming, told

pytestmark = on_unix

CANCELLED = FailureKind.FAILURE_KIND_CANCELLED
DENIED = FailureKind.FAILURE_KIND_DENIED
TICKET_INVALID = FailureKind.FAILURE_KIND_TICKET_INVALID
UNAVAILABLE = FailureKind.FAILURE_KIND_UNAVAILABLE
SERVICE = "/pillion.v1.ToolHostService/"
ANN = Identity(tenant="acme", principal="ann")


async def end_scope(host: SocketHost, **facts: object) -> EndScopeResponse:
    async with grpc.aio.insecure_channel(host.callers_at) as channel:
        method = channel.unary_unary(
            SERVICE + "EndScope", EndScopeRequest.SerializeToString, EndScopeResponse.FromString
        )
        answer: EndScopeResponse = await method(EndScopeRequest(**facts))  # type: ignore[arg-type]
        return answer


async def test_a_unary_call_pauses_and_is_resumed(socket_host: SocketHost) -> None:
    worker = await attach(socket_host)
    async with grpc.aio.insecure_channel(socket_host.callers_at) as channel:
        call = channel.unary_unary(SERVICE + "Call", CallRequest.SerializeToString, CallResponse.FromString)
        answering = asyncio.ensure_future(call(CallRequest(start=start_of("echo", {"n": 1}))))
        await worker.send(pause((await worker.next_invoke()).call, state=b"s"))
        first: CallResponse = await answering
        assert first.outcome.paused.ask.message == "Go on?"
        again = start_of("", resume=resuming(first.outcome.paused.ticket, "yes"))
        answering = asyncio.ensure_future(call(CallRequest(start=again)))
        run = await worker.next_invoke()
        assert told(run) == Resume(state=b"s", answer=b'"yes"')
        await worker.result(run.call, 1)
        second: CallResponse = await answering
        assert second.outcome.result.json == b"1"
        assert second.started.tool_call_id == first.started.tool_call_id
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call(CallRequest(start=again))
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND


async def test_the_end_of_its_session_ends_a_paused_call(socket_host: SocketHost) -> None:
    worker, caller = await attach(socket_host), await socket_host.caller()
    call = await caller.start(session_id="s", identity=ANN)
    run = await worker.next_invoke()
    registrations = []
    for number, scope in enumerate((TeardownScope.TEARDOWN_SCOPE_CALL, TeardownScope.TEARDOWN_SCOPE_SESSION), 1):
        kept = RegisterTeardown(request_id=number, scope=scope)
        registrations.append((await worker.register(run.call, kept)).teardown.registration_id)
    await worker.send(pause(run.call))
    ticket = (await caller.outcome(call)).paused.ticket
    other = (await paused(worker, caller, session_id="s")).ticket
    ending = asyncio.ensure_future(end_scope(socket_host, session_id="s", identity=ANN))
    for _ in range(2):
        done = Frame()
        done.teardown_done.registration_id = (await worker.next_of("run_teardown")).run_teardown.registration_id
        registrations.remove(done.teardown_done.registration_id)
        await worker.send(done)
    ended = await ending
    assert (ended.fired, ended.failed, ended.cancelled) == (1, 0, 1)
    assert (await caller.outcome(await resume(caller, ticket, identity=ANN))).failure.kind == TICKET_INVALID
    assert (await socket_host.counters())["scope_ended_pauses"] == 1
    # That of another subject is another session.
    await resume(caller, other)
    await worker.next_invoke()


async def test_the_end_of_its_session_uses_up_the_ticket_of_a_call_that_just_goes_on(socket_host: SocketHost) -> None:
    worker, caller = await attach(socket_host, concurrency=1), await socket_host.caller()
    ticket = (await paused(worker, caller, session_id="s")).ticket
    blocking = await caller.start()
    blocker = await worker.next_invoke()
    waiting = await resume(caller, ticket)
    await caller.flush()
    assert (await end_scope(socket_host, session_id="s")).cancelled == 1
    assert (await caller.outcome(waiting)).failure.kind == CANCELLED
    await worker.result(blocker.call)
    await caller.outcome(blocking)
    assert (await caller.outcome(await resume(caller, ticket))).failure.kind == TICKET_INVALID


async def test_policy_has_its_say_again_and_leaves_the_ticket_good(socket_host: SocketHost) -> None:
    worker, caller = await attach(socket_host, tool("echo"), tool("read")), await socket_host.caller()
    ticket = (await paused(worker, caller, identity=ANN)).ticket
    before = socket_host.settings
    rule = Allow(principal=f"local:{os.getuid()}", tools=frozenset(("read",)), subjects=frozenset(("ann",)))
    reload(socket_host, rule)
    refused = (await caller.outcome(await resume(caller, ticket, identity=ANN))).failure
    assert refused.kind in (DENIED, FailureKind.FAILURE_KIND_UNKNOWN_TOOL)
    socket_host.settings = before
    socket_host.sidecar.reload(before)
    await resume(caller, ticket, identity=ANN)
    await worker.next_invoke()


def reload(host: SocketHost, *rules: Allow) -> None:
    host.settings = host.settings.model_copy(update={"allow": rules})
    host.sidecar.reload(host.settings)


async def test_no_ticket_is_in_any_file(socket_host: SocketHost) -> None:
    worker, caller = await attach(socket_host), await socket_host.caller()
    tickets = [(await paused(worker, caller, idempotency_key=key)).ticket for key in (None, "k")]
    again = await resume(caller, tickets[0], idempotency_key="r")
    await worker.send(pause((await worker.next_invoke()).call))
    tickets.append((await caller.outcome(again)).paused.ticket)
    replayed = await caller.call("echo", idempotency_key="k")
    assert replayed.paused.ticket == tickets[1]
    state = socket_host.settings.state_dir

    def found() -> list[Path]:
        return [
            path
            for path in state.rglob("*")
            if path.is_file() and any(ticket[8:-8].encode() in path.read_bytes() for ticket in tickets)
        ]

    assert await asyncio.to_thread(found) == []


async def test_a_version_of_the_tool_that_came_meanwhile_is_what_goes_on(socket_host: SocketHost) -> None:
    worker, caller = await attach(socket_host), await socket_host.caller()
    ticket = (await paused(worker, caller, arguments={"n": 1})).ticket
    await worker.aclose()
    newer = {"type": "object", "properties": {"n": {"type": "string"}}}
    second = await attach(socket_host, tool("echo", input_schema=newer))
    refused = (await caller.outcome(await resume(caller, ticket))).failure
    assert refused.kind == FailureKind.FAILURE_KIND_INVALID_ARGUMENTS
    await second.aclose()
    third = await attach(socket_host)
    await resume(caller, ticket)
    assert (await third.next_invoke()).invoke.arguments == b'{"n": 1}'


async def test_a_resume_waits_for_the_worker_of_its_tool(socket_host: SocketHost) -> None:
    worker, caller = await attach(socket_host), await socket_host.caller()
    ticket = (await paused(worker, caller, state=b"s")).ticket
    await worker.aclose()
    waiting = await resume(caller, ticket, "on")
    await caller.flush()
    second = await attach(socket_host)
    run = await second.next_invoke()
    assert told(run) == Resume(state=b"s", answer=b'"on"')
    await second.result(run.call)
    assert (await caller.outcome(waiting)).HasField("result")


async def test_the_run_of_a_resume_is_another_name_of_the_paused_run(socket_host: SocketHost) -> None:
    worker, caller = await attach(socket_host), await socket_host.caller()
    call = await caller.start(run_id="r1")
    run = await worker.next_invoke()
    kept = RegisterTeardown(request_id=1, scope=TeardownScope.TEARDOWN_SCOPE_RUN)
    registration = (await worker.register(run.call, kept)).teardown.registration_id
    keys = run.context.session_keys
    await worker.send(pause(run.call))
    ticket = (await caller.outcome(call)).paused.ticket
    call = await resume(caller, ticket, run_id="r2")
    run = await worker.next_invoke()
    assert (run.context.run_id, run.context.session_keys) == ("r1", keys)
    await worker.send(pause(run.call))
    ticket = (await caller.outcome(call)).paused.ticket
    # Another call of the newer run is in the same one, and may register the same again.
    other = await caller.start(run_id="r2")
    run = await worker.next_invoke()
    assert (run.context.run_id, run.context.session_keys) == ("r2", keys)
    again = (await worker.register(run.call, kept)).teardown
    assert (again.registration_id, again.reused) == (registration, True)
    await worker.result(run.call)
    await caller.outcome(other)
    ending = asyncio.ensure_future(end_scope(socket_host, run_id="r2"))
    done = Frame()
    done.teardown_done.registration_id = (await worker.next_of("run_teardown")).run_teardown.registration_id
    await worker.send(done)
    ended = await ending
    assert (done.teardown_done.registration_id, ended.fired, ended.cancelled) == (registration, 1, 1)
    assert (await caller.outcome(await resume(caller, ticket, run_id="r3"))).failure.kind == TICKET_INVALID
    # What comes now is a run of its own.
    await caller.start(run_id="r2")
    assert (await worker.next_invoke()).context.session_keys != keys


async def test_a_call_of_no_place_has_the_artifacts_of_before_its_pause(socket_host: SocketHost) -> None:
    worker, caller = await attach(socket_host), await socket_host.caller()
    call = await caller.start()
    run = await worker.next_invoke()
    put = (await worker.ask(run.call, put_request(b"x", 1))).artifact_stored.meta.reference
    await worker.send(pause(run.call, state=put.encode()))
    ticket = (await caller.outcome(call)).paused.ticket
    await resume(caller, ticket)
    run = await worker.next_invoke()
    get = OutboundRequest(request_id=1, artifact_get=ArtifactGet(reference=run.context.resume.state.decode()))
    assert (await worker.ask(run.call, get)).artifact.artifact.inline.content == b"x"
