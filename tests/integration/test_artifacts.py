"""Artifacts for callers, over real sockets."""

import asyncio
import hashlib
from typing import Any

import grpc.aio
import pytest

from sidecar._gen.pillion.v1 import artifacts_pb2 as messages
from sidecar._gen.pillion.v1.artifacts_pb2 import DeleteRequest as Delete
from sidecar._gen.pillion.v1.artifacts_pb2 import DownloadRequest as Download
from sidecar._gen.pillion.v1.artifacts_pb2 import HeadRequest as Head
from sidecar._gen.pillion.v1.artifacts_pb2 import ListRequest as List
from sidecar._gen.pillion.v1.artifacts_pb2 import ScopeFacts as Facts
from sidecar._gen.pillion.v1.artifacts_pb2 import UploadHeader as Header
from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind
from sidecar.artifacts import ArtifactLimits
from sidecar.doors.bulk import UPLOAD_ID, UPLOAD_RECEIVED
from sidecar.wire.limits import WireLimits
from tests.support import SocketHost, StartHost, on_sockets, on_unix
from tests.support.artifacts import ANN, BOB, MIB, Artifacts, failure_of, stated

UNAVAILABLE = FailureKind.FAILURE_KIND_ARTIFACT_UNAVAILABLE
INVALID = FailureKind.FAILURE_KIND_INVALID_ARGUMENTS
DENIED = FailureKind.FAILURE_KIND_DENIED
NOBODYS = "art_" + "0" * 22

pytestmark = pytest.mark.anyio


def digest_of(payload: bytes) -> str:
    return f"sha-256:{hashlib.sha256(payload).hexdigest()}"


def header(size: int, scope: Facts = ANN, **rest: Any) -> Header:
    shape = rest.pop("shape", messages.ARTIFACT_SHAPE_BYTES)
    return Header(scope=scope, input=stated(**rest), size=size, shape=shape)


# --- the five verbs


@on_sockets
async def test_an_artifact_is_put_found_read_listed_and_removed(artifacts: Artifacts) -> None:
    answer = await artifacts.put(
        ANN, b'{"a": 1}', shape=messages.ARTIFACT_SHAPE_JSON, label="a note", digest=True, expires_in={"seconds": 90}
    )
    meta = answer.meta
    assert (meta.kind, meta.media_type, meta.size, meta.label) == ("note", "text/plain", 8, "a note")
    assert meta.digest == digest_of(b'{"a": 1}')
    assert 80 < meta.expires_in.seconds <= 90
    assert not meta.HasField("origin")
    assert not answer.evicted
    head = (await artifacts.stub.Head(Head(scope=ANN, reference=meta.reference))).meta
    got = await artifacts.get(ANN, meta.reference)
    for each in (head, got.meta):
        each.expires_in.CopyFrom(meta.expires_in)
        assert each == meta
    assert (got.data.shape, got.data.content) == (messages.ARTIFACT_SHAPE_JSON, b'{"a": 1}')
    second = (await artifacts.put(ANN, b"", parents=[meta.reference])).meta
    assert list(second.parents) == [meta.reference]
    assert not second.HasField("label")
    assert not second.HasField("digest")
    assert await artifacts.references(ANN) == [second.reference, meta.reference]
    first = await artifacts.stub.List(List(scope=ANN, limit=1))
    assert [each.reference for each in first.artifacts] == [second.reference]
    rest = await artifacts.stub.List(List(scope=ANN, limit=0, cursor=first.cursor))
    assert [each.reference for each in rest.artifacts] == [meta.reference]
    assert not rest.HasField("cursor")
    await artifacts.stub.Delete(Delete(scope=ANN, reference=meta.reference))
    await artifacts.stub.Delete(Delete(scope=ANN, reference="nonsense"))
    assert await artifacts.references(ANN) == [second.reference]


@on_sockets
async def test_what_is_not_there_is_one_answer_by_every_door(artifacts: Artifacts) -> None:
    foreign = (await artifacts.put(BOB, b"bob's")).meta.reference
    gone = (await artifacts.put(ANN, b"x")).meta.reference
    await artifacts.stub.Delete(Delete(scope=ANN, reference=gone))
    told = set()
    for reference in (NOBODYS, foreign, gone, "", "art_", "../../pillion.db", "é" * 500):
        for asked in (
            artifacts.stub.Head(Head(scope=ANN, reference=reference)),
            artifacts.get(ANN, reference),
            artifacts.download(Download(scope=ANN, reference=reference)),
        ):
            failure = await failure_of(asked)
            assert failure.kind == UNAVAILABLE
            told.add(failure.SerializeToString())
    assert len(told) == 1
    await artifacts.stub.Delete(Delete(scope=ANN, reference=foreign))
    assert await artifacts.references(BOB) == [foreign]


@on_unix
async def test_each_set_of_facts_is_a_scope_of_its_own(artifacts: Artifacts) -> None:
    texts = ["_", "%5F", "a/b", "a%2Fb", "..", "'; DROP TABLE artifact; --", '"', "🚲", "A", "a", "x" * 200]
    scopes = [Facts(tenant=text, principal="ann", run_id="1") for text in texts]
    scopes += [Facts(principal=text, run_id="1") for text in texts]
    scopes += [Facts(run_id=text) for text in texts] + [Facts(session_id=text) for text in texts]
    scopes += [Facts(conversation_id=text) for text in texts] + [Facts(), Facts(tenant="a"), Facts(principal="a")]
    references = [(await artifacts.put(scope, b"x")).meta.reference for scope in scopes]
    assert [await artifacts.references(scope) for scope in scopes] == [[reference] for reference in references]


@on_unix
async def test_empty_facts_are_as_good_as_none(artifacts: Artifacts) -> None:
    reference = (await artifacts.put(Facts(), b"x")).meta.reference
    empty = Facts(tenant="", principal="", conversation_id="", session_id="", run_id="")
    assert await artifacts.references(empty) == [reference]


@on_unix
async def test_what_is_stated_wrongly_is_refused_and_stores_nothing(artifacts: Artifacts) -> None:
    far = {"seconds": 315_576_000_000}
    for refused in (
        artifacts.put(ANN, b"x", kind=" "),
        artifacts.put(ANN, b"x", expires_in={"seconds": 0}),
        artifacts.put(ANN, b"x", expires_in={"seconds": -5}),
        artifacts.put(ANN, b"x", parents=[NOBODYS]),
        artifacts.put(ANN, b"x", parents=["nonsense"] * 65),
        artifacts.put(ANN, b"x", expected_digest="sha-256:" + "0" * 64),
        artifacts.put(ANN, b"\xff", shape=messages.ARTIFACT_SHAPE_TEXT),
        artifacts.put(ANN, b"{", shape=messages.ARTIFACT_SHAPE_JSON),
        artifacts.put(ANN, b"x", shape=99),
        artifacts.put(ANN, bytes(MIB + 1)),
        artifacts.put(Facts(tenant="é" * 129), b"x"),
        artifacts.stub.Put(messages.PutRequest(scope=ANN, input=stated())),
        artifacts.stub.Put(messages.PutRequest(scope=ANN, data=messages.ArtifactData())),
        artifacts.upload(header(2**64 - 1)),
    ):
        assert (await failure_of(refused)).kind == INVALID
    assert await artifacts.references(ANN) == []
    assert (await artifacts.put(ANN, b"x", expires_in=far)).meta.expires_in.seconds <= 30 * 24 * 3600


@on_unix
async def test_a_caller_for_whom_no_rule_speaks_is_denied(
    artifacts: Artifacts, host: SocketHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = host.sidecar._policy

    def fail(*_: object) -> bool:
        raise RuntimeError("a secret")

    reference = (await artifacts.put(ANN, b"x")).meta.reference
    for admits in (lambda principal, scope: scope.subject != "named:ann", fail):
        monkeypatch.setattr(policy, "admits", admits)
        told = set()
        for asked in (
            artifacts.put(ANN, b"x"),
            artifacts.stub.Head(Head(scope=ANN, reference=reference)),
            artifacts.get(ANN, NOBODYS),
            artifacts.stub.Delete(Delete(scope=ANN, reference=reference)),
            artifacts.references(ANN),
            artifacts.upload(header(1), [b"x"]),
            artifacts.upload(Header(scope=ANN, upload_id="upl_1")),
            artifacts.download(Download(scope=ANN, reference=reference)),
        ):
            failure = await failure_of(asked)
            assert failure.kind == DENIED
            told.add(failure.message)
        assert len(told) == 1
    monkeypatch.undo()
    assert await artifacts.references(ANN) == [reference]


@on_unix
async def test_get_answers_small_ones_and_names_download(artifacts: Artifacts) -> None:
    answer = await artifacts.upload(header(MIB + 1), [bytes(MIB), b"x"])
    failure = await failure_of(artifacts.get(ANN, answer.meta.reference))
    assert failure.kind == INVALID
    assert "Download" in failure.message


@on_unix
async def test_what_gives_way_is_told(start_host: StartHost) -> None:
    host = await start_host(artifacts=ArtifactLimits(count_per_scope=1, bytes_per_subject=100))
    assert isinstance(host, SocketHost)
    async with Artifacts(host.callers_at) as artifacts:
        first = (await artifacts.put(ANN, b"one")).meta
        (evicted,) = (await artifacts.put(ANN, b"two")).evicted
        assert evicted == messages.Eviction(
            reference=first.reference, reason=messages.EVICTION_REASON_COUNT, kind="note", size=3
        )
        (evicted,) = (await artifacts.upload(header(5), [b"three"])).evicted
        assert evicted.reason == messages.EVICTION_REASON_COUNT
        assert (await host.counters())["evicted_artifacts"] == 2
        failure = await failure_of(artifacts.put(Facts(tenant="acme", principal="ann"), bytes(96)))
        assert failure.kind == FailureKind.FAILURE_KIND_OVERLOADED


# --- uploads and downloads


@on_sockets
async def test_a_large_payload_goes_in_and_comes_out(artifacts: Artifacts) -> None:
    chunk = bytes(range(256)) * 2_048
    payload = chunk * 10 + b"end"
    digest = digest_of(payload)
    answer = await artifacts.upload(header(len(payload), expected_digest=digest), [*[chunk] * 10, b"end"])
    assert (answer.meta.size, answer.received, answer.meta.digest) == (len(payload), len(payload), digest)
    assert not answer.HasField("upload_id")
    reference = answer.meta.reference
    meta, got = await artifacts.download(Download(scope=ANN, reference=reference))
    assert (meta.reference, got) == (reference, payload)
    for offset, length in ((1, None), (len(payload) - 3, 2), (len(payload), None), (0, 0), (700_000, 900_000)):
        _, got = await artifacts.download(Download(scope=ANN, reference=reference, offset=offset, length=length))
        assert got == payload[offset:][:length]
    failure = await failure_of(artifacts.download(Download(scope=ANN, reference=reference, offset=len(payload) + 1)))
    assert failure.kind == INVALID


@on_sockets
async def test_an_artifact_may_have_no_bytes(artifacts: Artifacts) -> None:
    answer = await artifacts.upload(header(0))
    assert answer.meta.size == 0
    meta, got = await artifacts.download(Download(scope=ANN, reference=answer.meta.reference))
    assert (meta.size, got) == (0, b"")
    assert (await artifacts.get(ANN, answer.meta.reference)).data.content == b""


@on_unix
async def test_a_large_upload_of_one_byte_is_not_there_and_may_be_continued(artifacts: Artifacts) -> None:
    answer = await artifacts.upload(header(4 * 1024 * MIB), [b"x"])
    assert (answer.HasField("meta"), answer.received) == (False, 1)
    assert answer.upload_id
    assert await artifacts.references(ANN) == []
    again = await artifacts.upload(Header(scope=ANN, upload_id=answer.upload_id))
    assert (again.upload_id, again.received) == (answer.upload_id, 1)


@on_unix
async def test_other_bytes_than_declared_are_refused(artifacts: Artifacts) -> None:
    failure = await failure_of(artifacts.upload(header(3), [b"ab", b"cd"]))
    assert failure.kind == INVALID
    failure = await failure_of(artifacts.upload(header(3, expected_digest="sha-256:" + "0" * 64), [b"abc"]))
    assert failure.kind == INVALID
    failure = await failure_of(artifacts.upload(header(3, shape=messages.ARTIFACT_SHAPE_TEXT), [b"ab\xff"]))
    assert failure.kind == INVALID
    failure = await failure_of(artifacts.upload(header(3 * MIB), [bytes(MIB + 1)]))
    assert failure.kind == INVALID
    assert await artifacts.references(ANN) == []


@on_unix
async def test_an_upload_is_a_header_and_then_chunks(artifacts: Artifacts) -> None:
    async def sent(*parts: messages.UploadRequest) -> None:
        call = artifacts.stub.Upload()
        for part in parts:
            await call.write(part)
        await call.done_writing()
        await call

    begins = messages.UploadRequest(header=header(2))
    for parts in ((), (messages.UploadRequest(chunk=b"x"),), (messages.UploadRequest(),), (begins, begins)):
        assert (await failure_of(sent(*parts))).kind == INVALID
    raw: Any = artifacts.channel
    failure = await failure_of(raw.stream_unary("/pillion.v1.ArtifactService/Upload")(iter([b"\xff\xff"])))
    assert failure.kind == INVALID
    assert await artifacts.references(ANN) == []


@on_sockets
async def test_an_upload_that_was_cut_off_goes_on_where_it_stopped(artifacts: Artifacts) -> None:
    payload = bytes(range(256)) * 4_096
    ended = await artifacts.upload(header(len(payload), digest=True), [payload[:300_000]])
    assert (ended.received, ended.HasField("meta")) == (300_000, False)
    cut = artifacts.stub.Upload()
    await cut.write(messages.UploadRequest(header=Header(scope=ANN, upload_id=ended.upload_id)))
    told = dict(await cut.initial_metadata())
    assert (told[UPLOAD_ID], told[UPLOAD_RECEIVED]) == (ended.upload_id, "300000")
    await cut.write(messages.UploadRequest(chunk=payload[300_000:600_000]))
    cut.cancel()
    elsewhere = artifacts.upload(Header(scope=BOB, upload_id=told[UPLOAD_ID]))
    missing = artifacts.upload(Header(scope=ANN, upload_id="upl_none"))
    assert (await failure_of(elsewhere)) == (await failure_of(missing))
    again = artifacts.stub.Upload()
    await again.write(messages.UploadRequest(header=Header(scope=ANN, upload_id=told[UPLOAD_ID])))
    received = int(dict(await again.initial_metadata())[UPLOAD_RECEIVED])
    assert received in (300_000, 600_000), "whole chunks have come"
    await again.write(messages.UploadRequest(chunk=payload[received:]))
    await again.done_writing()
    answer = await again
    assert answer.meta.digest == digest_of(payload)
    once_more = await artifacts.upload(Header(scope=ANN, upload_id=told[UPLOAD_ID]))
    assert once_more.meta.reference == answer.meta.reference
    assert await artifacts.references(ANN) == [answer.meta.reference]


@on_unix
async def test_a_stream_that_stands_still_is_ended_and_goes_on_in_another(start_host: StartHost) -> None:
    host = await start_host(wire=WireLimits(stall_after=0.2), artifacts=ArtifactLimits(transfers=1))
    assert isinstance(host, SocketHost)
    async with Artifacts(host.callers_at) as artifacts:
        call = artifacts.stub.Upload()
        await call.write(messages.UploadRequest(header=header(2)))
        upload_id = dict(await call.initial_metadata())[UPLOAD_ID]
        failure = await failure_of(call)
        assert failure.kind == FailureKind.FAILURE_KIND_IDLE_TIMEOUT
        assert failure.retryable
        answer = await artifacts.upload(Header(scope=ANN, upload_id=upload_id), [b"xy"])
        large = await artifacts.upload(header(32 * MIB), [bytes(MIB)] * 32)
        stalled = artifacts.stub.Download(Download(scope=ANN, reference=large.meta.reference))
        assert (await stalled.read()).meta.size == 32 * MIB
        failure = await failure_of(artifacts.download(Download(scope=ANN, reference=answer.meta.reference)))
        assert failure.kind == FailureKind.FAILURE_KIND_OVERLOADED, "there may be one at a time"
        async with asyncio.timeout(20):
            while await code_of(artifacts, answer.meta.reference) is grpc.StatusCode.RESOURCE_EXHAUSTED:
                pass
        assert await code_of(artifacts, answer.meta.reference) is grpc.StatusCode.OK
        assert await end_of(stalled) is grpc.StatusCode.DEADLINE_EXCEEDED


async def code_of(artifacts: Artifacts, reference: str) -> grpc.StatusCode:
    """How a download ends."""
    return await end_of(artifacts.stub.Download(Download(scope=ANN, reference=reference)))


async def end_of(call: Any) -> grpc.StatusCode:
    """How a stream ends, read to there."""
    try:
        while await call.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


@on_unix
async def test_a_damaged_payload_is_told_and_the_sidecar_goes_on(artifacts: Artifacts, host: SocketHost) -> None:
    answer = await artifacts.upload(header(2 * MIB, digest=True), [bytes(MIB), bytes(MIB)])
    reference = answer.meta.reference
    (file,) = (host.settings.state_dir / "artifacts" / "payloads").glob("*/*")
    file.write_bytes(b"x" + file.read_bytes()[1:])
    failure = await failure_of(artifacts.download(Download(scope=ANN, reference=reference)))
    assert failure.kind == FailureKind.FAILURE_KIND_INTERNAL
    assert "damaged" in failure.message
    assert (await artifacts.stub.Head(Head(scope=ANN, reference=reference))).meta.size == 2 * MIB
    file.unlink()
    failure = await failure_of(artifacts.download(Download(scope=ANN, reference=reference)))
    assert failure.kind == FailureKind.FAILURE_KIND_INTERNAL


@on_unix
async def test_nobody_else_may_look_into_the_files(artifacts: Artifacts, host: SocketHost) -> None:
    await artifacts.put(Facts(tenant="t-canary", principal="p-canary", run_id="r-canary"), b"secret")
    root = host.settings.state_dir / "artifacts"
    paths = [root, *root.rglob("*")]
    assert any(path.is_file() for path in paths)
    for path in paths:
        assert path.stat().st_mode & 0o777 == (0o600 if path.is_file() else 0o700), path
        assert "canary" not in path.name
