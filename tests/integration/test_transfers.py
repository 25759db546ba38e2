"""Transfers of workers: by a token of the call, for the instance that runs it, once."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest

from sidecar._gen.pillion.v1 import artifacts_pb2 as messages
from sidecar._gen.pillion.v1.artifacts_pb2 import DownloadRequest, UploadHeader
from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind
from sidecar.artifacts import ArtifactInput, ArtifactsFull, ArtifactShape, ArtifactStore, Origin
from sidecar.artifacts.transfers import Download, Slot, Transfers
from sidecar.doors.bulk import UPLOAD_ID, UPLOAD_RECEIVED
from sidecar.scope import Owner, Scope
from sidecar.workers.instance import Instance
from tests.support import SocketHost, attach, on_sockets, on_unix, tool
from tests.support.artifacts import MIB, Artifacts, failure_of

DENIED = FailureKind.FAILURE_KIND_DENIED
SCOPE = Scope(Owner("acme", "named:ann"), "run:1")
STATED = ArtifactInput("chart", "image/png")
ORIGIN = Origin("call-1", "run-1")

pytestmark = pytest.mark.anyio


class Workers:
    """A sidecar with two attached instances, and a call on the first."""

    def __init__(self, host: SocketHost, listener: Artifacts) -> None:
        self.listener = listener
        self.store: ArtifactStore = store_of(host)
        self.transfers: Transfers = host.sidecar._keeping.transfers
        self.own, self.other = (_instance(host, name) for name in ("main", "other"))

    def for_download(self, reference: str, call: str = "exe_1") -> str:
        """A token of a call of the first instance."""
        return self.transfers.issue(Download(SCOPE, reference), call, self.own)

    def for_upload(self, size: int, call: str = "exe_1") -> str:
        """A token of a call of the first instance."""
        return self.transfers.issue(Slot(SCOPE, STATED, size, ArtifactShape.BYTES, ORIGIN), call, self.own)

    async def download(self, token: str, secret: str | None = None, **rest: Any) -> bytes:
        """What the token gives, to the first instance unless another's secret is shown."""
        request = DownloadRequest(transfer_token=token, **rest)
        return (await self.listener.download(request, self.own.secret if secret is None else secret))[1]

    async def upload(
        self, token: str, *chunks: bytes, secret: str | None = None, **rest: Any
    ) -> messages.UploadResponse:
        """What is answered to an upload."""
        header = UploadHeader(transfer_token=token, **rest)
        return await self.listener.upload(header, chunks, self.own.secret if secret is None else secret)


def store_of(host: SocketHost) -> ArtifactStore:
    """Its store, to look at what is in it."""
    store = host.sidecar._keeping.store
    assert store is not None
    return store


def _instance(host: SocketHost, name: str) -> Instance:
    (instance,) = host.sidecar._catalogue.sets[name].instances.values()
    return instance


@pytest.fixture
async def workers(host: SocketHost) -> AsyncIterator[Workers]:
    await attach(host)
    await attach(host, tool("other"), worker="other")
    async with Artifacts(host.workers_at) as listener:
        yield Workers(host, listener)


@on_sockets
async def test_a_token_opens_its_artifact_and_its_slot(workers: Workers) -> None:
    payload = b"x" * (3 * MIB)
    answer = await workers.upload(workers.for_upload(len(payload)), *[payload[:MIB]] * 3)
    meta = await workers.store.head(SCOPE, answer.meta.reference)
    assert (meta.kind, meta.origin) == ("chart", ORIGIN), "it is what the slot says, whatever the worker states"
    assert answer.meta.origin.tool_call_id == "call-1"
    token = workers.for_download(meta.reference)
    assert await workers.download(token, offset=MIB, length=5) == b"xxxxx"
    assert await workers.download(workers.for_download(meta.reference), reference=meta.reference) == payload
    assert not len(workers.transfers)


@on_sockets
async def test_whatever_is_wrong_with_a_token_is_one_answer(workers: Workers) -> None:
    reference = (await workers.store.put(SCOPE, STATED, b"x")).meta.reference
    used_down, used_up = workers.for_download(reference), workers.for_upload(1)
    assert await workers.download(used_down) == b"x"
    await workers.upload(used_up, b"x")
    down, up = workers.for_download(reference), workers.for_upload(1)
    ended_down, ended_up = workers.for_download(reference, "exe_2"), workers.for_upload(1, "exe_2")
    workers.transfers.end("exe_2")
    other = workers.other.secret
    told = set()
    for asked in (
        *(workers.download(token) for token in (used_down, ended_down, up, "", "x" * 5_000, "é", reference)),
        *(workers.upload(token, b"x") for token in (used_up, ended_up, down, "", "x" * 5_000, "é")),
        workers.download(down, other),
        workers.upload(up, b"x", secret=other),
        workers.download(down, ""),
        workers.download(down, "x"),
        workers.download(down, reference="art_" + "0" * 22),
        workers.listener.download(DownloadRequest(transfer_token=down)),
        workers.listener.download(DownloadRequest(reference=reference)),
        workers.listener.upload(UploadHeader(size=1), [b"x"]),
    ):
        failure = await failure_of(asked)
        assert failure.kind == DENIED
        told.add(failure.SerializeToString())
    assert len(told) == 1
    assert await workers.download(down) == b"x", "a wrong try takes nothing away"
    assert (await workers.upload(up, b"y")).meta.size == 1


@on_unix
async def test_an_interrupted_transfer_goes_on_with_its_token(workers: Workers) -> None:
    payload = bytes(range(256)) * 16_384
    reference = (await workers.store.put(SCOPE, STATED, payload)).meta.reference
    token = workers.for_download(reference)
    shown = (("pillion-instance-secret", workers.own.secret),)
    call = workers.listener.stub.Download(DownloadRequest(transfer_token=token), metadata=shown)
    await call.read()
    first = (await call.read()).chunk
    assert (await failure_of(workers.download(token))).kind == DENIED, "it is in use"
    call.cancel()
    rest = await until_free(lambda: workers.download(token, offset=len(first)))
    assert first + rest == payload
    token = workers.for_upload(len(payload))
    cut = await workers.upload(token, payload[:MIB])
    assert (cut.received, cut.HasField("meta")) == (MIB, False)
    assert (await failure_of(workers.upload(token, upload_id="upl_none"))).kind != DENIED
    upload = workers.listener.stub.Upload(metadata=shown)
    await upload.write(messages.UploadRequest(header=UploadHeader(transfer_token=token, upload_id=cut.upload_id)))
    told = dict(await upload.initial_metadata())
    assert (told[UPLOAD_ID], told[UPLOAD_RECEIVED]) == (cut.upload_id, str(MIB))
    for offset in range(MIB, len(payload), MIB):
        await upload.write(messages.UploadRequest(chunk=payload[offset : offset + MIB]))
    await upload.done_writing()
    assert (await upload).meta.size == len(payload)
    assert (await failure_of(workers.upload(token, payload))).kind == DENIED


async def until_free(ask: Any) -> bytes:
    """The answer, once an earlier stream with the same token has ended."""
    async with asyncio.timeout(10):
        while True:
            try:
                answer: bytes = await ask()
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.PERMISSION_DENIED:
                    raise
            else:
                return answer


@on_unix
async def test_a_new_upload_with_the_same_token_takes_the_place_of_the_first(workers: Workers) -> None:
    token = workers.for_upload(4)
    first = await workers.upload(token, b"ab")
    answer = await workers.upload(token, b"wxyz")
    assert answer.meta.size == 4
    assert [meta.size for meta in (await workers.store.list(SCOPE)).artifacts] == [4]
    assert first.upload_id != answer.upload_id


@on_unix
async def test_the_end_of_the_call_cuts_off_what_runs(workers: Workers) -> None:
    reference = (await workers.store.put(SCOPE, STATED, b"x" * (32 * MIB))).meta.reference
    shown = (("pillion-instance-secret", workers.own.secret),)
    request = DownloadRequest(transfer_token=workers.for_download(reference))
    stalled = workers.listener.stub.Download(request, metadata=shown)
    await stalled.read()
    upload = workers.listener.stub.Upload(metadata=shown)
    await upload.write(messages.UploadRequest(header=UploadHeader(transfer_token=workers.for_upload(2))))
    told = dict(await upload.initial_metadata())
    assert workers.transfers.end("exe_1") == [(SCOPE, told[UPLOAD_ID])]
    assert (await failure_of(upload)).kind == DENIED
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await read_all(stalled)
    assert raised.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert not len(workers.transfers)
    assert workers.transfers.end("exe_1") == []


async def read_all(call: Any) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


@on_unix
async def test_a_call_has_so_many_tokens_and_no_more(workers: Workers) -> None:
    transfers = Transfers(most_per_call=2)
    for _ in range(2):
        assert len(transfers.issue(Download(SCOPE, "art_x"), "exe_1", workers.own)) >= 43, "256 bits"
    with pytest.raises(ArtifactsFull):
        transfers.issue(Download(SCOPE, "art_x"), "exe_1", workers.own)
    transfers.issue(Download(SCOPE, "art_x"), "exe_2", workers.own)
    transfers.end("exe_1")
    transfers.issue(Download(SCOPE, "art_x"), "exe_1", workers.own)


@on_unix
async def test_nothing_of_a_token_is_kept_to_be_found(workers: Workers) -> None:
    token = workers.for_download("art_" + "0" * 22)
    assert token not in repr(vars(workers.transfers))
