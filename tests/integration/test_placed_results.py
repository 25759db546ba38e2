"""Gate 12, with bare stubs: large results of tools that say where these go."""

from typing import Any

import pytest

from sidecar._gen.pillion.v1.artifacts_pb2 import ScopeFacts, UploadHeader
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind, Outcome, SideEffects
from sidecar._gen.pillion.v1.tool_pb2 import Placement
from sidecar.artifacts import ArtifactLimits
from tests.support import READ, Invocation, SocketHost, StartHost, WorkerPeer, attach, on_unix, tool
from tests.support.artifacts import MIB, Artifacts, put_request, upload_request

pytestmark = on_unix

KIB = 1024
HERE = ScopeFacts(session_id="s")
TOO_LARGE = FailureKind.FAILURE_KIND_RESULT_TOO_LARGE
INTERNAL = FailureKind.FAILURE_KIND_INTERNAL
COMMITTED = SideEffects.SIDE_EFFECTS_COMMITTED


def placing(**fields: Any) -> Any:
    """A tool whose results over 100 bytes are placed."""
    return tool(placement=Placement(over_bytes=100, kind=fields.pop("kind", None)), **fields)


async def test_a_result_over_the_threshold_becomes_an_artifact(host: SocketHost, artifacts: Artifacts) -> None:
    worker, caller = await attach(host, placing(output_schema={"type": "string"})), await host.caller()
    call = await caller.start(session_id="s")
    run = await worker.next_invoke()
    await worker.result(run.call, "x" * 200)
    result = (await caller.outcome(call)).result
    assert not result.HasField("json")
    meta = result.placed
    assert (meta.kind, meta.media_type, meta.label, meta.size) == (
        "tool-result/echo",
        "application/json",
        "echo result",
        202,
    )
    assert meta.origin.execution_id == run.context.execution_id
    got = await artifacts.get(HERE, meta.reference)
    assert (got.data.content, got.data.shape) == (b'"%b"' % (b"x" * 200), 3)


async def test_what_is_small_or_an_error_stays_as_it_is(host: SocketHost, artifacts: Artifacts) -> None:
    worker, caller = await attach(host, placing(kind="report")), await host.caller()
    for value, is_error in (("x" * 98, False), ("x" * 200, True), (None, False)):
        call = await caller.start(session_id="s")
        await worker.result((await worker.next_invoke()).call, value, is_error=is_error)
        result = (await caller.outcome(call)).result
        assert not result.HasField("placed")
        assert result.HasField("json") is (value is not None)
    assert not await artifacts.references(HERE)
    call = await caller.start(session_id="s")
    await worker.result((await worker.next_invoke()).call, "x" * 99)
    assert (await caller.outcome(call)).result.placed.kind == "report"


async def test_what_was_wanted_is_a_parent_of_the_result(host: SocketHost, artifacts: Artifacts) -> None:
    worker, caller = await attach(host, placing(wants={"a": "note", "b": "note"})), await host.caller()
    reference = (await artifacts.put(HERE, b"x")).meta.reference
    call = await caller.start(arguments={"a": reference, "b": reference}, session_id="s")
    await worker.result((await worker.next_invoke()).call, "x" * 200)
    assert list((await caller.outcome(call)).result.placed.parents) == [reference]


async def test_a_ceiling_comes_before_the_placement(host: SocketHost, artifacts: Artifacts) -> None:
    worker, caller = await attach(host, placing(result_ceiling_bytes=150)), await host.caller()
    call = await caller.start(session_id="s")
    await worker.result((await worker.next_invoke()).call, "x" * 200)
    assert (await caller.outcome(call)).failure.kind == TOO_LARGE
    assert not await artifacts.references(HERE)


async def test_a_result_that_cannot_be_put_is_passed_on(start_host: StartHost) -> None:
    host = await start_host(artifacts=ArtifactLimits(max_bytes=150))
    worker, caller = await attach(host, placing()), await host.caller()
    call = await caller.start(session_id="s")
    await worker.result((await worker.next_invoke()).call, "x" * 200)
    result = (await caller.outcome(call)).result
    assert (len(result.json), result.HasField("placed")) == (202, False)
    assert (await host.counters())["unplaced_results"] == 1


async def test_a_replay_names_the_same_artifact(host: SocketHost, artifacts: Artifacts) -> None:
    worker, caller = await attach(host, placing()), await host.caller()
    call = await caller.start(session_id="s", idempotency_key="k")
    await worker.result((await worker.next_invoke()).call, "x" * 200)
    first = (await caller.outcome(call)).result.placed.reference
    again = (await caller.call(session_id="s", idempotency_key="k")).result
    assert again.placed.reference == first
    assert await artifacts.references(HERE) == [first]
    assert len(worker.invoked) == 1


# --- results over a frame, which their worker uploads


async def uploaded(
    host: SocketHost, worker: WorkerPeer, run: Invocation, secret: str, content: bytes = b'"x"', **rest: Any
) -> str:
    """The reference of what a worker uploads in a call."""
    stated: dict[str, Any] = {"shape": 3, "kind": "tool-result/echo", **rest}
    opened = await worker.ask(run.call, upload_request(len(content), **stated))
    chunks = [content[offset : offset + MIB] for offset in range(0, len(content), MIB)]
    async with Artifacts(host.workers_at) as for_workers:
        header = UploadHeader(transfer_token=opened.artifact_upload.transfer_token)
        return (await for_workers.upload(header, chunks, secret)).meta.reference


def naming(call: int, reference: str, json: bytes | None = None) -> Frame:
    """An outcome that names an upload."""
    frame = Frame(call=call)
    frame.outcome.uploaded_reference = reference
    frame.outcome.result.SetInParent()
    if json is not None:
        frame.outcome.result.json = json
    return frame


async def test_a_result_over_a_frame_is_uploaded(host: SocketHost, artifacts: Artifacts) -> None:
    worker, caller = await host.worker(), await host.caller()
    secret = (await worker.hello(placing(output_schema={"type": "string"}))).reattach_secret
    call = await caller.start(session_id="s", idempotency_key="k")
    run = await worker.next_invoke()
    reference = await uploaded(host, worker, run, secret, b'"%b"' % (b"x" * 3 * MIB))
    await worker.send(naming(run.call, reference))
    outcome = await caller.outcome(call)
    assert outcome.result.placed.reference == reference
    assert not outcome.HasField("uploaded_reference")
    assert outcome.result.placed.size == 3 * MIB + 2
    assert (await caller.call(session_id="s", idempotency_key="k")).result.placed.reference == reference


async def test_an_artifact_that_is_not_the_calls_result_is_none(host: SocketHost, artifacts: Artifacts) -> None:
    worker, caller = await host.worker(), await host.caller()
    secret = (await worker.hello(placing())).reattach_secret
    by_the_caller = (await artifacts.put(HERE, b"{}", shape=3, kind="tool-result/echo")).meta.reference
    before = await caller.start(session_id="s")
    earlier = await worker.next_invoke()
    by_another_call = await uploaded(host, worker, earlier, secret)
    await worker.result(earlier.call)
    await caller.outcome(before)
    told = set()

    async def ended(reference: str | None, **rest: Any) -> Outcome:
        call = await caller.start(session_id="s")
        run = await worker.next_invoke()
        await worker.send(naming(run.call, reference or await uploaded(host, worker, run, secret, **rest)))
        return await caller.outcome(call)

    for reference in (by_the_caller, by_another_call, "art_" + "0" * 22, "../x"):
        failure = (await ended(reference)).failure
        assert (failure.kind, failure.side_effects) == (INTERNAL, COMMITTED)
        told.add(failure.message)
    for rest in ({"shape": 1}, {"kind": "note"}):
        failure = (await ended(None, **rest)).failure
        assert (failure.kind, failure.side_effects) == (INTERNAL, COMMITTED)
        told.add(failure.message)
    assert len(told) == 1
    assert (await ended(None)).result.placed.size == 3


async def test_an_upload_beside_a_value_is_no_result(host: SocketHost) -> None:
    worker, caller = await host.worker(), await host.caller()
    secret = (await worker.hello(placing(effects=READ))).reattach_secret
    call = await caller.start(session_id="s")
    run = await worker.next_invoke()
    await worker.send(naming(run.call, await uploaded(host, worker, run, secret), b"1"))
    failure = (await caller.outcome(call)).failure
    assert (failure.kind, failure.side_effects) == (INTERNAL, SideEffects.SIDE_EFFECTS_NONE)


async def test_an_upload_over_the_ceiling_is_refused(host: SocketHost) -> None:
    worker, caller = await host.worker(), await host.caller()
    secret = (await worker.hello(placing(result_ceiling_bytes=2))).reattach_secret
    call = await caller.start(session_id="s")
    run = await worker.next_invoke()
    await worker.send(naming(run.call, await uploaded(host, worker, run, secret)))
    failure = (await caller.outcome(call)).failure
    assert (failure.kind, failure.side_effects) == (TOO_LARGE, COMMITTED)


@pytest.mark.parametrize("keeps_artifacts", [True, False])
async def test_without_a_placement_an_upload_is_no_result(start_host: StartHost, *, keeps_artifacts: bool) -> None:
    host = await start_host(keeps_artifacts=keeps_artifacts)
    # Without a store, even a tool that declares one has no placement.
    worker, caller = await attach(host, tool() if keeps_artifacts else placing()), await host.caller()
    call = await caller.start(session_id="s")
    run = await worker.next_invoke()
    reference = (await worker.ask(run.call, put_request(b"{}", shape=3))).artifact_stored.meta.reference
    await worker.send(naming(run.call, reference))
    failure = (await caller.outcome(call)).failure
    assert (failure.kind, failure.side_effects) == (TOO_LARGE, COMMITTED)
    if not keeps_artifacts:
        call = await caller.start(session_id="s")
        await worker.result((await worker.next_invoke()).call, "x" * 200)
        assert len((await caller.outcome(call)).result.json) == 202
