"""Guarantee 16: after `kill -9` of the sidecar, what it had acknowledged is there."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio
import pytest

from sidecar._gen.pillion.v1.context_pb2 import TeardownScope
from sidecar._gen.pillion.v1.execute_pb2 import CallRequest, CallResponse, EndScopeRequest
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outcome_pb2 import Outcome
from sidecar._gen.pillion.v1.worker_pb2 import Reattach, RegisterTeardown
from sidecar.audit.chain import Key
from sidecar.audit.log import Places
from sidecar.audit.segments import lines_of, segments_in
from sidecar.audit.verification import verify
from tests.support import SidecarProcess, attach, end_scope, on_unix, tool
from tests.support.artifacts import ANN, Artifacts
from tests.support.caller import start_of

pytestmark = on_unix

AT_ONCE = 200
PUTS = 50
PATIENCE = 20.0
SESSION = TeardownScope.TEARDOWN_SCOPE_SESSION
CALL = "/pillion.v1.ToolHostService/Call"


@pytest.fixture
async def process(tmp_path: Path) -> AsyncIterator[SidecarProcess]:
    started = SidecarProcess(tmp_path)
    yield started
    await started.aclose()


def recorded(state: Path) -> str:
    """The log, which has to be whole but for its torn end."""
    places = Places(state / "audit", state / "audit.head")
    verification = verify(places, Key((state / "audit.key").read_bytes().strip()))
    assert verification.found == []
    return "\n".join(line.decode() for segment in segments_in(places.directory) for line, _ in lines_of(segment))


@pytest.mark.parametrize("after", [1, 7, AT_ONCE])
async def test_guarantee_16_every_outcome_that_was_told_is_in_the_audit_log(
    process: SidecarProcess, after: int
) -> None:
    await process.start()
    worker, caller = await attach(process, concurrency=AT_ONCE), await process.caller()
    begun = [await caller.start("echo") for _ in range(AT_ONCE)]
    for _ in begun:
        await worker.result((await worker.next_invoke()).call, {})
    await caller.outcome(begun[after - 1])
    await process.kill()
    told = {
        frame.started.execution_id
        for call in begun
        if "outcome" in caller.bodies(call)
        for frame in caller.frames[call]
        if frame.HasField("started")
    }
    assert len(told) >= after
    text = await asyncio.to_thread(recorded, process.config.parent / "state")
    assert {execution for execution in told if f'"execution":"{execution}"' not in text} == set()

    # And the next sidecar goes on with it.
    await process.start()
    await process.aclose()
    await asyncio.to_thread(recorded, process.config.parent / "state")


async def test_guarantee_16_a_single_call_that_was_answered_is_in_the_audit_log(process: SidecarProcess) -> None:
    await process.start()
    worker = await attach(process)
    async with grpc.aio.insecure_channel(process.callers_at) as channel:
        call = channel.unary_unary(CALL, CallRequest.SerializeToString, CallResponse.FromString)
        answering = asyncio.ensure_future(call(CallRequest(start=start_of("echo"))))
        await worker.result((await worker.next_invoke()).call, {})
        answer: CallResponse = await answering
        await process.kill()
    text = await asyncio.to_thread(recorded, process.config.parent / "state")
    assert f'"execution":"{answer.started.execution_id}"' in text


@pytest.mark.parametrize("after", [1, PUTS, AT_ONCE + PUTS // 2])
async def test_guarantee_16_what_was_kept_in_shared_commits_is_there(process: SidecarProcess, after: int) -> None:
    """Artifacts and requests with a key, hundreds at once: their records are written by a few commits."""
    await process.start()
    worker, caller = await attach(process, concurrency=AT_ONCE), await process.caller()
    kept: dict[str, bytes] = {}
    done: dict[str, Outcome] = {}
    enough = asyncio.Event()

    async def keep(artifacts: Artifacts, number: int) -> None:
        content = b"%d" % number
        answer = await artifacts.put(ANN, content)
        kept[answer.meta.reference] = content
        count()

    async def request(number: int) -> None:
        key = str(number)
        done[key] = await caller.call("echo", {"number": number}, idempotency_key=key)
        count()

    def count() -> None:
        if len(kept) + len(done) >= after:
            enough.set()

    async def work() -> None:
        for _ in range(AT_ONCE):
            await worker.result((await worker.next_invoke()).call, {})

    async with Artifacts(process.callers_at) as artifacts:
        tasks = [asyncio.ensure_future(keep(artifacts, number)) for number in range(PUTS)]
        tasks += [asyncio.ensure_future(request(number)) for number in range(AT_ONCE)]
        tasks.append(asyncio.ensure_future(work()))
        async with asyncio.timeout(PATIENCE):
            await enough.wait()
        await process.kill()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert len(kept) + len(done) >= after

    await process.start()
    worker, caller = await attach(process), await process.caller()
    async with Artifacts(process.callers_at) as artifacts:
        for reference, content in kept.items():
            assert (await artifacts.get(ANN, reference)).data.content == content
    for key, outcome in done.items():
        assert await caller.call("echo", {"number": int(key)}, idempotency_key=key) == outcome
    await worker.flush()
    assert worker.invoked == []


@pytest.mark.parametrize("after", [1, 7, AT_ONCE])
async def test_guarantee_16_every_teardown_that_was_acknowledged_fires_once(
    process: SidecarProcess, after: int
) -> None:
    await process.start()
    worker, caller = await process.worker(), await process.caller()
    welcome = await worker.hello(tool(), concurrency=AT_ONCE)
    for _ in range(AT_ONCE):
        await caller.start("echo", session_id="s")
    runs = [(await worker.next_invoke()).call for _ in range(AT_ONCE)]
    registrations = [RegisterTeardown(request_id=1, scope=SESSION, name=str(run)) for run in runs]
    await worker.send(*[Frame(call=run, register_teardown=one) for run, one in zip(runs, registrations, strict=True)])
    await worker.next_of("reply", runs[after - 1])
    await process.kill()
    replies = [frame.reply for run in runs for frame in worker.frames[run] if frame.HasField("reply")]
    acknowledged = [reply.teardown.registration_id for reply in replies]
    assert len(acknowledged) >= after

    await process.start()
    again = Reattach(
        instance_id=welcome.instance_id,
        secret=welcome.reattach_secret,
        registrations=[*acknowledged, "reg_unknown"],
    )
    worker = await process.worker()
    assert (await worker.hello(tool(), concurrency=AT_ONCE, reattach=again)).instance_id == welcome.instance_id
    assert (await worker.next_of("release")).release.registration_id == "reg_unknown"
    end = asyncio.ensure_future(end_scope(process, EndScopeRequest(session_id="s")))
    for _ in acknowledged:
        await worker.torn_down((await worker.next_teardown()).registration_id)
    ended = await end
    assert (ended.fired, ended.failed) == (len(acknowledged), 0)
    assert sorted(one.registration_id for one in worker.teardowns()) == sorted(acknowledged)
