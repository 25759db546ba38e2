"""What a tool declares is there before it runs, its large result is put before its outcome; neither hangs a call."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind, SideEffects
from sidecar._gen.pillion.v1.tool_pb2 import CredentialNeed, Placement, ToolDescriptor
from sidecar.calls.call import Call
from sidecar.calls.outcome import Refusal
from sidecar.calls.ports import Assignment
from sidecar.calls.tool import Tool
from tests.support import READ, CallerPeer, MemoryHost, WorkerPeer, attach, quiet, tool

CANCELLED = FailureKind.FAILURE_KIND_CANCELLED
INTERNAL = FailureKind.FAILURE_KIND_INTERNAL
RESULT_TOO_LARGE = FailureKind.FAILURE_KIND_RESULT_TOO_LARGE
TIMEOUT = FailureKind.FAILURE_KIND_TIMEOUT
UNAVAILABLE = FailureKind.FAILURE_KIND_UNAVAILABLE
UNSUPPORTED = FailureKind.FAILURE_KIND_UNSUPPORTED


class Supply:
    """Supplies what is declared under one name, when the test says so, and notes what it was asked."""

    def __init__(self, host: MemoryHost, declared: str, notes: list[str]) -> None:
        self.at_once = False
        self.ready = asyncio.Event()
        self.refusal: BaseException | None = None
        self.failure: Exception | None = None
        """What comes of placing, if anything does."""
        self._notes = notes
        self._declared = declared
        host.pipeline.suppliers[declared] = self

    def supply(self, _call: Call, _tool: Tool) -> Coroutine[Any, Any, None] | None:
        if self.at_once:
            self._finish()
            return None
        return self._wait()

    def placed(self, call: Call, assignment: Assignment) -> None:
        assert call.instance_id == assignment.instance_id
        if self.failure is not None:
            raise self.failure
        self._notes.append(f"{self._declared} placed")

    async def _wait(self) -> None:
        try:
            await self.ready.wait()
        except asyncio.CancelledError:
            self._notes.append(f"{self._declared} cut off")
            raise
        self._finish()

    def _finish(self) -> None:
        if self.refusal is not None:
            raise self.refusal
        self._notes.append(f"{self._declared} supplied")


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def wants(memory_host: MemoryHost, notes: list[str]) -> Supply:
    return Supply(memory_host, "wants", notes)


@pytest.fixture
def needs(memory_host: MemoryHost, notes: list[str]) -> Supply:
    return Supply(memory_host, "needs", notes)


def declaring(**fields: Any) -> ToolDescriptor:
    return tool(wants={"document": "text"}, needs=[CredentialNeed(service="github")], effects=READ, **fields)


async def peers(host: MemoryHost) -> tuple[WorkerPeer, CallerPeer]:
    return await attach(host, declaring()), await host.caller()


async def test_wants_come_before_needs_and_both_before_the_tool(
    memory_host: MemoryHost, wants: Supply, needs: Supply, notes: list[str]
) -> None:
    worker, caller = await peers(memory_host)
    call = await caller.start()
    await quiet()
    assert notes == []
    wants.ready.set()
    await quiet()
    assert notes == ["wants supplied"]
    assert worker.invoked == []
    needs.ready.set()
    run = (await worker.next_invoke()).call
    assert notes == ["wants supplied", "needs supplied", "wants placed", "needs placed"]
    await worker.result(run, {})
    assert (await caller.outcome(call)).HasField("result")


async def test_what_is_there_at_once_costs_no_wait(
    memory_host: MemoryHost, wants: Supply, needs: Supply, notes: list[str]
) -> None:
    wants.at_once = needs.at_once = True
    worker, caller = await peers(memory_host)
    await caller.start()
    await worker.next_invoke()
    await quiet()
    before = len(asyncio.all_tasks())
    notes.clear()
    await caller.start()
    await worker.next_invoke()
    assert len(asyncio.all_tasks()) == before
    assert notes == ["wants supplied", "needs supplied", "wants placed", "needs placed"]


@pytest.mark.parametrize("keyed", [False, True], ids=["without key", "with key"])
@pytest.mark.parametrize("at_once", [False, True], ids=["later", "at once"])
async def test_what_cannot_be_had_refuses_the_call(
    memory_host: MemoryHost, wants: Supply, needs: Supply, *, at_once: bool, keyed: bool
) -> None:
    wants.at_once = True
    needs.at_once = at_once
    needs.ready.set()
    needs.refusal = Refusal(UNAVAILABLE, "It cannot be had; try again.", retryable=True)
    worker, caller = await peers(memory_host)
    outcome = await caller.call(idempotency_key="k" if keyed else None)
    assert (outcome.failure.kind, outcome.failure.retryable) == (UNAVAILABLE, True)
    assert outcome.failure.side_effects == SideEffects.SIDE_EFFECTS_NONE
    needs.refusal = None
    # The key is free again.
    call = await caller.start(idempotency_key="k" if keyed else None)
    await worker.result((await worker.next_invoke()).call, {})
    assert (await caller.outcome(call)).HasField("result")


@pytest.mark.parametrize("failure", [ValueError("a secret"), asyncio.CancelledError("a secret")], ids=repr)
@pytest.mark.parametrize("keyed", [False, True], ids=["without key", "with key"])
async def test_a_supplier_that_fails_refuses_without_its_text(
    memory_host: MemoryHost, wants: Supply, caplog: pytest.LogCaptureFixture, failure: BaseException, *, keyed: bool
) -> None:
    wants.ready.set()
    wants.refusal = failure
    _, caller = await peers(memory_host)
    del memory_host.pipeline.suppliers["needs"]
    outcome = await caller.call(idempotency_key="k" if keyed else None)
    assert outcome.failure.kind == UNSUPPORTED, "nobody supplies needs, and that is known before anything is supplied"
    memory_host.pipeline.suppliers["needs"] = wants
    outcome = await caller.call(idempotency_key="k" if keyed else None)
    assert outcome.failure.kind == INTERNAL
    assert "secret" not in outcome.failure.message
    caplog.clear()


async def test_a_supplier_that_fails_at_an_instance_harms_no_other_call(
    memory_host: MemoryHost, wants: Supply, needs: Supply, caplog: pytest.LogCaptureFixture
) -> None:
    wants.at_once = needs.at_once = True
    worker, caller = await attach(memory_host, declaring(), tool("read"), concurrency=1), await memory_host.caller()
    other = await caller.start("read")
    run = (await worker.next_invoke()).call
    needs.failure = ValueError("a secret")
    call = await caller.start()
    await worker.result(run)
    assert (await caller.outcome(other)).HasField("result")
    refused = (await caller.outcome(call)).failure
    assert (refused.kind, refused.side_effects) == (INTERNAL, SideEffects.SIDE_EFFECTS_NONE)
    assert "secret" not in refused.message
    needs.failure = None
    await caller.start()
    assert (await worker.next_invoke()).invoke.tool == "echo"
    caplog.clear()


@pytest.mark.parametrize("keyed", [False, True], ids=["without key", "with key"])
@pytest.mark.parametrize("end", ["timeout", "cancel", "disconnect"])
async def test_a_call_that_ends_while_it_waits_leaves_nothing_behind(
    memory_host: MemoryHost, wants: Supply, needs: Supply, notes: list[str], end: str, *, keyed: bool
) -> None:
    wants.at_once = True
    worker, caller = await peers(memory_host)
    call = await caller.start(timeout=3, idempotency_key="k" if keyed else None)
    await quiet()
    if end == "disconnect":
        await caller.aclose()
    else:
        if end == "cancel":
            await caller.cancel(call)
        expected = TIMEOUT if end == "timeout" else CANCELLED
        assert (await caller.outcome(call)).failure.kind == expected
    await quiet()
    assert notes == ["wants supplied", "needs cut off"]
    assert not memory_host.pipeline.running
    assert len(memory_host.pipeline.requests) == 0
    assert worker.invoked == []


async def test_another_instance_gets_what_is_for_it_alone(
    memory_host: MemoryHost, wants: Supply, needs: Supply, notes: list[str]
) -> None:
    wants.at_once = needs.at_once = True
    first, caller = await peers(memory_host)
    call = await caller.start()
    await first.next_invoke()
    second = await attach(memory_host, declaring())
    await first.aclose()
    run = (await second.next_invoke()).call
    placed = ["wants placed", "needs placed"]
    assert notes == ["wants supplied", "needs supplied", *placed, "needs supplied", *placed], "credentials do not last"
    await second.result(run, {})
    assert (await caller.outcome(call)).HasField("result")


# --- gate 12: a large result is put


class Place:
    """Puts results where the test says so."""

    def __init__(self, host: MemoryHost) -> None:
        self.ready = asyncio.Event()
        self.cut_off = False
        self.error: Exception | None = None
        host.pipeline.placer = self

    def place(self, _call: Call, _tool: Tool, frame: Frame) -> Coroutine[Any, Any, Frame] | None:
        return self._place(frame) if len(frame.outcome.result.json) > 10 else None

    async def _place(self, frame: Frame) -> Frame:
        try:
            await self.ready.wait()
        except asyncio.CancelledError:
            self.cut_off = True
            raise
        if self.error is not None:
            raise self.error
        frame.outcome.result.ClearField("json")
        frame.outcome.result.placed.reference = "art_x"
        return frame


LARGE = {"a": "x" * 20}


async def placing(host: MemoryHost) -> tuple[Place, WorkerPeer, CallerPeer]:
    worker = await attach(host, tool(placement=Placement(over_bytes=10)))
    return Place(host), worker, await host.caller()


async def test_a_small_result_goes_as_it_is(memory_host: MemoryHost) -> None:
    _, worker, caller = await placing(memory_host)
    call = await caller.start()
    await worker.result((await worker.next_invoke()).call, 1)
    assert (await caller.outcome(call)).result.json == b"1"


@pytest.mark.parametrize("keyed", [False, True], ids=["without key", "with key"])
async def test_a_large_result_is_put_before_the_outcome_and_its_slot_is_free(
    memory_host: MemoryHost, *, keyed: bool
) -> None:
    place, worker, caller = await placing(memory_host)
    call = await caller.start(idempotency_key="k" if keyed else None)
    await worker.result((await worker.next_invoke()).call, LARGE)
    await quiet()
    assert caller.outcomes(call) == []
    # A cancel comes too late: the tool has returned.
    await caller.cancel(call)
    await quiet()
    assert (await memory_host.counters())["late_causes"] == 1
    place.ready.set()
    result = (await caller.outcome(call)).result
    assert (result.HasField("json"), result.placed.reference) == (False, "art_x")
    if keyed:
        assert (await caller.call(idempotency_key="k")).result.placed.reference == "art_x"


@pytest.mark.parametrize("fails", ["hangs", "raises"])
@pytest.mark.parametrize("keyed", [False, True], ids=["without key", "with key"])
async def test_a_result_that_cannot_be_put_is_too_large_and_keeps_its_effects(
    memory_host: MemoryHost, caplog: pytest.LogCaptureFixture, fails: str, *, keyed: bool
) -> None:
    loop = asyncio.get_running_loop()
    place, worker, caller = await placing(memory_host)
    if fails == "raises":
        place.error = OSError("a secret")
        place.ready.set()
    call = await caller.start(idempotency_key="k" if keyed else None)
    run = (await worker.next_invoke()).call
    began = loop.time()
    await worker.result(run, LARGE)
    failure = (await caller.outcome(call)).failure
    assert (failure.kind, failure.side_effects) == (RESULT_TOO_LARGE, SideEffects.SIDE_EFFECTS_COMMITTED)
    assert "secret" not in failure.message
    if fails == "hangs":
        assert loop.time() - began == pytest.approx(memory_host.pipeline.limits.teardown_grace, abs=0.02)
        await quiet()
        assert place.cut_off
    caplog.clear()
