"""What a running tool asks of the artifacts, with bare stubs: five verbs, and a token to put large ones with."""

from typing import Any

from sidecar._gen.pillion.v1.artifacts_pb2 import DownloadRequest, ScopeFacts, UploadHeader
from sidecar._gen.pillion.v1.context_pb2 import Identity
from sidecar._gen.pillion.v1.outbound_pb2 import (
    ArtifactDelete,
    ArtifactGet,
    ArtifactHead,
    ArtifactList,
    OutboundRequest,
    Reply,
    ReplyErrorCode,
)
from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind
from sidecar.artifacts import ArtifactLimits
from tests.support import Invocation, SocketHost, StartHost, WorkerPeer, attach, on_unix, tool
from tests.support.artifacts import MIB, Artifacts, failure_of, put_request, stated, upload_request

pytestmark = on_unix

GIB = 1024 * MIB
KIB = 1024
ANN = Identity(tenant="acme", principal="ann")
ANNS = ScopeFacts(tenant="acme", principal="ann", session_id="s")
NOWHERE = "art_" + "0" * 22


class Running:
    """A call whose tool asks."""

    def __init__(self, worker: WorkerPeer, run: Invocation, secret: str) -> None:
        self.worker = worker
        self.run = run
        self.secret = secret
        self._number = 0

    async def ask(self, request: OutboundRequest) -> Reply:
        """The reply to a request."""
        self._number += 1
        request.request_id = self._number
        return await self.worker.ask(self.run.call, request)

    async def put(self, content: bytes, **rest: Any) -> str:
        """The reference of a small one that is put."""
        return (await self.ask(put_request(content, **rest))).artifact_stored.meta.reference

    async def get(self, reference: str) -> Reply:
        """The reply to a get."""
        return await self.ask(OutboundRequest(artifact_get=ArtifactGet(reference=reference)))

    async def end(self) -> None:
        """Ends the tool."""
        await self.worker.result(self.run.call)


async def running(host: SocketHost, earlier: Running | None = None, **fields: Any) -> Running:
    """A call that is running, on the worker of an earlier one or on another."""
    caller = await host.caller()
    if earlier is None:
        worker = await host.worker()
        secret = (await worker.hello(tool(), concurrency=1)).reattach_secret
    else:
        worker, secret = earlier.worker, earlier.secret
    await caller.start(**fields)
    return Running(worker, await worker.next_invoke(), secret)


def code_of(reply: Reply) -> str:
    """Why a request was refused."""
    return ReplyErrorCode.Name(reply.error.code).removeprefix("REPLY_ERROR_CODE_")


async def test_the_five_verbs_work_within_the_scope_of_the_call(host: SocketHost, artifacts: Artifacts) -> None:
    call = await running(host, identity=ANN, session_id="s", run_id="r", tool_call_id="t")
    parent = await call.put(b"1")
    stored = (
        await call.ask(put_request(b"hello", shape=2, label="a greeting", digest=True, parents=[parent]))
    ).artifact_stored
    meta = stored.meta
    origin = meta.origin
    assert (origin.tool, origin.tool_call_id, origin.run_id) == ("echo", "t", "r")
    assert origin.execution_id == call.run.context.execution_id
    assert list(meta.parents) == [parent]
    assert meta.digest.startswith("sha-256:")
    head = await call.ask(OutboundRequest(artifact_head=ArtifactHead(reference=meta.reference)))
    assert head.artifact_meta.label == "a greeting"
    got = (await call.get(meta.reference)).artifact.artifact
    assert (got.inline.shape, got.inline.content) == (2, b"hello")
    assert (await artifacts.get(ANNS, meta.reference)).data.content == b"hello", "the caller has it too"
    first = await call.ask(OutboundRequest(artifact_list=ArtifactList(limit=1)))
    assert [each.reference for each in first.artifact_page.artifacts] == [meta.reference]
    more = ArtifactList(cursor=first.artifact_page.cursor)
    rest = (await call.ask(OutboundRequest(artifact_list=more))).artifact_page
    assert ([each.reference for each in rest.artifacts], rest.HasField("cursor")) == ([parent], False)
    for reference in (meta.reference, meta.reference, NOWHERE, "../x", ""):
        reply = await call.ask(OutboundRequest(artifact_delete=ArtifactDelete(reference=reference)))
        assert reply.HasField("done")
    assert code_of(await call.get(meta.reference)) == "ARTIFACT_NOT_FOUND"


async def test_what_is_not_there_is_one_answer(host: SocketHost, artifacts: Artifacts) -> None:
    call = await running(host, identity=ANN, session_id="s")
    foreign = (await artifacts.put(ScopeFacts(tenant="acme", principal="bob", session_id="s"), b"x")).meta.reference
    told = set()
    for reference in (foreign, NOWHERE, "", "_", "%5F", "a/b", "'", "😀", "x" * 200):
        for request in (
            OutboundRequest(artifact_get=ArtifactGet(reference=reference)),
            OutboundRequest(artifact_head=ArtifactHead(reference=reference)),
        ):
            error = (await call.ask(request)).error
            told.add(error.SerializeToString())
            assert error.code == ReplyErrorCode.REPLY_ERROR_CODE_ARTIFACT_NOT_FOUND
    assert len(told) == 1


async def test_what_is_refused_says_why(host: SocketHost) -> None:
    call = await running(host, session_id="s")
    for request, code in (
        (put_request(b"x", kind=" "), "ARTIFACT_INVALID"),
        (put_request(b"x", parents=[NOWHERE, "/etc"]), "ARTIFACT_UNKNOWN_PARENT"),
        (put_request(b"x", expected_digest="sha-256:" + "0" * 64), "ARTIFACT_INVALID"),
        (put_request(b"\xff", shape=2), "ARTIFACT_INVALID"),
        (put_request(b"{", shape=3), "ARTIFACT_INVALID"),
        (put_request(b"x", shape=9), "ARTIFACT_INVALID"),
        (put_request(b"x" * 64 * KIB + b"x"), "ARTIFACT_TOO_LARGE"),
        (upload_request(1, kind=" "), "ARTIFACT_INVALID"),
        (OutboundRequest(artifact_put={"input": stated()}), "ARTIFACT_INVALID"),  # type: ignore[arg-type]  # a message by its fields
    ):
        reply = await call.ask(request)
        assert code_of(reply) == code, request
        assert reply.error.message.endswith((".", "later"))
    assert "artifact_upload" in (await call.ask(put_request(b"x" * 65 * KIB))).error.message
    assert not (await call.ask(OutboundRequest(artifact_list=ArtifactList()))).artifact_page.artifacts


async def test_a_call_that_names_no_place_has_one_of_its_own_that_its_caller_can_name(
    host: SocketHost, artifacts: Artifacts
) -> None:
    first = await running(host, identity=ANN)
    second = await running(host, identity=ANN)
    reference = await first.put(b"mine")
    assert code_of(await second.get(reference)) == "ARTIFACT_NOT_FOUND"
    place = ScopeFacts(tenant="acme", principal="ann", execution_id=first.run.context.execution_id)
    assert (await artifacts.get(place, reference)).data.content == b"mine"
    place.principal = "bob"
    assert (await failure_of(artifacts.get(place, reference))).kind == FailureKind.FAILURE_KIND_ARTIFACT_UNAVAILABLE


async def test_large_ones_go_by_tokens_both_ways(host: SocketHost, for_workers: Artifacts) -> None:
    call = await running(host, session_id="s")
    payload = bytes(range(256)) * 12 * KIB
    opened = await call.ask(upload_request(len(payload), kind="image", digest=True))
    token = opened.artifact_upload.transfer_token
    assert len(token) >= 43
    chunks = [payload[offset : offset + MIB] for offset in range(0, len(payload), MIB)]
    meta = (await for_workers.upload(UploadHeader(transfer_token=token), chunks, call.secret)).meta
    assert (meta.kind, meta.size, meta.origin.tool) == ("image", len(payload), "echo")
    got = (await call.get(meta.reference)).artifact.artifact
    assert (got.meta.reference, got.WhichOneof("payload")) == (meta.reference, "transfer_token")
    request = DownloadRequest(transfer_token=got.transfer_token)
    assert (await for_workers.download(request, call.secret))[1] == payload


async def test_an_upload_that_does_not_come_takes_nothing_for_good(start_host: StartHost) -> None:
    host = await start_host(artifacts=ArtifactLimits(bytes_per_subject=5 * GIB))
    assert isinstance(host, SocketHost)
    call = await running(host, session_id="s")
    async with Artifacts(host.workers_at) as for_workers:
        token = (await call.ask(upload_request(4 * GIB))).artifact_upload.transfer_token
        begun = await for_workers.upload(UploadHeader(transfer_token=token), [b"x"], call.secret)
        assert (begun.received, begun.HasField("meta")) == (1, False)
        held = sum(path.stat().st_blocks for path in host.settings.state_dir.glob("artifacts/parts/*"))
        assert held * 512 <= 64 * KIB, "what was declared takes no room on the disk"
        again = (await call.ask(upload_request(4 * GIB))).artifact_upload.transfer_token
        refused = await failure_of(for_workers.upload(UploadHeader(transfer_token=again), [], call.secret))
        assert refused.kind == FailureKind.FAILURE_KIND_OVERLOADED, "it takes its room from the subject"
        await call.end()
        later = await running(host, call, session_id="s")
        token = (await later.ask(upload_request(4 * GIB))).artifact_upload.transfer_token
        begun = await for_workers.upload(UploadHeader(transfer_token=token), [b"x"], later.secret)
        assert begun.received == 1, "the call that had begun it has ended"


async def test_without_a_store_everything_is_refused_and_said_beforehand(start_host: StartHost) -> None:
    host = await start_host(keeps_artifacts=False)
    assert isinstance(host, SocketHost)
    call = await running(host, session_id="s")
    assert not call.run.context.has_artifacts
    for request in (
        put_request(b"x"),
        upload_request(1),
        OutboundRequest(artifact_head=ArtifactHead(reference=NOWHERE)),
        OutboundRequest(artifact_get=ArtifactGet(reference=NOWHERE)),
        OutboundRequest(artifact_delete=ArtifactDelete(reference=NOWHERE)),
        OutboundRequest(artifact_list=ArtifactList()),
    ):
        assert code_of(await call.ask(request)) == "UNSUPPORTED"
    caller, worker = await host.caller(), await attach(host, tool("other", wants={"data": "note"}), worker="other")
    outcome = await caller.call("other", {"data": NOWHERE})
    assert outcome.failure.kind == FailureKind.FAILURE_KIND_UNSUPPORTED
    assert not worker.invoked
    for target, secret in ((host.callers_at, None), (host.workers_at, call.secret)):
        async with Artifacts(target) as artifacts:
            for asked in (
                artifacts.download(DownloadRequest(reference=NOWHERE), secret),
                artifacts.upload(UploadHeader(size=1), [b"x"], secret),
            ):
                assert (await failure_of(asked)).kind == FailureKind.FAILURE_KIND_UNSUPPORTED
