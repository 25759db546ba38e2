"""Each row of a tool's context, with bare stubs at both ends and a whole sidecar between them.

What a row shares with every call is in docs/protocol.md as an exchange; here is that it is there, and that it is absent
where nobody named it.
"""

import asyncio
import json
import os
import re

import pytest

from sidecar._gen.pillion.v1.artifacts_pb2 import ScopeFacts
from sidecar._gen.pillion.v1.call_pb2 import CallerHello
from sidecar._gen.pillion.v1.context_pb2 import CancelReason, Identity, TeardownReason, TeardownScope
from sidecar._gen.pillion.v1.execute_pb2 import EndScopeRequest, EndScopeResponse
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outbound_pb2 import OutboundRequest
from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind
from tests.integration.teardowns import SESSION
from tests.support import READ, CallerPeer, Host, SocketHost, StartHost, WorkerPeer, attach, on_unix, tool
from tests.support.artifacts import Artifacts
from tests.support.documents import ROOT, blocks
from tests.support.issuing import get, needing, section, started, value_of
from tests.support.rows import ROWS
from tests.support.scopes import end_scope


async def ends(worker: WorkerPeer, run: int, caller: CallerPeer, call: int) -> None:
    """The tool returns, and the caller is told."""
    await worker.result(run, {})
    assert (await caller.outcome(call)).HasField("result")


def test_every_row_has_an_exchange_and_a_test_each_way() -> None:
    told = {block.heading for block in blocks("docs/protocol.md", "frames")}
    assert not set(ROWS.values()) - told
    for way in ("tests/integration/test_context_rows.py", "tests/sdk/test_context_rows.py"):
        tests = re.findall(r"def test_row_(\w+)", (ROOT / way).read_text())
        assert all(any(test.startswith(row) for test in tests) for row in ROWS), way
        assert all(test.startswith(tuple(ROWS)) for test in tests), way


# --- of agentfootprint


@on_unix
async def test_row_facts_are_as_the_caller_named_them_and_absent_where_it_did_not(host: Host) -> None:
    worker, caller = await attach(host), await host.caller()
    identity = Identity(tenant="acme", principal="ana", conversation_id="c")
    call = await caller.start(tool_call_id="t", iteration=3, run_id="r", session_id="s", identity=identity)
    run = await worker.next_invoke()
    context = run.context
    assert (context.tool_call_id, context.iteration, context.run_id, context.session_id) == ("t", 3, "r", "s")
    assert context.identity == identity
    await ends(worker, run.call, caller, call)
    call = await caller.start()
    run = await worker.next_invoke()
    assert run.context.tool_call_id
    assert run.context.iteration == 0
    absent = ("run_id", "session_id", "identity", "parent_anchor", "trace")
    assert not {field.name for field, _ in run.context.ListFields()}.intersection(absent)
    await ends(worker, run.call, caller, call)
    # What is named and empty is there, and empty.
    call = await caller.start(run_id="", identity=Identity(tenant=""))
    run = await worker.next_invoke()
    assert (run.context.HasField("run_id"), run.context.run_id) == (True, "")
    assert run.context.HasField("identity")
    await ends(worker, run.call, caller, call)


@on_unix
async def test_row_signal_is_a_cancel_with_its_reason(host: Host) -> None:
    worker, caller = await attach(host), await host.caller()
    call = await caller.start()
    run = (await worker.next_invoke()).call
    await caller.cancel(call)
    assert await worker.cancelled(run) == CancelReason.CANCEL_REASON_CALLER
    await worker.fail(run, FailureKind.FAILURE_KIND_CANCELLED)
    assert (await caller.outcome(call)).failure.kind == FailureKind.FAILURE_KIND_CANCELLED


@on_unix
async def test_row_credentials_are_pushed_where_declared_and_pulled_where_asked_for(
    start_host: StartHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVICE_TOKEN", "canary-token")
    host = await started(start_host, section("github", "environment", variable="SERVICE_TOKEN"), "github")
    worker = await attach(host, needing("github"), tool("read", effects=READ))
    caller = await host.caller()
    call = await caller.start()
    run = await worker.next_invoke()
    assert run.context.has_credentials
    assert value_of(run.context.credentials.services["github"]) == "canary-token"
    await ends(worker, run.call, caller, call)
    call = await caller.start("read")
    run = await worker.next_invoke()
    assert run.context.has_credentials
    assert not run.context.credentials.services
    assert value_of((await worker.ask(run.call, get("github"))).credential.issued) == "canary-token"
    # It fails closed: what nobody configured or granted is refused.
    assert (await worker.ask(run.call, get("gitlab", 2))).HasField("error")
    await ends(worker, run.call, caller, call)


@on_unix
async def test_row_credentials_are_said_not_to_be_there(host: Host) -> None:
    worker, caller = await attach(host), await host.caller()
    call = await caller.start()
    run = await worker.next_invoke()
    assert not run.context.has_credentials
    assert (await worker.ask(run.call, get("github"))).HasField("error")
    await ends(worker, run.call, caller, call)


@on_unix
async def test_row_artifacts_are_wanted_and_put(host: Host, artifacts: Artifacts) -> None:
    worker, caller = await attach(host, tool(wants={"data": "note"})), await host.caller()
    reference = (await artifacts.put(ScopeFacts(session_id="s"), b"a,b\n")).meta.reference
    call = await caller.start(arguments={"data": reference}, session_id="s")
    run = await worker.next_invoke()
    assert run.context.has_artifacts
    assert run.context.wanted.arguments["data"].inline.content == b"a,b\n"
    asked = OutboundRequest(request_id=1)
    asked.artifact_get.reference = reference
    assert (await worker.ask(run.call, asked)).artifact.artifact.inline.content == b"a,b\n"
    await ends(worker, run.call, caller, call)
    call = await caller.start(arguments={})
    run = await worker.next_invoke()
    assert not run.context.HasField("wanted")
    await ends(worker, run.call, caller, call)


@on_unix
async def test_row_artifacts_are_said_not_to_be_there(start_host: StartHost) -> None:
    host = await start_host(keeps_artifacts=False)
    worker, caller = await attach(host), await host.caller()
    call = await caller.start()
    run = await worker.next_invoke()
    assert not run.context.has_artifacts
    await ends(worker, run.call, caller, call)


@on_unix
async def test_row_progress_reaches_the_caller_as_it_is(host: Host) -> None:
    worker, caller = await attach(host), await host.caller()
    call = await caller.start()
    run = (await worker.next_invoke()).call
    await worker.progress(run, b'{"message": "half way",  "done": 1}')
    assert (await caller.next_of("progress", call)).progress.payload == b'{"message": "half way",  "done": 1}'
    await ends(worker, run, caller, call)


@on_unix
async def test_row_teardown_is_registered_for_a_scope_and_fires_at_its_end(host: Host) -> None:
    worker, caller = await attach(host), await host.caller()
    call = await caller.start(session_id="s")
    run = await worker.next_invoke()
    context = run.context
    honoured = {TeardownScope.Name(scope).removeprefix("TEARDOWN_SCOPE_") for scope in context.teardown_scopes.scopes}
    assert honoured == {"CALL", "SHUTDOWN", "SESSION"}
    assert [(key.scope, len(key.digest)) for key in context.session_keys] == [(SESSION, 12)]
    kept = await worker.registered(run.call, SESSION, label="browser")
    assert not kept.reused
    await ends(worker, run.call, caller, call)
    # The session's next call has the same key, and what it registers again stands.
    call = await caller.start(session_id="s")
    run = await worker.next_invoke()
    assert run.context.session_keys[0].digest == context.session_keys[0].digest
    assert (await worker.registered(run.call, SESSION)).reused
    await ends(worker, run.call, caller, call)
    ending = asyncio.ensure_future(end_scope(host, EndScopeRequest(session_id="s")))
    fired = await worker.next_teardown()
    assert (fired.registration_id, fired.reason) == (kept.registration_id, TeardownReason.TEARDOWN_REASON_SESSION_END)
    await worker.torn_down(fired.registration_id)
    assert await ending == EndScopeResponse(fired=1)


@on_unix
async def test_row_tools_are_asked_for_and_run(host: Host) -> None:
    worker, caller = await attach(host, tool(), tool("read", effects=READ)), await host.caller()
    call = await caller.start(tool_call_id="t", run_id="r")
    run = await worker.next_invoke()
    assert run.context.tools.remaining_depth == 8
    asked = OutboundRequest(request_id=1)
    asked.tools_has.tool = "read"
    assert (await worker.ask(run.call, asked)).tool_available.available
    asked = OutboundRequest(request_id=2)
    asked.tools_call.tool = "read"
    asked.tools_call.arguments = b'{"n": 1}'
    await worker.send(Frame(call=run.call, outbound_request=asked))
    inner = await worker.next_invoke()
    assert (inner.invoke.arguments, inner.context.tool_call_id, inner.context.run_id) == (
        b'{"n": 1}',
        "t#inner-1",
        "r",
    )
    await worker.result(inner.call, b"7")
    assert (await worker.next_of("reply", run.call)).reply.tool_outcome.result.json == b"7"
    await ends(worker, run.call, caller, call)


# --- of klieo


@on_unix
async def test_row_agent_events_are_progress_of_any_shape(host: Host) -> None:
    worker, caller = await attach(host), await host.caller()
    call = await caller.start()
    run = (await worker.next_invoke()).call
    event = {"kind": "tool_call_completed", "name": "search", "ok": True}
    await worker.progress(run, event)
    assert json.loads((await caller.next_of("progress", call)).progress.payload) == event
    await ends(worker, run, caller, call)


@on_unix
async def test_row_cancel_comes_of_the_clock_too(host: Host) -> None:
    worker, caller = await attach(host), await host.caller()
    call = await caller.start(timeout=0.2)
    run = (await worker.next_invoke()).call
    assert await worker.cancelled(run) == CancelReason.CANCEL_REASON_DEADLINE
    await worker.fail(run, FailureKind.FAILURE_KIND_CANCELLED)
    assert (await caller.outcome(call)).failure.kind == FailureKind.FAILURE_KIND_TIMEOUT


@on_unix
async def test_row_server_outbound_is_what_the_caller_declared(host: Host) -> None:
    worker, caller = await attach(host), await host.caller()
    await caller.send(Frame(caller_hello=CallerHello(can_answer=["elicitation/create"])))
    call = await caller.start()
    run = await worker.next_invoke()
    assert list(run.context.answerable.methods) == ["elicitation/create"]
    asked = OutboundRequest(request_id=1)
    asked.caller_request.method = "elicitation/create"
    await worker.send(Frame(call=run.call, outbound_request=asked))
    answer = Frame(call=call)
    answer.reply.request_id = (await caller.next_of("caller_request", call)).caller_request.request_id
    answer.reply.caller.result = b'{"action": "accept"}'
    await caller.send(answer)
    assert (await worker.next_of("reply", run.call)).reply.caller.result == b'{"action": "accept"}'
    asked.request_id, asked.caller_request.method = 2, "roots/list"
    assert (await worker.ask(run.call, asked)).HasField("error")
    await ends(worker, run.call, caller, call)


@on_unix
async def test_row_caller_principal_is_who_the_connection_proves(host: Host) -> None:
    worker, caller = await attach(host), await host.caller()
    call = await caller.start(identity=Identity(principal="root"))
    run = await worker.next_invoke()
    assert run.context.caller_principal == f"local:{os.getuid()}"
    await ends(worker, run.call, caller, call)


@pytest.mark.parametrize("transport", ["tcp"])
async def test_row_caller_principal_is_absent_where_nothing_proves_it(socket_host: SocketHost) -> None:
    worker, caller = await attach(socket_host), await socket_host.caller()
    call = await caller.start(identity=Identity(principal="root"), parent_anchor="anchor")
    run = await worker.next_invoke()
    assert not run.context.HasField("caller_principal")
    # Nor is an anchor carried that nobody vouches for.
    assert not run.context.HasField("parent_anchor")
    await ends(worker, run.call, caller, call)


@on_unix
async def test_row_parent_anchor_is_carried_verbatim(host: Host) -> None:
    worker, caller = await attach(host), await host.caller()
    call = await caller.start(parent_anchor='{"of": "the run"} ')
    run = await worker.next_invoke()
    assert run.context.parent_anchor == '{"of": "the run"} '
    await ends(worker, run.call, caller, call)
