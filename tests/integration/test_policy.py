"""Who may do what: rules by principal, for tenants, subjects and tools, which may change while the sidecar runs."""

import asyncio
import signal
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest

from sidecar._gen.pillion.v1.context_pb2 import Identity
from sidecar._gen.pillion.v1.execute_pb2 import (
    CallRequest,
    CallResponse,
    EndScopeRequest,
    EndScopeResponse,
    ListToolsRequest,
    ListToolsResponse,
    WatchToolsRequest,
    WatchToolsResponse,
)
from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind
from sidecar.config import Allow, Settings
from tests.integration.listening import TOKENS, Listening, Place, anything
from tests.integration.teardowns import kept, ran
from tests.support import SocketHost, attach, on_unix, start_of, tool
from tests.support.links import bearing, channel_to

BACKEND, OTHER = TOKENS["backend"], TOKENS["other"]
SERVICE = "/pillion.v1.ToolHostService/"
RULES = [
    {"principal": "token:backend", "tools": ["echo"], "tenants": ["acme", "beta-*"], "subjects": ["", "alice"]},
    {"principal": "token:backend", "tools": ["re*"], "tenants": ["*"]},
]
DENIED, UNKNOWN, RESULT = FailureKind.FAILURE_KIND_DENIED, FailureKind.FAILURE_KIND_UNKNOWN_TOOL, None
CASES: dict[str, tuple[str, dict[str, str], Any]] = {
    "a tenant of the rule": ("echo", {"tenant": "acme"}, RESULT),
    "a tenant that begins as in the rule": ("echo", {"tenant": "beta-7"}, RESULT),
    "a subject of the rule": ("echo", {"tenant": "acme", "principal": "alice"}, RESULT),
    "a conversation, which no rule is about": ("echo", {"tenant": "acme", "conversation_id": "c"}, RESULT),
    "no tenant": ("echo", {}, DENIED),
    "another tenant": ("echo", {"tenant": "gamma"}, DENIED),
    "a tenant that only begins alike": ("echo", {"tenant": "acme-2"}, DENIED),
    "the pattern itself cut short": ("echo", {"tenant": "beta"}, DENIED),
    "another subject": ("echo", {"tenant": "acme", "principal": "bob"}, DENIED),
    "a subject of another rule's tool": ("read", {"principal": "alice"}, DENIED),
    "any tenant, for itself": ("read", {"tenant": "gamma"}, RESULT),
    "no tenant, where any may be": ("read", {}, RESULT),
    "a tool of no rule": ("put", {"tenant": "acme"}, UNKNOWN),
    "a tool that there is not": ("nothing", {"tenant": "acme"}, UNKNOWN),
}


def ruled(place: Place, rules: list[dict[str, Any]]) -> Settings:
    settings = place.settings({"callers": "127.0.0.1:0", "caller_tokens": place.tokens}, rules)
    worker = settings.worker[0].model_copy(update={"tools": frozenset("*")})
    return settings.model_copy(update={"worker": (worker,)})


@pytest.fixture
async def ruling(place: Place) -> AsyncIterator[Listening]:
    serving = Listening(ruled(place, RULES))
    await serving.open()
    await attach(serving, tool("echo"), tool("read"), tool("put"), concurrency=64)
    yield serving
    await serving.aclose()


async def names(host: Listening, token: str, **identity: str) -> list[str]:
    """The tools that are listed to who shows a token."""
    async with channel_to(host.target) as channel:
        method: Any = channel.unary_unary(
            SERVICE + "ListTools", ListToolsRequest.SerializeToString, ListToolsResponse.FromString
        )
        listed = await method(ListToolsRequest(identity=Identity(**identity)), metadata=bearing(token))
        return [tool.name for tool in listed.tools]


@on_unix
@pytest.mark.parametrize("case", CASES)
async def test_a_call_is_what_the_rules_make_of_it(place: Place, case: str) -> None:
    name, identity, expected = CASES[case]
    host = Listening(ruled(place, RULES))
    await host.open()
    worker = await attach(host, tool("echo"), tool("read"), tool("put"))
    caller = await host.caller(BACKEND)
    call = await caller.start(name, identity=identity)
    if expected is None:
        await worker.result((await worker.next_invoke()).call, "ran")
    outcome = await caller.outcome(call)
    assert (outcome.failure.kind or None) == expected
    async with channel_to(host.target) as channel:
        # The unary door has the same rules.
        method: Any = channel.unary_unary(SERVICE + "Call", CallRequest.SerializeToString, CallResponse.FromString)
        calling = method(CallRequest(start=start_of(name, identity=identity)), metadata=bearing(BACKEND))
        if expected is None:
            await worker.result((await worker.next_invoke()).call, "ran")
            assert (await calling).outcome.result.json == b'"ran"'
        else:
            code = grpc.StatusCode.PERMISSION_DENIED if expected == DENIED else grpc.StatusCode.NOT_FOUND
            assert await calling.code() is code
    assert len(worker.invoked) == (0 if expected is not None else 2)
    await host.aclose()


@on_unix
async def test_a_session_is_ended_by_those_who_may_act_for_its_subject_and_by_nobody_else(place: Place) -> None:
    host = Listening(ruled(place, [*RULES, {"principal": "token:other", "tools": ["echo"]}]))
    await host.open()
    worker, caller = await attach(host), await host.caller(BACKEND)
    acme, bob = Identity(tenant="acme"), Identity(tenant="acme", principal="bob")
    registration = await kept(worker, caller, identity=acme)
    async with channel_to(host.target) as channel:
        end: Any = channel.unary_unary(
            SERVICE + "EndScope", EndScopeRequest.SerializeToString, EndScopeResponse.FromString
        )

        def ending(token: str, identity: Identity | None) -> Any:
            return end(EndScopeRequest(session_id="s", identity=identity), metadata=bearing(token))

        for token, identity in ((OTHER, acme), (OTHER, bob), (BACKEND, bob)):
            assert await ending(token, identity).code() is grpc.StatusCode.PERMISSION_DENIED
        assert await ending("of nobody", acme).code() is grpc.StatusCode.UNAUTHENTICATED
        # Where no tenant or principal is named, the session is its caller's own.
        assert await ending(OTHER, None) == EndScopeResponse()
        ended = ending(BACKEND, acme)
        await ran(worker, registration)
        assert await ended == EndScopeResponse(fired=1)
    await host.aclose()


@on_unix
async def test_what_is_refused_as_unknown_differs_in_nothing(ruling: Listening) -> None:
    caller = await ruling.caller(BACKEND)
    hidden, missing = await caller.call("put"), await caller.call("nothing")
    assert hidden == missing


@on_unix
async def test_a_caller_is_listed_what_it_may_run_for_somebody(ruling: Listening) -> None:
    assert await names(ruling, BACKEND) == ["echo", "read"]
    assert await names(ruling, BACKEND, tenant="gamma") == ["echo", "read"]
    assert await names(ruling, OTHER) == []
    nobody = await ruling.caller(OTHER)
    assert (await nobody.call("read")).failure.kind == UNKNOWN


@on_unix
async def test_rules_change_while_it_runs(ruling: Listening, place: Place) -> None:
    async with channel_to(ruling.target) as channel:
        method: Any = channel.unary_stream(
            SERVICE + "WatchTools", WatchToolsRequest.SerializeToString, WatchToolsResponse.FromString
        )
        watched = method(WatchToolsRequest(), metadata=bearing(OTHER))
        assert not (await watched.read()).tools
        caller = await ruling.caller(OTHER)
        assert (await caller.call("put")).failure.kind == UNKNOWN
        ruling.settings = ruled(place, [anything("token:other")])
        signal.raise_signal(signal.SIGHUP)
        async with asyncio.timeout(20):
            assert [tool.name for tool in (await watched.read()).tools] == ["echo", "put", "read"]
        # On the stream that was open before.
        await caller.start("put")
        await caller.flush()
        assert ruling.count("failures.UNKNOWN_TOOL") == 1
        assert await names(ruling, BACKEND) == []


@on_unix
async def test_the_local_user_may_do_everything_unless_a_rule_names_it(socket_host: SocketHost) -> None:
    async def tools() -> list[str]:
        async with channel_to(socket_host.callers_at) as channel:
            method: Any = channel.unary_unary(
                SERVICE + "ListTools", ListToolsRequest.SerializeToString, ListToolsResponse.FromString
            )
            return [tool.name for tool in (await method(ListToolsRequest())).tools]

    await attach(socket_host, tool("echo"), tool("read"))
    assert await tools() == ["echo", "read"]
    principal = (await socket_host.info()).caller_principal
    for rules, expected in (
        ([{"principal": "*", "tools": ["echo"]}], ["echo", "read"]),
        ([{"principal": principal, "tools": ["echo"]}], ["echo"]),
        ([], ["echo", "read"]),
    ):
        allow = tuple(Allow.model_validate(rule) for rule in rules)
        socket_host.settings = socket_host.settings.model_copy(update={"allow": allow})
        signal.raise_signal(signal.SIGHUP)
        while await tools() != expected:  # Each look is a round trip; the test's own timeout is the end of it.
            continue
