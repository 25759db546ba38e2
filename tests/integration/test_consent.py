"""Where a person authorises: told to the caller alone, and completed by it."""

import os
from pathlib import Path

import pytest

from sidecar._gen.pillion.v1.call_pb2 import CallerHello
from sidecar._gen.pillion.v1.context_pb2 import Identity, Resume
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outbound_pb2 import OutboundRequest
from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind
from sidecar.config import Allow
from tests.support import StartHost, attach, tool
from tests.support.issuing import (
    KEYED,
    USER,
    authorization_code,
    begin_consent,
    complete_consent,
    get,
    needing,
    pushed,
    started,
    value_of,
)
from tests.support.oauth_stand_in import OAuthStandIn
from tests.support.pausing import pause, resume, told

pytestmark = pytest.mark.usefixtures("variables")

CONSENT_REQUIRED = FailureKind.FAILURE_KIND_CONSENT_REQUIRED
TICKET_INVALID = FailureKind.FAILURE_KIND_TICKET_INVALID


@pytest.fixture
def transport() -> str:
    return "unix"


async def test_consent_is_for_the_caller_alone_and_completed_by_it(
    start_host: StartHost, source: OAuthStandIn, tmp_path: Path
) -> None:
    text = KEYED + authorization_code("mail", source.url)
    host = await started(start_host, text, "mail:user")
    worker, caller = await attach(host, needing("mail:user"), tool("read")), await host.caller()
    call = await caller.start()
    failure = (await caller.outcome(call)).failure
    assert (failure.kind, failure.retryable) == (CONSENT_REQUIRED, False)
    assert source.url not in repr(caller.frames)
    await caller.start("read")
    run = await worker.next_invoke()
    reply = await worker.ask(run.call, get("mail", mode=USER))
    assert reply.credential.authorization_required.service == "mail"
    assert source.url not in repr(worker.frames)

    query = source.authorize(begin_consent(text, "mail"), "ann")
    others = source.authorize(begin_consent(text, "mail", Identity(principal="bob")), "bob")
    refusals = [
        await complete_consent(host, "mail", others),
        await complete_consent(host, "mail", query, identity=Identity(principal="bob")),
        await complete_consent(host, "nothing", query),
        await complete_consent(host, "mail", query.replace("state=", "state=x")),
    ]
    assert len(set(refusals)) == 1
    assert str(refusals[0]).startswith("FAILED_PRECONDITION: That is not the answer")
    assert await complete_consent(host, "mail", query) is None
    assert await complete_consent(host, "mail", query) == refusals[0]
    await caller.start()
    assert (await pushed(worker, "mail")).startswith("access-ann")
    assert (await complete_consent(host, "mail", "x" * 70_000) or "").startswith("INVALID_ARGUMENT")
    assert (await complete_consent(host, "mail", query, identity=Identity(tenant="t" * 300)) or "").startswith(
        "INVALID_ARGUMENT"
    )


async def test_a_caller_that_takes_consent_is_told_where_and_nobody_else_is(
    start_host: StartHost, source: OAuthStandIn
) -> None:
    text = KEYED + authorization_code("mail", source.url)
    host = await started(start_host, text, "mail:user")
    worker = await attach(host, needing("mail:user"), tool("read"), tool("put"))
    caller, other = await host.caller(), await host.caller()
    for peer, methods in ((caller, ["consent"]), (other, ["roots/list"])):
        await peer.send(Frame(caller_hello=CallerHello(can_answer=methods)))
    call = await caller.start()
    consent = (await caller.next_of("consent", call)).consent
    paused = (await caller.outcome(call)).paused
    assert consent.service == "mail"
    assert consent.url.startswith(source.url)
    assert (paused.ask.kind, paused.HasField("ticket")) == ("consent", True)
    assert source.url not in str(paused)
    assert "authorise mail" in paused.ask.message
    bodies = [frame.WhichOneof("body") for frame in caller.frames[call]]
    assert bodies == ["started", "consent", "outcome"]
    assert (await other.outcome(await other.start())).failure.kind == CONSENT_REQUIRED

    # A running tool learns that a person has to, and its caller where; calls within calls are for no person.
    call = await caller.start("read")
    run = await worker.next_invoke()
    reply = await worker.ask(run.call, get("mail", mode=USER))
    assert reply.credential.authorization_required.service == "mail"
    pulled = (await caller.next_of("consent", call)).consent
    inner = OutboundRequest(request_id=2)
    inner.tools_call.tool = "put"
    await worker.send(Frame(call=run.call, outbound_request=inner))
    within = await worker.next_invoke()
    assert (await worker.ask(within.call, get("mail", mode=USER))).credential.HasField("authorization_required")
    await worker.result(run.call)
    await caller.outcome(call)
    assert [frame.WhichOneof("body") for frame in caller.frames[call]].count("consent") == 1
    assert not [frame for frame in other.frames[1] if frame.HasField("consent")]
    assert source.url not in repr(worker.frames)

    assert await complete_consent(host, "mail", source.authorize(pulled.url, "ann")) is None
    await caller.start()
    assert (await pushed(worker, "mail")).startswith("access-ann")


async def test_policy_says_for_whom_an_authorisation_may_be_completed(
    start_host: StartHost, source: OAuthStandIn
) -> None:
    text = KEYED + authorization_code("mail", source.url)
    host = await started(start_host, text, "mail:user")
    rule = Allow(principal=f"local:{os.getuid()}", tools=frozenset(("*",)), subjects=frozenset(("ann",)))
    host.settings = host.settings.model_copy(update={"allow": (rule,)})
    host.sidecar.reload(host.settings)
    bob = Identity(principal="bob")
    query = source.authorize(begin_consent(text, "mail", bob), "bob")
    assert str(await complete_consent(host, "mail", query, identity=bob)).startswith("PERMISSION_DENIED")
    ann = Identity(principal="ann")
    query = source.authorize(begin_consent(text, "mail", ann), "ann")
    assert await complete_consent(host, "mail", query, identity=ann) is None


async def test_a_call_that_pauses_for_consent_goes_on_once_it_is_given(
    start_host: StartHost, source: OAuthStandIn
) -> None:
    text = KEYED + authorization_code("mail", source.url)
    host = await started(start_host, text, "mail:user")
    worker, caller = await attach(host, needing("mail:user")), await host.caller()
    await caller.send(Frame(caller_hello=CallerHello(can_answer=["consent"])))
    call = await caller.start("echo", {"n": 1}, tool_call_id="t")
    consent = (await caller.next_of("consent", call)).consent
    ticket = (await caller.outcome(call)).paused.ticket
    assert await complete_consent(host, "mail", source.authorize(consent.url, "ann")) is None
    call = await resume(caller, ticket, "ignored")
    run = await worker.next_invoke()
    # The tool runs for the first time, and never knew.
    assert told(run) is None
    assert (run.invoke.arguments, run.context.tool_call_id) == (b'{"n": 1}', "t")
    assert value_of(run.context.credentials.services["mail"]).startswith("access-ann")
    await worker.result(run.call)
    assert (await caller.outcome(call)).HasField("result")


async def test_a_call_pauses_for_consent_once(start_host: StartHost, source: OAuthStandIn) -> None:
    text = KEYED + authorization_code("mail", source.url)
    host = await started(start_host, text, "mail:user")
    worker, caller = await attach(host, needing("mail:user")), await host.caller()
    await caller.send(Frame(caller_hello=CallerHello(can_answer=["consent"])))
    call = await caller.start()
    url = (await caller.next_of("consent", call)).consent.url
    ticket = (await caller.outcome(call)).paused.ticket
    again = await resume(caller, ticket)
    assert (await caller.next_of("consent", again)).consent.service == "mail"
    assert (await caller.outcome(again)).failure.kind == CONSENT_REQUIRED
    # Its tool was not run, so the ticket is good.
    assert await complete_consent(host, "mail", source.authorize(url, "ann")) is None
    await resume(caller, ticket)
    assert (await pushed(worker, "mail")).startswith("access-ann")


async def test_a_tool_that_paused_before_consent_is_wanted_has_its_answer_after_it(
    start_host: StartHost, source: OAuthStandIn
) -> None:
    text = KEYED + authorization_code("mail", source.url)
    host = await started(start_host, text, "mail:user")
    worker, caller = await attach(host), await host.caller()
    await caller.send(Frame(caller_hello=CallerHello(can_answer=["consent"])))
    call = await caller.start()
    await worker.send(pause((await worker.next_invoke()).call, state=b"kept"))
    first = (await caller.outcome(call)).paused.ticket
    await worker.aclose()
    worker = await attach(host, needing("mail:user"))
    call = await resume(caller, first, "answer")
    url = (await caller.next_of("consent", call)).consent.url
    second = (await caller.outcome(call)).paused.ticket
    assert (await caller.outcome(await resume(caller, first))).failure.kind == TICKET_INVALID
    assert await complete_consent(host, "mail", source.authorize(url, "ann")) is None
    await resume(caller, second)
    assert told(await worker.next_invoke()) == Resume(state=b"kept", answer=b'"answer"')


async def test_a_keyed_call_that_pauses_for_consent_is_one_request(start_host: StartHost, source: OAuthStandIn) -> None:
    text = KEYED + authorization_code("mail", source.url)
    host = await started(start_host, text, "mail:user")
    worker, caller = await attach(host, needing("mail:user")), await host.caller()
    await caller.send(Frame(caller_hello=CallerHello(can_answer=["consent"])))
    call = await caller.start(idempotency_key="k")
    url = (await caller.next_of("consent", call)).consent.url
    ticket = (await caller.outcome(call)).paused.ticket
    assert (await caller.call(idempotency_key="k")).paused.ticket == ticket
    assert await complete_consent(host, "mail", source.authorize(url, "ann")) is None
    assert (await caller.call(idempotency_key="k")).paused.ticket == ticket
    await resume(caller, ticket)
    await worker.next_invoke()
    assert len(worker.invoked) == 1
