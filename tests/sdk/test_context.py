import asyncio
import pickle
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import pillion
from pillion import errors
from pillion._gen.pillion.v1 import artifacts_pb2, bus_pb2, outbound_pb2, outcome_pb2
from pillion._gen.pillion.v1.context_pb2 import ToolContext as Message
from pillion._gen.pillion.v1.frame_pb2 import Frame
from pillion._gen.pillion.v1.outbound_pb2 import OutboundRequest, Reply
from pillion._worker.credentials import ApiKey, Basic, Bearer, Custom, Headers
from pillion._worker.requests import Requests
from pillion.bus import BusLevel, Expectation, Lagged
from pillion.testing import Rehearsal
from pillion.testing import call as rehearse
from tests.sdk.conftest import StartWorker

TEXT = artifacts_pb2.ARTIFACT_SHAPE_TEXT
FAILED = outcome_pb2.FAILURE_KIND_TOOL_FAILED
MISSING = outbound_pb2.REPLY_ERROR_CODE_ARTIFACT_NOT_FOUND


async def test_every_fact_of_the_call_is_there(caller: pillion.Host, start_worker: StartWorker) -> None:
    seen: list[pillion.ToolContext] = []

    @pillion.tool
    async def echo(ctx: pillion.ToolContext) -> None:
        seen.append(ctx)

    await start_worker(echo)
    trace = pillion.Trace("00-" + "1" * 32 + "-" + "2" * 16 + "-01", "a=b")
    identity = pillion.Identity("acme", None, "c1")
    async with caller.start(
        "echo",
        timeout=30,
        idle_timeout=20,
        identity=identity,
        run_id="r1",
        session_id="s1",
        tool_call_id="t1",
        iteration=2,
        parent_anchor="canary-anchor",
        trace=trace,
    ) as call:
        await call.result()
    [context] = seen
    assert context.execution_id == call.execution_id
    assert (context.tool_call_id, context.iteration, context.run_id, context.session_id) == ("t1", 2, "r1", "s1")
    assert context.identity == identity
    assert context.trace == trace
    assert context.idle_timeout == 20
    assert 0 < context.remaining <= 30
    assert context.deadline == pytest.approx(time.monotonic() + context.remaining, abs=1)
    assert context.attempt == 1
    assert context.caller_principal is not None
    assert context.caller_principal.reveal().startswith("local:")
    assert context.parent_anchor is not None
    assert context.parent_anchor.reveal() == "canary-anchor"
    assert (context.cancelled, context.cancel_reason, context.resume) == (False, None, None)
    assert context.teardown_scopes == frozenset(pillion.TeardownScope)
    assert len(context.session_key(pillion.TeardownScope.RUN) or "") == 12
    assert not any((context.has_credentials, context.has_bus))
    assert context.has_artifacts
    assert context.has_tools
    assert context.tools.remaining_depth == 8
    assert context.credential is None
    assert len(context.credentials) == 0
    assert context.wanted is None
    assert "canary" not in repr(context)
    with pytest.raises(TypeError):
        pickle.dumps(context)


async def test_what_was_not_named_is_none(caller: pillion.Host, start_worker: StartWorker) -> None:
    seen: list[pillion.ToolContext] = []

    @pillion.tool
    async def echo(ctx: pillion.ToolContext) -> None:
        seen.append(ctx)

    await start_worker(echo)
    await caller.call("echo")
    [context] = seen
    facts = (
        context.run_id,
        context.session_id,
        context.identity,
        context.parent_anchor,
        context.trace,
        context.idle_timeout,
    )
    assert facts == (None,) * 6
    assert context.iteration == 0
    assert context.tool_call_id


ASKS: dict[str, Callable[[pillion.ToolContext], Awaitable[Any]]] = {
    "artifacts.put": lambda ctx: ctx.artifacts.put({"a": 1}, kind="k", media_type="application/json", expires_in=5),
    "artifacts.head": lambda ctx: ctx.artifacts.head("art_x"),
    "artifacts.get": lambda ctx: ctx.artifacts.get("art_x"),
    "artifacts.delete": lambda ctx: ctx.artifacts.delete("art_x"),
    "artifacts.list": lambda ctx: anext(aiter(ctx.artifacts.list())),
    "kv.get": lambda ctx: ctx.kv.get("b", "k"),
    "kv.put": lambda ctx: ctx.kv.put("b", "k", b"v", expect=Expectation.ABSENT, ttl=3),
    "kv.delete": lambda ctx: ctx.kv.delete("b", "k", expect="1"),
    "kv.keys": lambda ctx: anext(aiter(ctx.kv.keys("b"))),
    "kv.watch": lambda ctx: ctx.kv.watch("b").__aenter__(),
    "kv.lease": lambda ctx: ctx.kv.lease("b", "k", 3),
    "pubsub.publish": lambda ctx: ctx.pubsub.publish("a.b", b"x", headers={"h": "1"}),
    "pubsub.subscribe": lambda ctx: ctx.pubsub.subscribe("a.>", durable="d").__aenter__(),
    "jobs.enqueue": lambda ctx: ctx.jobs.enqueue("q", b"x", dedup_key="d", delay=1),
    "jobs.claim": lambda ctx: ctx.jobs.claim("q", 5, wait=1),
}


@pytest.mark.parametrize("keeps_artifacts", [False])
@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_what_the_sidecar_does_not_do_is_refused_by_it(
    caller: pillion.Host, start_worker: StartWorker, kind: str
) -> None:
    refusals: dict[str, errors.RequestRefused] = {}
    if kind == "async":

        @pillion.tool
        async def echo(ctx: pillion.ToolContext) -> None:
            for name, ask in ASKS.items():
                try:
                    await ask(ctx)
                except errors.RequestRefused as refused:
                    refusals[name] = refused
    else:

        @pillion.tool
        def echo(ctx: pillion.ToolContext) -> None:
            async def asked(ask: Callable[[pillion.ToolContext], Awaitable[Any]]) -> Any:
                return await ask(ctx)

            for name, ask in ASKS.items():
                try:
                    ctx.wait(asked(ask))
                except errors.RequestRefused as refused:
                    refusals[name] = refused

    await start_worker(echo)
    await caller.call("echo", timeout=20)
    assert refusals.keys() == ASKS.keys()
    for refused in refusals.values():
        assert isinstance(refused, errors.RequestUnsupported)
        assert refused.code is errors.ReplyCode.UNSUPPORTED
        assert refused.message.startswith("This sidecar does not answer")


async def test_a_request_waits_no_longer_than_it_says_and_ends_with_its_call() -> None:
    sent: list[Frame] = []

    def send(frame: Frame) -> bool:
        sent.append(frame)
        return True

    requests = Requests(send)
    with pytest.raises(errors.RequestTimedOut):
        await requests.ask(OutboundRequest(), 0.01)
    waiting = asyncio.ensure_future(requests.ask(OutboundRequest(), None))
    await asyncio.sleep(0)
    requests.close("The call has ended.")
    with pytest.raises(errors.RequestCancelled):
        await waiting
    with pytest.raises(errors.RequestCancelled):
        await requests.ask(OutboundRequest(), None)
    assert [frame.outbound_request.request_id for frame in sent] == [1, 2]


async def test_a_request_over_a_frame_is_refused_here() -> None:
    with pytest.raises(errors.RequestInvalid):
        await Requests(lambda _: False).ask(OutboundRequest(), None)


async def test_open_requests_are_bounded() -> None:
    requests = Requests(lambda _: True)
    waiting = [asyncio.ensure_future(requests.ask(OutboundRequest(), None)) for _ in range(1_024)]
    await asyncio.sleep(0)
    with pytest.raises(errors.RequestOverloaded):
        await requests.ask(OutboundRequest(), None)
    requests.close("over")
    await asyncio.gather(*waiting, return_exceptions=True)


def answering(**answers: Reply) -> Callable[[OutboundRequest], Reply]:
    return lambda request: answers[request.WhichOneof("request") or ""]


async def test_answers_are_read() -> None:
    entry = bus_pb2.KvEntry(value=b"v", revision="7")
    entry.expires_in.FromMilliseconds(1_500)
    meta = artifacts_pb2.ArtifactMeta(reference="art_1", kind="k", media_type="text/plain", size=1, shape=TEXT)
    got = outbound_pb2.ArtifactGot()
    got.artifact.meta.CopyFrom(meta)
    got.artifact.inline.shape, got.artifact.inline.content = TEXT, b"text"
    issued = outbound_pb2.CredentialAnswer()
    issued.issued.bearer.token = "canary"
    outcome = outcome_pb2.Outcome()
    outcome.failure.kind, outcome.failure.message = FAILED, "inner failed"
    claimed = bus_pb2.JobClaimed(claim="c", job="j", payload=b"p", attempt=2)
    answers = answering(
        kv_get=Reply(kv_got=bus_pb2.KvGot(entry=entry)),
        kv_put=Reply(kv_put=bus_pb2.KvPutDone(revision="8")),
        kv_delete=Reply(kv_deleted=bus_pb2.KvDeleted(existed=True)),
        kv_keys=Reply(kv_keys=bus_pb2.KvKeyPage(keys=["a", "b"])),
        lease_acquire=Reply(lease=bus_pb2.LeaseAcquired(lease="l", fencing_token=3)),
        lease_renew=Reply(done=outbound_pb2.Done()),
        lease_release=Reply(done=outbound_pb2.Done()),
        artifact_put=Reply(artifact_stored=outbound_pb2.ArtifactStored(meta=meta)),
        artifact_get=Reply(artifact=got),
        artifact_head=Reply(error=outbound_pb2.ReplyError(code=MISSING)),
        artifact_list=Reply(artifact_page=outbound_pb2.ArtifactPage(artifacts=[meta])),
        credential_get=Reply(credential=issued),
        tools_has=Reply(tool_available=outbound_pb2.ToolsHasAnswer(available=True)),
        tools_call=Reply(tool_outcome=outcome),
        caller_request=Reply(
            caller=outbound_pb2.CallerAnswer(result=b'{"action":"accept","content":{"a":1},"roots":[1]}')
        ),
        job_enqueue=Reply(job_enqueued=bus_pb2.JobEnqueued(job="j", duplicate=True)),
        job_claim=Reply(job_claimed=claimed),
        job_settle=Reply(done=outbound_pb2.Done()),
        job_heartbeat=Reply(done=outbound_pb2.Done()),
        publish=Reply(done=outbound_pb2.Done()),
        subscribe=Reply(subscribed=bus_pb2.Subscribed(subscription="s")),
        unsubscribe=Reply(done=outbound_pb2.Done()),
    )

    @pillion.tool
    async def asks(ctx: pillion.ToolContext) -> None:
        found = await ctx.kv.get("b", "k", level=BusLevel.SESSION)
        assert found is not None
        assert (found.value, found.revision, found.expires_in) == (b"v", "7", 1.5)
        assert await ctx.kv.put("b", "k", b"v", expect="7") == "8"
        assert await ctx.kv.delete("b", "k")
        assert [key async for key in ctx.kv.keys("b", prefix="a")] == ["a", "b"]
        lease = await ctx.kv.lease("b", "k", 3)
        assert lease is not None
        assert lease.fencing_token == 3
        await lease.renew(4)
        await lease.release()
        assert (await ctx.artifacts.put("text", kind="k", media_type="text/plain")).reference == "art_1"
        assert await ctx.artifacts.head("art_2") is None
        payload = await ctx.artifacts.get("art_1")
        assert payload is not None
        assert payload[1] == "text"
        assert [found.reference async for found in ctx.artifacts.list()] == ["art_1"]
        credential = await ctx.credentials.request("github")
        assert isinstance(credential, Bearer)
        assert "canary" not in repr(credential)
        assert credential.token.reveal() == "canary"
        assert await ctx.tools.has("other")
        with pytest.raises(errors.ToolFailed, match="inner failed"):
            await ctx.tools.call("other")
        elicited = await ctx.caller.elicit("Sure?", {"type": "object"})
        assert (elicited.action, elicited.content) == ("accept", {"a": 1})
        assert await ctx.caller.roots() == [1]
        assert (await ctx.jobs.enqueue("q", b"p")).duplicate
        job = await ctx.jobs.claim("q", 5)
        assert job is not None
        assert (job.id, job.payload, job.attempt) == ("j", b"p", 2)
        await job.heartbeat(5)
        await job.nak(1)
        await job.term("bad")
        await job.ack()
        await ctx.pubsub.publish("a.b", b"x")
        async with ctx.pubsub.subscribe("a.*") as messages:
            assert [message async for message in messages] == []

    rehearsal = Rehearsal(answers)
    await rehearse(asks, rehearsal=rehearsal)
    assert rehearsal.requests[0].kv_get.level == bus_pb2.BUS_LEVEL_SESSION
    assert rehearsal.requests[1].kv_put.expectation.revision == "7"


async def test_deliveries_that_come_with_the_answer_are_not_lost() -> None:
    requests = Requests(lambda _: True)
    asking = asyncio.ensure_future(requests.ask(OutboundRequest(), None))
    await asyncio.sleep(0)
    requests.replied(Reply(request_id=1, subscribed=bus_pb2.Subscribed(subscription="s")))
    message = bus_pb2.DeliveredMessage(subject="a", payload=b"1")
    requests.delivered(bus_pb2.Delivery(subscription="s", delivery="d", message=message))
    await asking
    taken = await requests.deliveries("s").take()
    assert taken is not None
    assert taken.message.payload == b"1"
    for number in range(1_030):
        requests.delivered(bus_pb2.Delivery(subscription="s", lagged=number))
    lagged = await requests.deliveries("s").take()
    assert lagged is not None
    assert lagged.lagged == 6
    requests.close("over")
    assert repr(Lagged(6)) == "<Lagged 6>"


async def test_pushed_credentials_are_read_and_print_nothing() -> None:
    message = Message(has_credentials=True)
    services = message.credentials.services
    services["bearer"].bearer.token = "canary"
    services["key"].api_key.key = "canary"
    services["basic"].basic.username, services["basic"].basic.password = "ada", "canary"
    services["headers"].headers.headers["x"] = "canary"
    services["custom"].custom.values["x"] = b"canary"
    services["bearer"].expires_in.seconds = 9
    seen: list[pillion.ToolContext] = []

    @pillion.tool
    async def asks(ctx: pillion.ToolContext) -> None:
        seen.append(ctx)

    await rehearse(asks, context=message)
    [context] = seen
    credentials = context.credentials
    assert context.credential is None, "there are several"
    assert set(credentials) == set(services)
    bearer, key, basic, headers, custom = (
        credentials[name] for name in ("bearer", "key", "basic", "headers", "custom")
    )
    assert isinstance(bearer, Bearer)
    assert bearer.expires_in == 9
    assert isinstance(key, ApiKey)
    assert key.header == "x-api-key"
    assert isinstance(basic, Basic)
    assert basic.password.reveal() == "canary"
    assert isinstance(headers, Headers)
    assert isinstance(custom, Custom)
    assert custom.values["x"].reveal() == b"canary"
    assert "canary" not in repr(dict(credentials))


async def test_waiting_on_the_loops_own_thread_is_refused() -> None:
    @pillion.tool
    async def asks(ctx: pillion.ToolContext) -> None:
        with pytest.raises(RuntimeError, match="await it"):
            ctx.wait(ctx.kv.get("b", "k"))

    await rehearse(asks)
