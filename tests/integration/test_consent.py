"""Where a person authorises: told to the caller alone, and completed by it."""

import os
from pathlib import Path

import pytest

from sidecar._gen.pillion.v1.call_pb2 import CallerHello
from sidecar._gen.pillion.v1.context_pb2 import Identity
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
)
from tests.support.oauth_stand_in import OAuthStandIn

pytestmark = pytest.mark.usefixtures("variables")

CONSENT_REQUIRED = FailureKind.FAILURE_KIND_CONSENT_REQUIRED


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
    failure = (await caller.outcome(call)).failure
    assert consent.service == "mail"
    assert consent.url.startswith(source.url)
    assert failure.kind == CONSENT_REQUIRED
    assert source.url not in failure.message
    assert "call again" in failure.message
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
