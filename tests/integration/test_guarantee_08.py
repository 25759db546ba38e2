"""Guarantee 8: nothing that is stored can be reached without its scope."""

from typing import Any

import pytest

from sidecar._gen.pillion.v1.artifacts_pb2 import (
    ARTIFACT_SHAPE_BYTES,
    DeleteRequest,
    DownloadRequest,
    HeadRequest,
    ScopeFacts,
    UploadHeader,
)
from sidecar._gen.pillion.v1.context_pb2 import Identity
from sidecar._gen.pillion.v1.outbound_pb2 import (
    ArtifactDelete,
    ArtifactGet,
    ArtifactHead,
    ArtifactList,
    OutboundRequest,
    ReplyErrorCode,
)
from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind
from tests.support import CallerPeer, SocketHost, WorkerPeer, attach, on_unix, tool
from tests.support.artifacts import Artifacts, failure_of, put_request, stated

pytestmark = on_unix

DENIED = FailureKind.FAILURE_KIND_DENIED
UNAVAILABLE = FailureKind.FAILURE_KIND_ARTIFACT_UNAVAILABLE
MINE = ScopeFacts(tenant="acme", principal="ann", conversation_id="1")
OTHERS = {
    "no facts": ScopeFacts(),
    "no tenant": ScopeFacts(principal="ann", conversation_id="1"),
    "another tenant": ScopeFacts(tenant="acm", principal="ann", conversation_id="1"),
    "a tenant of other letters": ScopeFacts(tenant="ACME", principal="ann", conversation_id="1"),
    "no principal": ScopeFacts(tenant="acme", conversation_id="1"),
    "another principal": ScopeFacts(tenant="acme", principal="bob", conversation_id="1"),
    "parts moved": ScopeFacts(tenant="acmea", principal="nn", conversation_id="1"),
    "no conversation": ScopeFacts(tenant="acme", principal="ann"),
    "a session of that name": ScopeFacts(tenant="acme", principal="ann", session_id="1"),
    "a run of that name": ScopeFacts(tenant="acme", principal="ann", run_id="1"),
    "a pattern": ScopeFacts(tenant="%", principal="_%", conversation_id="%"),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS.keys())
async def test_guarantee_08_an_artifact_is_not_there_in_another_scope(artifacts: Artifacts, other: ScopeFacts) -> None:
    reference = (await artifacts.put(MINE, b"mine")).meta.reference
    own = (await artifacts.put(other, b"other")).meta.reference
    told = set()
    for asked in (
        artifacts.get(other, reference),
        artifacts.stub.Head(HeadRequest(scope=other, reference=reference)),
        artifacts.download(DownloadRequest(scope=other, reference=reference)),
    ):
        failure = await failure_of(asked)
        assert failure.kind == UNAVAILABLE
        told.add(failure.message)
    assert told == {(await failure_of(artifacts.get(other, "art_" + "0" * 22))).message}
    assert await artifacts.references(other) == [own]
    await artifacts.stub.Delete(DeleteRequest(scope=other, reference=reference))
    assert (await artifacts.get(MINE, reference)).data.content == b"mine"


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS.keys())
async def test_guarantee_08_an_upload_cannot_be_gone_on_with_in_another_scope(
    artifacts: Artifacts, other: ScopeFacts
) -> None:
    def header(scope: ScopeFacts, upload: str | None = None) -> UploadHeader:
        return UploadHeader(scope=scope, input=stated(), size=4, shape=ARTIFACT_SHAPE_BYTES, upload_id=upload)

    begun = await artifacts.upload(header(MINE), [b"mi"])
    assert not begun.HasField("meta")
    failure = await failure_of(artifacts.upload(header(other, begun.upload_id), [b"xx"]))
    assert failure.kind == UNAVAILABLE
    done = await artifacts.upload(header(MINE, begun.upload_id), [b"ne"])
    assert (await artifacts.get(MINE, done.meta.reference)).data.content == b"mine"


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS.keys())
async def test_guarantee_08_a_tool_has_the_artifacts_of_its_own_call_alone(
    host: SocketHost, artifacts: Artifacts, other: ScopeFacts
) -> None:
    wanting = tool("read", wants={"data": "note"})
    worker, caller = await attach(host, tool(), wanting), await host.caller()
    reference = (await artifacts.put(MINE, b"mine")).meta.reference
    own = (await artifacts.put(other, b"other")).meta.reference
    facts: dict[str, Any] = {
        "identity": Identity(tenant=other.tenant, principal=other.principal, conversation_id=other.conversation_id),
        "session_id": other.session_id or None,
        "run_id": other.run_id or None,
    }
    call = await caller.start("echo", **facts)
    run = (await worker.next_invoke()).call
    told = set()
    for number, request in enumerate(
        (
            OutboundRequest(artifact_get=ArtifactGet(reference=reference)),
            OutboundRequest(artifact_head=ArtifactHead(reference=reference)),
            OutboundRequest(artifact_get=ArtifactGet(reference="art_" + "0" * 22)),
        )
    ):
        request.request_id = number + 1
        error = (await worker.ask(run, request)).error
        assert error.code == ReplyErrorCode.REPLY_ERROR_CODE_ARTIFACT_NOT_FOUND
        told.add(error.SerializeToString())
    assert len(told) == 1
    delete = OutboundRequest(request_id=4, artifact_delete=ArtifactDelete(reference=reference))
    assert (await worker.ask(run, delete)).HasField("done")
    listing = OutboundRequest(request_id=5, artifact_list=ArtifactList())
    listed = [meta.reference for meta in (await worker.ask(run, listing)).artifact_page.artifacts]
    # What names no place has one of its own: that of the execution.
    assert listed == ([own] if other.conversation_id or other.session_id or other.run_id else [])
    put = (await worker.ask(run, put_request(b"x", 6))).artifact_stored.meta.reference
    await worker.result(run)
    await caller.outcome(call)
    assert put not in await artifacts.references(MINE)
    failure = (await caller.call("read", {"data": reference}, **facts)).failure
    missing = (await caller.call("read", {"data": "art_" + "0" * 22}, **facts)).failure
    assert (failure.kind, failure.message) == (UNAVAILABLE, missing.message)
    assert (await artifacts.get(MINE, reference)).data.content == b"mine"


async def test_guarantee_08_a_transfer_is_its_own_instances_alone(host: SocketHost, artifacts: Artifacts) -> None:
    first, second, caller = await host.worker(), await host.worker(), await host.caller()
    mine = (await first.hello(tool())).reattach_secret
    others = (await second.hello(tool("other"), worker="other")).reattach_secret
    large = UploadHeader(scope=MINE, input=stated(), size=100_000)
    reference = (await artifacts.upload(large, [b"x" * 100_000])).meta.reference
    identity = Identity(tenant="acme", principal="ann", conversation_id="1")
    await caller.start("echo", identity=identity)
    run = (await first.next_invoke()).call
    got = await first.ask(run, OutboundRequest(request_id=1, artifact_get=ArtifactGet(reference=reference)))
    token = DownloadRequest(transfer_token=got.artifact.artifact.transfer_token)
    async with Artifacts(host.workers_at) as for_workers:
        for secret in (others, "", mine[:-1]):
            assert (await failure_of(for_workers.download(token, secret))).kind == DENIED
        assert len((await for_workers.download(token, mine))[1]) == 100_000


PEOPLE = {
    "another tenant": Identity(tenant="other", principal="ann"),
    "no tenant": Identity(principal="ann"),
    "another principal": Identity(tenant="acme", principal="bob"),
    "nobody": None,
}


@pytest.mark.parametrize("other", PEOPLE.values(), ids=PEOPLE.keys())
async def test_guarantee_08_an_idempotency_key_answers_its_own_subject_alone(
    host: SocketHost, other: Identity | None
) -> None:
    worker, caller = await attach(host), await host.caller()
    mine = Identity(tenant="acme", principal="ann")
    assert await outcome(caller, worker, mine) == b'"first"'
    call = await caller.start("echo", {}, idempotency_key="k", identity=other)
    await worker.result((await worker.next_invoke()).call, "second")
    assert (await caller.outcome(call)).result.json == b'"second"'
    again = await caller.call("echo", {}, idempotency_key="k", identity=mine)
    assert again.result.json == b'"first"'


async def outcome(caller: CallerPeer, worker: WorkerPeer, identity: Identity) -> bytes:
    """What the first call with the key gets."""
    call = await caller.start("echo", {}, idempotency_key="k", identity=identity)
    await worker.result((await worker.next_invoke()).call, "first")
    return (await caller.outcome(call)).result.json
