"""Credentials through the whole sidecar: pushed and pulled, refused in types, and nothing left behind."""

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest

from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outbound_pb2 import OutboundRequest, ReplyErrorCode
from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind
from sidecar._gen.pillion.v1.tool_pb2 import CredentialNeed
from sidecar.config import ConfigRefused
from sidecar.credentials.making import Maker
from sidecar.credentials.sealed_file import Entry
from sidecar.credentials.secret import Secret
from tests.support import READ, CallLimits, SocketHost, StartHost, attach, oidc, tool
from tests.support.http_stand_in import Answered
from tests.support.issuing import (
    KEYED,
    USER,
    VARIABLES,
    authorization_code,
    begin_consent,
    client_credentials,
    complete_consent,
    get,
    needing,
    pushed,
    section,
    settings_of,
    started,
    store_login,
    value_of,
)
from tests.support.oauth_stand_in import OAuthStandIn

pytestmark = pytest.mark.usefixtures("variables")

CANCELLED = FailureKind.FAILURE_KIND_CANCELLED
CONSENT_REQUIRED = FailureKind.FAILURE_KIND_CONSENT_REQUIRED
CREDENTIAL_UNAVAILABLE = FailureKind.FAILURE_KIND_CREDENTIAL_UNAVAILABLE
DENIED = FailureKind.FAILURE_KIND_DENIED
TIMEOUT = FailureKind.FAILURE_KIND_TIMEOUT
PROVIDER_DOWN = ReplyErrorCode.REPLY_ERROR_CODE_CREDENTIAL_PROVIDER_DOWN
CALLS = 200
PAST = 1.0


@pytest.fixture
def transport() -> str:
    return "unix"


def held(host: SocketHost) -> int:
    """How many secrets calls hold now."""
    return host.sidecar._redactor.statistics().held


# --- each provider, pushed and pulled


def from_environment(directory: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("SERVICE_TOKEN", "canary-token")
    return section("service", "environment", variable="SERVICE_TOKEN")


def from_mounted_files(directory: Path, _monkeypatch: pytest.MonkeyPatch) -> str:
    mounted = directory / "mounted"
    mounted.mkdir()
    (mounted / "token").write_text("canary-token\n")
    return section("service", "mounted", directory=str(mounted))


def from_the_encrypted_file(directory: Path, _monkeypatch: pytest.MonkeyPatch) -> str:
    text = KEYED + section("service", "encrypted_file")
    (directory / "state").mkdir(mode=0o700)
    maker = Maker(settings_of(text), directory / "state", VARIABLES)
    maker.sealed_file().put(Entry("service", None, "bearer", {"token": Secret(b"canary-token")}, None, None))
    return text


@pytest.mark.parametrize("supply", [from_environment, from_mounted_files, from_the_encrypted_file])
async def test_a_stored_credential_is_pushed_and_pulled(
    supply: Callable[[Path, pytest.MonkeyPatch], str],
    start_host: StartHost,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host = await started(start_host, await asyncio.to_thread(supply, tmp_path, monkeypatch), "service")
    worker, caller = await attach(host, needing("service")), await host.caller()
    call = await caller.start()
    run = await worker.next_invoke()
    assert run.context.has_credentials
    assert value_of(run.context.credentials.services["service"]) == "canary-token"
    reply = await worker.ask(run.call, get("service"))
    assert value_of(reply.credential.issued) == "canary-token"
    assert held(host) == 1
    await worker.result(run.call)
    assert (await caller.outcome(call)).HasField("result")
    assert held(host) == 0


async def test_what_is_there_is_said_beforehand(start_host: StartHost, source: OAuthStandIn) -> None:
    host = await start_host(
        credentials=client_credentials("service", source.url),
        granted={"main": ("service",), "other": ("service:user",)},
    )
    caller = await host.caller()
    served = await attach(host)
    refused = await attach(host, tool("other"), worker="other")
    await caller.start("echo")
    assert (await served.next_invoke()).context.has_credentials
    await caller.start("other")
    run = await refused.next_invoke()
    assert not run.context.has_credentials
    assert not run.context.HasField("credentials")
    reply = await refused.ask(run.call, get("service"))
    assert reply.error.code == ReplyErrorCode.REPLY_ERROR_CODE_DENIED
    assert source.asked.total() == 0


async def test_needs_are_asked_for_together_and_each_is_pushed(start_host: StartHost, source: OAuthStandIn) -> None:
    text = client_credentials("one", source.url) + client_credentials("two", source.url)
    host = await started(start_host, text, "one", "two")
    worker, caller = await attach(host, needing("one", "two")), await host.caller()
    source.hanging_before = asyncio.Event()
    await caller.start()
    assert [await source.arrived.get() for _ in range(2)] == ["client_credentials"] * 2
    source.hanging_before.set()
    services = (await worker.next_invoke()).context.credentials.services
    assert set(services) == {"one", "two"}
    assert len({value_of(credential) for credential in services.values()}) == 2
    assert all(3_500 < credential.expires_in.seconds <= 3_600 for credential in services.values())


async def test_one_need_that_fails_fails_the_call_and_leaves_nothing(
    start_host: StartHost, source: OAuthStandIn
) -> None:
    text = client_credentials("one", source.url) + client_credentials("two", source.url, scopes=["b"])
    host = await started(start_host, text, "one", "two")
    worker, caller = await attach(host, needing("one", "two")), await host.caller()
    release = source.hanging_before = asyncio.Event()

    def fails(asked: Any) -> Answered | None:
        return Answered(500) if asked.form.get("scope") == "b" else None

    source.fault = fails
    call = await caller.start()
    for _ in range(2):
        await source.arrived.get()
    release.set()
    failure = (await caller.outcome(call)).failure
    assert (failure.kind, failure.retryable) == (CREDENTIAL_UNAVAILABLE, True)
    assert "two" in failure.message
    assert worker.invoked == []
    assert held(host) == 0


# --- fresh, once for all


async def test_guarantee_06_200_calls_on_one_expired_token_make_one_refresh(
    start_host: StartHost, source: OAuthStandIn, tmp_path: Path
) -> None:
    source.live["refresh-old"] = "ann"
    (tmp_path / "state").mkdir(mode=0o700)
    await asyncio.to_thread(store_login, tmp_path / "state", "mail", "access-old", "refresh-old", expires_at=PAST)
    text = KEYED + authorization_code("mail", source.url)
    host = await started(start_host, text, "mail:user")
    worker = await attach(host, needing("mail:user"), concurrency=CALLS)
    caller = await host.caller()
    source.hanging = asyncio.Event()
    calls = [await caller.start() for _ in range(CALLS)]
    await source.arrived.get()
    await caller.flush()
    source.hanging.set()
    tokens = {await pushed(worker, "mail") for _ in range(CALLS)}
    for call in calls:
        assert (await caller.outcome(call)).HasField("result")
    assert len(tokens) == 1
    assert tokens.isdisjoint({"access-old"})
    assert source.asked == {"refresh_token": 1}


async def test_a_forced_refresh_is_another_token_and_the_next_call_has_it(
    start_host: StartHost, source: OAuthStandIn
) -> None:
    host = await started(start_host, client_credentials("service", source.url), "service")
    worker, caller = await attach(host, needing("service")), await host.caller()
    await caller.start()
    run = await worker.next_invoke()
    first = value_of(run.context.credentials.services["service"])
    assert value_of((await worker.ask(run.call, get("service"))).credential.issued) == first
    second = value_of((await worker.ask(run.call, get("service", 2, force_refresh=True))).credential.issued)
    assert second != first
    await caller.start()
    assert await pushed(worker, "service") == second
    assert source.asked == {"client_credentials": 2}


async def test_a_call_that_runs_again_is_issued_its_credentials_again(
    start_host: StartHost, source: OAuthStandIn
) -> None:
    host = await started(start_host, client_credentials("service", source.url), "service")
    first = await attach(host, needing("service", effects=READ))
    caller = await host.caller()
    call = await caller.start()
    run = await first.next_invoke()
    old = value_of(run.context.credentials.services["service"])
    new = value_of((await first.ask(run.call, get("service", force_refresh=True))).credential.issued)
    second = await attach(host, needing("service", effects=READ))
    first.cut()
    again = await second.next_invoke()
    assert again.context.attempt == 2
    assert again.context.has_credentials
    assert value_of(again.context.credentials.services["service"]) == new != old
    await second.result(again.call)
    assert (await caller.outcome(call)).HasField("result")
    assert held(host) == 0


# --- providers that fail


@pytest.mark.parametrize(
    ("answered", "retryable"),
    [
        (Answered(500), True),
        (Answered(200, b"not json"), True),
        (Answered(400, b'{"error": "invalid_scope", "error_description": "canary of theirs"}'), False),
    ],
    ids=["500", "nonsense", "refused"],
)
async def test_a_provider_that_fails_fails_the_call_in_types(
    start_host: StartHost, source: OAuthStandIn, answered: Answered, *, retryable: bool
) -> None:
    host = await started(start_host, client_credentials("service", source.url), "service")
    worker, caller = await attach(host, needing("service"), tool("read")), await host.caller()
    source.fault = lambda _: answered
    failure = (await caller.call("echo")).failure
    assert (failure.kind, failure.retryable) == (CREDENTIAL_UNAVAILABLE, retryable)
    assert "canary" not in failure.message
    await caller.start("read")
    run = await worker.next_invoke()
    error = (await worker.ask(run.call, get("service"))).error
    code = PROVIDER_DOWN if retryable else ReplyErrorCode.REPLY_ERROR_CODE_CREDENTIAL_REFUSED
    assert (error.code, error.retryable) == (code, retryable)


@pytest.mark.parametrize("odd", ["soon", -5, 0, 1e300, True, [1], None])
async def test_an_odd_lifetime_is_a_token_or_a_typed_refusal(
    start_host: StartHost, source: OAuthStandIn, odd: Any
) -> None:
    host = await started(start_host, client_credentials("service", source.url), "service")
    worker, caller = await attach(host, needing("service")), await host.caller()
    source.expires_in = odd
    call = await caller.start()
    came = asyncio.ensure_future(worker.next_invoke())
    ended = asyncio.ensure_future(caller.outcome(call))
    await asyncio.wait((came, ended), return_when=asyncio.FIRST_COMPLETED)
    if ended.done():
        came.cancel()
        assert ended.result().failure.kind == CREDENTIAL_UNAVAILABLE
    else:
        ended.cancel()
        credential = (await came).context.credentials.services["service"]
        assert value_of(credential).startswith("access-")
        assert credential.expires_in.seconds >= 0
    await asyncio.gather(came, ended, return_exceptions=True)


async def test_a_call_does_not_wait_for_a_provider_beyond_its_time(start_host: StartHost, source: OAuthStandIn) -> None:
    host = await started(start_host, client_credentials("service", source.url), "service")
    worker, caller = await attach(host, needing("service"), tool("read")), await host.caller()
    source.hanging = asyncio.Event()
    assert (await caller.call("echo", timeout=0.2)).failure.kind == TIMEOUT
    cancelled = await caller.start("echo")
    await caller.flush()
    await caller.cancel(cancelled)
    assert (await caller.outcome(cancelled)).failure.kind == CANCELLED
    await caller.start("read")
    run = await worker.next_invoke()
    request = get("service")
    request.timeout.FromMilliseconds(200)
    assert (await worker.ask(run.call, request)).error.code == PROVIDER_DOWN
    assert held(host) == 0
    # What was begun goes on: the token is remembered, though nobody waits for it any more.
    source.hanging.set()
    await caller.start("echo")
    assert (await pushed(worker, "service")).startswith("access-machine")
    assert source.asked == {"client_credentials": 1}


async def test_a_call_that_ends_while_its_tool_asks_leaves_nothing(start_host: StartHost, source: OAuthStandIn) -> None:
    host = await started(
        start_host, client_credentials("service", source.url), "service", calls=CallLimits(cancel_grace=0.1)
    )
    worker, caller = await attach(host), await host.caller()
    source.hanging = asyncio.Event()
    call = await caller.start()
    run = await worker.next_invoke()
    asking = asyncio.ensure_future(worker.ask(run.call, get("service")))
    await source.arrived.get()
    await caller.cancel(call)
    assert (await caller.outcome(call)).failure.kind == CANCELLED
    assert (await asking).error.code == ReplyErrorCode.REPLY_ERROR_CODE_CANCELLED
    source.hanging.set()
    await caller.flush()
    assert held(host) == 0


async def test_a_sidecar_that_stops_does_not_wait_for_ever_for_a_provider(
    start_host: StartHost, source: OAuthStandIn
) -> None:
    host = await started(start_host, client_credentials("service", source.url), "service")
    await attach(host, needing("service"))
    caller = await host.caller()
    source.hanging = asyncio.Event()
    call = await caller.start(timeout=0.2)
    await source.arrived.get()
    assert (await caller.outcome(call)).failure.kind == TIMEOUT
    began = time.monotonic()
    host.stop()
    await host.ended()
    assert time.monotonic() - began < 15


# --- who may be issued what, and reloads


def granted(host: SocketHost, *words: str) -> None:
    """Has the sidecar reload with this in place of what `main` may be issued."""
    workers = tuple(
        each.model_copy(update={"credentials": words}) if each.name == "main" else each for each in host.settings.worker
    )
    host.settings = host.settings.model_copy(update={"worker": workers})
    host.sidecar.reload(host.settings)


async def test_a_reload_changes_what_a_worker_may_be_issued(start_host: StartHost, source: OAuthStandIn) -> None:
    host = await started(start_host, client_credentials("service", source.url))
    worker, caller = await attach(host), await host.caller()
    await caller.start()
    run = await worker.next_invoke()
    assert not run.context.has_credentials
    denied = ReplyErrorCode.REPLY_ERROR_CODE_DENIED
    assert (await worker.ask(run.call, get("service"))).error.code == denied

    granted(host, "service")
    assert (await worker.ask(run.call, get("service", 2))).credential.HasField("issued")
    newer = await attach(host)
    await caller.start()
    run = await newer.next_invoke()
    assert run.context.has_credentials
    granted(host)
    assert (await newer.ask(run.call, get("service"))).error.code == denied
    other = host.settings.model_copy(update={"credential": ()})
    with pytest.raises(ConfigRefused, match="credential cannot change"):
        host.sidecar.reload(other)


async def test_what_was_taken_away_while_a_call_waited_does_not_reach_a_worker(
    start_host: StartHost, source: OAuthStandIn
) -> None:
    host = await started(start_host, client_credentials("service", source.url), "service")
    worker, caller = await attach(host, needing("service"), concurrency=1), await host.caller()
    await caller.start()
    run = await worker.next_invoke()
    await caller.start()
    await caller.flush()
    granted(host)
    await worker.next_of("drain")
    newer = await attach(host, needing("service"), concurrency=1)
    context = (await newer.next_invoke()).context
    assert not context.has_credentials
    assert not context.credentials.services
    await worker.result(run.call)


# --- inside other calls


async def test_a_tool_that_another_one_calls_has_its_own_credentials(
    start_host: StartHost, source: OAuthStandIn
) -> None:
    text = KEYED + client_credentials("service", source.url) + authorization_code("mail", source.url)
    host = await started(start_host, text, "service", "mail:user")
    inner = [CredentialNeed(service="service")], [CredentialNeed(service="mail", mode=USER)]
    worker = await attach(host, tool("echo"), tool("read", needs=inner[0]), tool("put", needs=inner[1]))
    caller = await host.caller()
    call = await caller.start("echo")
    outer = await worker.next_invoke()
    asked = OutboundRequest(request_id=1)
    asked.tools_call.tool = "read"
    await worker.send(Frame(call=outer.call, outbound_request=asked))
    run = await worker.next_invoke()
    token = value_of(run.context.credentials.services["service"])
    await worker.fail(run.call, message=f"Not with {token}.")
    answered = (await worker.next_of("reply", outer.call)).reply
    assert answered.tool_outcome.failure.message == "Not with [redacted]."
    asked = OutboundRequest(request_id=2)
    asked.tools_call.tool = "put"
    answered = await worker.ask(outer.call, asked)
    assert answered.tool_outcome.failure.kind == CONSENT_REQUIRED
    await worker.result(outer.call)
    assert (await caller.outcome(call)).HasField("result")
    assert held(host) == 0


# --- a real provider


async def test_a_real_provider_through_the_whole_sidecar(
    start_host: StartHost, monkeypatch: pytest.MonkeyPatch, issuer: str
) -> None:
    monkeypatch.setenv("CLIENT_SECRET", oidc.CLIENT_SECRET)
    client = {"client_id": "by-header", "client_secret_variable": "CLIENT_SECRET", "token_url": f"{issuer}/token"}
    redirect = "http://127.0.0.1:8123/callback"
    text = (
        KEYED
        + section("machine", "client_credentials", **client, scopes=["read"])
        + section(
            "mail",
            "authorization_code",
            **client,
            authorization_url=f"{issuer}/auth",
            redirect_url=redirect,
            scopes=["openid", "offline_access"],
            parameters={"prompt": "consent"},
        )
    )
    host = await started(start_host, text, "machine", "mail:user")
    worker, caller = await attach(host, needing("machine", "mail:user")), await host.caller()
    assert (await caller.call()).failure.kind == CONSENT_REQUIRED
    back = await oidc.authorize(begin_consent(text, "mail", redirect=redirect), "ann", redirect=redirect)
    assert await complete_consent(host, "mail", urlsplit(back).query) is None
    await caller.start()
    run = await worker.next_invoke()
    tokens = {name: value_of(credential) for name, credential in run.context.credentials.services.items()}
    fresh = await worker.ask(run.call, get("mail", mode=USER, force_refresh=True))
    tokens["refreshed"] = value_of(fresh.credential.issued)
    assert len(set(tokens.values())) == 3
    async with httpx2.AsyncClient(trust_env=False, auth=("by-header", oidc.CLIENT_SECRET)) as http:
        for name, token in tokens.items():
            facts = (await http.post(f"{issuer}/token/introspection", data={"token": token})).json()
            assert facts["active"] is True, name
            assert facts.get("sub") == (None if name == "machine" else "ann")


@pytest.fixture(scope="module")
def issuer() -> Iterator[str]:
    yield from oidc.running()
