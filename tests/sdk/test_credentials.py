"""Credentials in the SDK: pushed and pulled through a sidecar, refused in types, given by tests, and never shown."""

import asyncio
import copy
import json
import pickle
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import asdict
from typing import Any

import pytest

import pillion
import pillion.sync
from pillion import errors
from pillion._gen.pillion.v1.context_pb2 import Credential as CredentialMessage
from pillion._gen.pillion.v1.outbound_pb2 import CredentialAnswer, Reply
from pillion._worker.credentials import read_credential, write_credential
from pillion.credentials import ApiKey, AuthorizationRequired, Basic, Bearer, Custom, Headers, Secret, SecretBytes
from pillion.testing import Rehearsal
from pillion.testing import call as rehearse
from sidecar._gen.pillion.v1.context_pb2 import Identity
from tests.sdk.conftest import StartWorker
from tests.support import SocketHost, StartHost
from tests.support.http_stand_in import Answered
from tests.support.issuing import (
    KEYED,
    REDIRECT,
    authorization_code,
    begin_consent,
    client_credentials,
    section,
    set_variables,
)
from tests.support.oauth_stand_in import OAuthStandIn

USER = pillion.CredentialMode.USER


@pytest.fixture
async def source(transport: str) -> AsyncIterator[OAuthStandIn]:
    async with OAuthStandIn() as standing_in:
        yield standing_in


@pytest.fixture
def text(source: OAuthStandIn, monkeypatch: pytest.MonkeyPatch) -> str:
    """The settings of credentials."""
    set_variables(monkeypatch)
    return (
        KEYED
        + section("github", "static", insecure=True, values={"token": "canary-github"})
        + client_credentials("jira", source.url)
        + authorization_code("mail", source.url)
        + section("hidden", "static", insecure=True, values={"token": "canary-hidden"})
    )


@pytest.fixture
async def host(start_host: StartHost, text: str) -> SocketHost:
    """A sidecar with credentials, in place of the one without."""
    made = await start_host(credentials=text, granted={"main": ("github", "jira", "mail:user", "unknown")})
    assert isinstance(made, SocketHost)
    return made


async def test_what_a_tool_needs_is_there(caller: pillion.Host, start_worker: StartWorker) -> None:
    seen: list[dict[str, str]] = []

    @pillion.tool(needs=[pillion.Need("github")])
    async def echo(ctx: pillion.ToolContext) -> bool:
        assert isinstance(ctx.credential, Bearer)
        assert ctx.credential is ctx.credentials["github"]
        seen.append(ctx.credential.http_headers())
        with pytest.raises(KeyError, match="declare it by needs="):
            ctx.credentials["jira"]
        return ctx.has_credentials

    await start_worker(echo)
    assert await caller.call("echo", timeout=10) is True
    assert seen == [{"authorization": "Bearer canary-github"}]


async def test_a_tool_asks_for_what_it_did_not_declare(caller: pillion.Host, start_worker: StartWorker) -> None:
    seen: list[Any] = []

    @pillion.tool
    async def echo(ctx: pillion.ToolContext) -> None:
        assert ctx.credential is None
        first = await ctx.credentials.request("jira")
        seen.extend((first, await ctx.credentials.request("jira")))
        seen.append(await ctx.credentials.request("jira", force_refresh=True))
        seen.append(await ctx.credentials.request("mail", mode=USER))

    await start_worker(echo)
    await caller.call("echo", timeout=10)
    first, again, forced, authorization = seen
    assert first.token == again.token != forced.token
    assert 3_500 < first.expires_in <= 3_600
    assert authorization == AuthorizationRequired("mail")


async def test_a_refusal_has_its_class(caller: pillion.Host, start_worker: StartWorker, source: OAuthStandIn) -> None:
    source.fault = lambda _: Answered(500)
    refusals: dict[str, errors.RequestRefused] = {}

    @pillion.tool
    async def echo(ctx: pillion.ToolContext) -> None:
        for service in ("hidden", "unknown", "no/service", "jira"):
            try:
                await ctx.credentials.request(service)
            except errors.RequestRefused as refused:
                refusals[service] = refused

    await start_worker(echo)
    await caller.call("echo", timeout=10)
    assert {service: type(refused) for service, refused in refusals.items()} == {
        "hidden": errors.RequestDenied,
        "unknown": errors.CredentialUnconfigured,
        "no/service": errors.RequestInvalid,
        "jira": errors.CredentialProviderDown,
    }
    assert [refused.retryable for refused in refusals.values()] == [False, False, False, True]


async def test_a_tool_without_its_credential_does_not_run(
    caller: pillion.Host, start_worker: StartWorker, source: OAuthStandIn
) -> None:
    def needing(service: str, **fields: Any) -> Any:
        @pillion.tool(name=service, needs=[pillion.Need(service, **fields)])
        async def never() -> None:
            raise AssertionError("it ran")

        return never

    source.fault = lambda _: Answered(500)
    names = {"echo": "hidden", "read": "unknown", "put": "jira", "send": "mail"}
    tools = []
    for name, service in names.items():
        made = needing(service, **({"mode": USER} if service == "mail" else {}))
        made.name = made.descriptor.name = name
        tools.append(made)
    await start_worker(*tools)
    with pytest.raises(errors.Denied, match="may not be issued"):
        await caller.call("echo")
    with pytest.raises(errors.CredentialUnavailable, match="No credential is configured for unknown") as unknown:
        await caller.call("read")
    assert not unknown.value.retryable
    with pytest.raises(errors.CredentialUnavailable) as down:
        await caller.call("put")
    assert down.value.retryable
    assert down.value.retry_after == 1
    with pytest.raises(errors.ConsentRequired, match="authorise first") as consent:
        await caller.call("send")
    assert "http" not in str(consent.value)


async def test_a_refusal_that_a_tool_lets_out_ends_its_call_as_such(
    caller: pillion.Host, start_worker: StartWorker
) -> None:
    @pillion.tool(effects=pillion.READ)
    async def echo(ctx: pillion.ToolContext) -> None:
        await ctx.credentials.request("unknown")

    await start_worker(echo)
    with pytest.raises(errors.CredentialUnavailable, match=r"add a \[\[credential\]\]") as failed:
        await caller.call("echo")
    assert failed.value.side_effects is pillion.SideEffects.NONE


async def test_a_caller_completes_an_authorisation(
    caller: pillion.Host, start_worker: StartWorker, source: OAuthStandIn, text: str
) -> None:
    ann = pillion.Identity(principal="ann")

    @pillion.tool(needs=[pillion.Need("mail", mode=USER)])
    async def echo(ctx: pillion.ToolContext) -> None:
        assert isinstance(ctx.credential, Bearer)

    await start_worker(echo)
    query = source.authorize(begin_consent(text, "mail", Identity(principal="ann")), "ann")
    with pytest.raises(errors.CredentialUnavailable, match="That is not the answer"):
        await caller.complete_consent("mail", query)
    with pytest.raises(errors.InvalidArguments):
        await caller.complete_consent("mail", "x" * 70_000)
    await caller.complete_consent("mail", Secret(f"{REDIRECT}?{query}"), ann)
    await caller.call("echo", identity=ann)
    with pytest.raises(errors.ConsentRequired):
        await caller.call("echo")


async def test_a_caller_is_told_where_a_person_authorises_and_completes_that(
    socket_host: SocketHost, start_worker: StartWorker, source: OAuthStandIn
) -> None:
    told: asyncio.Queue[pillion.Question] = asyncio.Queue()

    @pillion.tool(needs=[pillion.Need("mail", mode=USER)])
    async def echo() -> str:
        return "sent"

    await start_worker(echo)
    async with pillion.connect(socket_host.callers_at, can_answer={"consent": told.put}) as caller:
        with pytest.raises(errors.CallPaused, match="authorise mail") as pause:
            await caller.call("echo")
        assert pause.value.paused.kind == "consent"
        question = await asyncio.wait_for(told.get(), 10)
        assert (question.method, question.params["service"]) == ("consent", "mail")
        await caller.complete_consent("mail", source.authorize(question.params["url"], "ann"))
        assert await caller.resume(pause.value) == "sent"


async def test_a_caller_without_asyncio_does_so_too(socket_host: SocketHost, source: OAuthStandIn, text: str) -> None:
    query = source.authorize(begin_consent(text, "mail"), "ann")

    def complete() -> None:
        with pillion.sync.connect(socket_host.callers_at) as connected:
            connected.complete_consent("mail", f"?{query}")
            with pytest.raises(errors.CredentialUnavailable):
                connected.complete_consent("mail", query)

    await asyncio.to_thread(complete)


# --- without a sidecar


@pillion.tool(needs=[pillion.Need("github")])
async def fetch(ctx: pillion.ToolContext) -> str:
    """Says what it got."""
    assert ctx.has_credentials
    assert isinstance(ctx.credential, Basic)
    other = await ctx.credentials.request("jira")
    return f"{ctx.credential.username} {type(other).__name__}"


async def test_a_test_gives_a_tool_credentials() -> None:
    credentials: Mapping[str, pillion.Credential | AuthorizationRequired] = {
        "github": Basic("ann", Secret("canary")),
        "jira": AuthorizationRequired("jira"),
    }
    assert await rehearse(fetch, credentials=credentials) == "ann AuthorizationRequired"
    rehearsal = Rehearsal()
    await rehearse(fetch, credentials=credentials, rehearsal=rehearsal)
    assert [request.credential_get.service for request in rehearsal.requests] == ["jira"]
    with pytest.raises(errors.CredentialUnconfigured):
        await rehearse(fetch, credentials={"github": Basic("ann", Secret("canary"))})
    with pytest.raises(errors.CredentialUnavailable, match="pass credentials="):
        await rehearse(fetch)
    with pytest.raises(errors.ConsentRequired):
        await rehearse(fetch, credentials={"github": AuthorizationRequired("github")})


KINDS = [
    Bearer(Secret("canary"), 9.5),
    ApiKey(Secret("canary"), "x-key"),
    Basic("ann", Secret("canary")),
    Headers({"x": Secret("canary")}),
    Custom({"x": SecretBytes(b"canary")}, 3),
]


@pytest.mark.parametrize("credential", KINDS, ids=lambda credential: type(credential).__name__)
def test_a_credential_is_read_as_it_was_written(credential: Any) -> None:
    assert read_credential(write_credential(credential)) == credential


@pytest.mark.parametrize("credential", KINDS, ids=lambda credential: type(credential).__name__)
def test_a_credential_prints_nothing(credential: Any) -> None:
    for shown in (repr(credential), str(credential), f"{credential}", f"{credential!r:>400}", f"{[credential]}"):
        assert "canary" not in shown


@pytest.mark.parametrize("secret", [Secret("canary"), SecretBytes(b"canary")], ids=["text", "bytes"])
def test_a_secret_is_not_kept(secret: Any) -> None:
    ways: tuple[Callable[[Any], Any], ...] = (pickle.dumps, copy.copy, copy.deepcopy, json.dumps, list, bytes)
    for keep in ways:
        with pytest.raises(TypeError) as refused:
            keep(secret)
        assert "canary" not in str(refused.value)
    assert f"{secret:>40}" == repr(secret)


@pytest.mark.parametrize("credential", KINDS, ids=lambda credential: type(credential).__name__)
def test_a_credential_is_not_taken_apart(credential: Any) -> None:
    for take in (asdict, pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError):
            take(credential)


def test_http_headers_are_what_is_sent() -> None:
    assert Bearer(Secret("t")).http_headers() == {"authorization": "Bearer t"}
    assert ApiKey(Secret("k"), "x-key").http_headers() == {"x-key": "k"}
    assert Basic("ann", Secret("p:w")).http_headers() == {"authorization": "Basic YW5uOnA6dw=="}
    assert Headers({"x": Secret("y")}).http_headers() == {"x": "y"}


async def test_an_answer_of_no_known_kind_is_none() -> None:
    @pillion.tool
    async def asks(ctx: pillion.ToolContext) -> None:
        await ctx.credentials.request("github")

    async def answered(answer: CredentialAnswer) -> None:
        await rehearse(asks, answers=lambda _: Reply(credential=answer))

    for answer in (CredentialAnswer(), CredentialAnswer(issued=CredentialMessage())):
        with pytest.raises(errors.CredentialRefused, match="does not know"):
            await answered(answer)


# --- a sidecar without any


async def test_where_none_are_configured_a_tool_knows_beforehand(
    start_host: StartHost, start_worker: StartWorker
) -> None:
    without = await start_host()
    assert isinstance(without, SocketHost)

    @pillion.tool(effects=pillion.READ)
    async def echo(ctx: pillion.ToolContext) -> bool:
        with pytest.raises(errors.CredentialUnconfigured, match=r"has no credentials; add a \[\[credential\]\]"):
            await ctx.credentials.request("github")
        return ctx.has_credentials

    @pillion.tool(needs=[pillion.Need("github")])
    async def read() -> None:
        raise AssertionError("it ran")

    await start_worker(echo, read, target=without.workers_at)
    async with pillion.connect(without.callers_at) as caller:
        assert await caller.call("echo") is False
        with pytest.raises(errors.CredentialUnavailable, match="read needs a credential for github"):
            await caller.call("read")
        with pytest.raises(errors.CredentialUnavailable, match="That is not the answer"):
            await caller.complete_consent("github", "code=x&state=y")
