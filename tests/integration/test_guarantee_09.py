"""Guarantee 9: an unsafe tool never runs twice for one request; a safe one is retried once, where that is safe."""

import asyncio
from typing import Any

import pytest

from sidecar._gen.pillion.v1.context_pb2 import Identity, TeardownScope
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outbound_pb2 import OutboundRequest
from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind, Outcome, SideEffects
from sidecar._gen.pillion.v1.tool_pb2 import Effects, ToolDescriptor
from sidecar._gen.pillion.v1.worker_pb2 import Reattach, RegisterTeardown
from tests.support import (
    IDEMPOTENT,
    READ,
    UNSAFE,
    CallerPeer,
    Host,
    Invocation,
    MemoryHost,
    SidecarProcess,
    WorkerPeer,
    attach,
    everywhere,
    on_unix,
    progress,
    quiet,
    result,
    tool,
)

CANCELLED = FailureKind.FAILURE_KIND_CANCELLED
CONFLICT = FailureKind.FAILURE_KIND_IDEMPOTENCY_CONFLICT
OUTCOME_UNKNOWN = FailureKind.FAILURE_KIND_OUTCOME_UNKNOWN
TOOL_FAILED = FailureKind.FAILURE_KIND_TOOL_FAILED
UNAVAILABLE = FailureKind.FAILURE_KIND_UNAVAILABLE
WORKER_LOST = FailureKind.FAILURE_KIND_WORKER_LOST

COMMITTED = SideEffects.SIDE_EFFECTS_COMMITTED
NONE = SideEffects.SIDE_EFFECTS_NONE
POSSIBLE = SideEffects.SIDE_EFFECTS_POSSIBLE

KEYS = pytest.mark.parametrize("key", [None, "k-1"], ids=["no key", "key"])

POINTS = ["invoked", "reported", "asked", "answered", "registered", "ended"]
"""Frames of an exchange, behind each of which a stream is cut."""

HARMLESS = ("artifact_head", "artifact_get", "credential_get")
OTHERS = [
    field.name for field in OutboundRequest.DESCRIPTOR.oneofs_by_name["request"].fields if field.name not in HARMLESS
]


def named(effects: "Effects.ValueType") -> ToolDescriptor:
    """The tool of these effects."""
    return tool({READ: "read", IDEMPOTENT: "put"}.get(effects, "send"), effects=effects)


def asking(run: int, name: str) -> Frame:
    """An outbound request of this kind."""
    frame = Frame(call=run)
    frame.outbound_request.request_id = 1
    getattr(frame.outbound_request, name).SetInParent()
    return frame


async def walk(worker: WorkerPeer, run: int, until: str) -> None:
    """Goes through the frames of an exchange up to one of them, which the sidecar has handled on return."""
    for point in POINTS:
        match point:
            case "reported":
                await worker.progress(run)
            case "asked":
                await worker.send(asking(run, "artifact_head"))
            case "answered":
                await worker.next_of("reply", run)
            case "registered":
                await worker.register(run, RegisterTeardown(request_id=2, scope=TeardownScope.TEARDOWN_SCOPE_CALL))
            case "ended":
                await worker.result(run, b'"done"')
        if point == until:
            break
    await worker.flush()


def wishes_of(key: str | None) -> dict[str, Any]:
    """The wishes of a request with this key."""
    return {} if key is None else {"idempotency_key": key}


async def ask_again(caller: CallerPeer, outcome: Outcome, key: str) -> None:
    """Sends the same request once more, which is told what came of it."""
    again = await caller.start("send", {"to": "ann"}, idempotency_key=key)
    assert await caller.outcome(again) == outcome
    assert caller.frames[again][0].started.joined


# --- a worker's stream is cut


@everywhere
@KEYS
@pytest.mark.parametrize("point", POINTS)
async def test_guarantee_09_an_unsafe_tool_whose_worker_is_cut_is_not_run_again(
    host: Host, point: str, key: str | None
) -> None:
    worker, caller = await attach(host, named(UNSAFE)), await host.caller()
    call = await caller.start("send", {"to": "ann"}, **wishes_of(key))
    run = (await worker.next_invoke()).call
    other = await attach(host, named(UNSAFE))
    await walk(worker, run, point)
    worker.cut()
    outcome = await caller.outcome(call)
    if point == "ended":
        assert outcome.result.json == b'"done"'
    else:
        assert outcome.failure.kind == OUTCOME_UNKNOWN
        assert outcome.failure.side_effects == POSSIBLE
        assert not outcome.failure.retryable
    if key is not None:
        await ask_again(caller, outcome, key)
    await other.flush()
    assert other.invoked == []


@everywhere
@KEYS
async def test_guarantee_09_an_unsafe_tool_that_is_cut_while_it_is_cancelled_is_not_run_again(
    host: Host, key: str | None
) -> None:
    worker, caller = await attach(host, named(UNSAFE)), await host.caller()
    call = await caller.start("send", {"to": "ann"}, **wishes_of(key))
    run = (await worker.next_invoke()).call
    other = await attach(host, named(UNSAFE))
    await caller.cancel(call)
    await worker.cancelled(run)
    worker.cut()
    outcome = await caller.outcome(call)
    assert (outcome.failure.kind, outcome.failure.side_effects) == (CANCELLED, POSSIBLE)
    if key is not None:
        await ask_again(caller, outcome, key)
    await other.flush()
    assert other.invoked == []


@KEYS
@pytest.mark.parametrize("effects", [READ, IDEMPOTENT, UNSAFE], ids=["read", "idempotent", "unsafe"])
async def test_guarantee_09_a_call_that_was_not_handed_over_is_routed_again(
    host: Host, effects: "Effects.ValueType", key: str | None
) -> None:
    slow, caller = await attach(host, named(effects)), await host.caller()
    slow.pause()
    # The first two fill what can be on its way, so that the third is not handed to the transport.
    calls = [await caller.start(named(effects).name, {"number": number}) for number in range(2)]
    await quiet()
    calls.append(await caller.start(named(effects).name, {"number": 2}, **wishes_of(key)))
    await quiet()
    other = await attach(host, named(effects))
    slow.cut()
    if effects == UNSAFE:
        for call in calls[:2]:
            assert (await caller.outcome(call)).failure.kind == OUTCOME_UNKNOWN
    seen = [await other.next_invoke() for _ in range(1 if effects == UNSAFE else 3)]
    await worker_ends(other, *seen)
    attempts = {invocation.invoke.arguments: invocation.context.attempt for invocation in seen}
    assert attempts[b'{"number": 2}'] == 1
    assert (await caller.outcome(calls[2])).HasField("result")
    assert len(other.invoked) == len(seen)


@pytest.mark.parametrize("how", ["half closed", "hung", "unreadable", "back again"])
async def test_guarantee_09_what_a_lost_worker_was_not_sent_yet_it_is_never_sent(host: Host, how: str) -> None:
    slow, caller = await host.worker(), await host.caller()
    welcome = await slow.hello(named(UNSAFE))
    slow.pause()
    # The first two fill what can be on its way, so that the third is not handed to the transport.
    for number in range(2):
        await caller.start("send", {"number": number}, timeout=300)
        await quiet()
    call = await caller.start("send", {"number": 2}, timeout=300)
    await quiet()
    other = await attach(host, named(UNSAFE))
    match how:
        case "half closed":
            await slow.half_close()
        case "hung":
            await asyncio.sleep(42)
        case "unreadable":
            await slow.send_bytes(b"\xff")
            await slow.send_bytes(b"\xff")
        case _:
            again = Reattach(instance_id=welcome.instance_id, secret=welcome.reattach_secret)
            await attach(host, named(UNSAFE), reattach=again)
    invocation = await other.next_invoke()
    assert (invocation.invoke.arguments, invocation.context.attempt) == (b'{"number": 2}', 1)
    slow.resume()
    await slow.end()
    assert [each.invoke.arguments for each in slow.invoked] == [b'{"number": 0}', b'{"number": 1}']
    await worker_ends(other, invocation)
    assert (await caller.outcome(call)).HasField("result")


async def worker_ends(worker: WorkerPeer, *invocations: Invocation) -> None:
    """Has a worker end these calls in results."""
    await worker.send(*(result(invocation.call, b"1") for invocation in invocations))


# --- a caller's stream is cut


@everywhere
@pytest.mark.parametrize("point", POINTS)
async def test_guarantee_09_a_request_that_is_sent_again_after_a_lost_stream_runs_once(host: Host, point: str) -> None:
    worker, lost, caller = await attach(host, named(UNSAFE)), await host.caller(), await host.caller()
    await lost.start("send", {"to": "ann"}, idempotency_key="k")
    run = (await worker.next_invoke()).call
    await walk(worker, run, point)
    lost.cut()
    if point != "ended":
        await worker.cancelled(run)
    again = await caller.start("send", {"to": "ann"}, idempotency_key="k")
    await caller.flush()
    if point != "ended":
        await worker.result(run, b'"done"')
    outcome = await caller.outcome(again)
    if point == "ended":
        assert outcome.result.json == b'"done"'
    else:
        assert (outcome.failure.kind, outcome.failure.side_effects) == (CANCELLED, COMMITTED)
    await ask_again(caller, outcome, "k")
    await worker.flush()
    assert len(worker.invoked) == 1


@everywhere
async def test_guarantee_09_the_same_request_joins_the_one_that_runs(host: Host) -> None:
    worker, first, second = await attach(host, named(UNSAFE)), await host.caller(), await host.caller()
    original = await first.start("send", {"to": "ann"}, idempotency_key="k")
    run = (await worker.next_invoke()).call
    joined = [await second.start("send", {"to": "ann"}, idempotency_key="k") for _ in range(3)]
    await second.flush()
    # Its cancel leaves the original running.
    await second.cancel(joined[0])
    left = (await second.outcome(joined[0])).failure
    assert (left.kind, left.side_effects) == (CANCELLED, POSSIBLE)
    await worker.send(progress(run, {"step": 1}), result(run, b'"done"'))
    for caller, call in ((first, original), (second, joined[1]), (second, joined[2])):
        assert (await caller.outcome(call)).result.json == b'"done"'
        assert caller.bodies(call) == ["started", "progress", "outcome"]
        assert caller.frames[call][0].started.joined is (call != original or caller is second)
    assert len(worker.invoked) == 1
    assert worker.bodies(run) == ["invoke"]


@everywhere
@pytest.mark.parametrize("leaves", ["cut", "cancel"])
async def test_guarantee_09_a_request_that_others_joined_goes_on_when_its_first_caller_leaves(
    host: Host, leaves: str
) -> None:
    worker, first, second = await attach(host, named(UNSAFE)), await host.caller(), await host.caller()
    original = await first.start("send", {"to": "ann"}, idempotency_key="k")
    run = (await worker.next_invoke()).call
    joined = [await second.start("send", {"to": "ann"}, idempotency_key="k", tool_call_id=name) for name in "ab"]
    await second.flush()
    if leaves == "cut":
        first.cut()
        await first.end()
    else:
        await first.cancel(original)
        left = (await first.outcome(original)).failure
        assert (left.kind, left.side_effects) == (CANCELLED, POSSIBLE)
    await worker.send(progress(run, {"step": 1}), result(run, b'"done"'))
    for call, name in zip(joined, "ab", strict=True):
        assert (await second.outcome(call)).result.json == b'"done"'
        assert second.bodies(call) == ["started", "progress", "outcome"]
        started = second.frames[call][0].started
        assert (started.joined, started.tool_call_id) == (True, name)
    assert worker.bodies(run) == ["invoke"]
    assert len(worker.invoked) == 1


@everywhere
async def test_guarantee_09_a_key_with_other_arguments_conflicts_and_runs_nothing(host: Host) -> None:
    worker, caller = await attach(host, named(UNSAFE)), await host.caller()
    call = await caller.start("send", b'{"to":"ann"}', idempotency_key="k")
    run = (await worker.next_invoke()).call
    # The digest is of the bytes: another spelling is another request.
    while_it_runs = (await caller.call("send", b'{"to": "ann"}', idempotency_key="k")).failure
    await worker.result(run)
    await caller.outcome(call)
    afterwards = (await caller.call("send", b'{"to":"bob"}', idempotency_key="k")).failure
    for refused in (while_it_runs, afterwards):
        assert (refused.kind, refused.side_effects) == (CONFLICT, NONE)
    assert len(worker.invoked) == 1


@everywhere
async def test_guarantee_09_a_key_is_bound_to_tenant_subject_and_tool(host: Host) -> None:
    worker, caller = await attach(host, named(UNSAFE), tool("echo")), await host.caller()
    ann, bob, acme = Identity(principal="ann"), Identity(principal="bob"), Identity(principal="ann", tenant="acme")
    for identity in (None, ann, bob, acme):
        for name in ("send", "echo"):
            call = await caller.start(name, {}, idempotency_key="k", identity=identity)
            await worker_ends(worker, await worker.next_invoke())
            assert (await caller.outcome(call)).HasField("result")
            assert not caller.frames[call][0].started.joined
    assert len(worker.invoked) == 8


@everywhere
async def test_guarantee_09_only_an_outcome_without_effects_frees_its_key(host: Host) -> None:
    worker, caller = await attach(host, named(UNSAFE)), await host.caller()
    for key, side_effects, runs in (("none", NONE, 2), ("possible", POSSIBLE, 1), ("committed", COMMITTED, 1)):
        before = len(worker.invoked)
        call = await caller.start("send", {"to": "ann"}, idempotency_key=key)
        await worker.fail((await worker.next_invoke()).call, TOOL_FAILED, side_effects)
        outcome = await caller.outcome(call)
        assert outcome.failure.kind == TOOL_FAILED
        if runs == 1:
            await ask_again(caller, outcome, key)
        else:
            again = await caller.start("send", {"to": "ann"}, idempotency_key=key)
            await worker_ends(worker, await worker.next_invoke())
            assert (await caller.outcome(again)).HasField("result")
        assert len(worker.invoked) - before == runs


async def test_guarantee_09_without_its_records_a_keyed_request_is_not_run(memory_host: MemoryHost) -> None:
    worker, caller = await attach(memory_host, named(UNSAFE)), await memory_host.caller()
    memory_host.store.broken = True
    refused = (await caller.call("send", {}, idempotency_key="k")).failure
    assert (refused.kind, refused.side_effects, refused.retryable) == (UNAVAILABLE, NONE, True)
    assert worker.invoked == []


# --- the sidecar is killed


@on_unix
async def test_guarantee_09_after_a_kill_an_unfinished_unsafe_request_is_unknown(
    sidecar_process: SidecarProcess,
) -> None:
    tools = named(UNSAFE), named(READ)
    worker, caller = await attach(sidecar_process, *tools), await sidecar_process.caller()
    for name in ("send", "read"):
        await caller.start(name, {"to": "ann"}, idempotency_key="k")
        await worker.next_invoke()
    await sidecar_process.kill()
    await sidecar_process.start()
    worker, caller = await attach(sidecar_process, *tools), await sidecar_process.caller()
    for _ in range(2):
        unknown = (await caller.call("send", {"to": "ann"}, idempotency_key="k")).failure
        assert (unknown.kind, unknown.side_effects, unknown.retryable) == (OUTCOME_UNKNOWN, POSSIBLE, False)
    # One that only reads may be run again.
    call = await caller.start("read", {"to": "ann"}, idempotency_key="k")
    await worker_ends(worker, await worker.next_invoke())
    assert (await caller.outcome(call)).HasField("result")
    assert [invocation.invoke.tool for invocation in worker.invoked] == ["read"]


@on_unix
async def test_guarantee_09_after_a_kill_a_finished_request_has_its_outcome(sidecar_process: SidecarProcess) -> None:
    worker, caller = await attach(sidecar_process, named(UNSAFE)), await sidecar_process.caller()
    call = await caller.start("send", {"to": "ann"}, idempotency_key="k")
    await worker.result((await worker.next_invoke()).call, b'"sent"')
    outcome = await caller.outcome(call)
    # The moment that the caller has the outcome is late enough.
    await sidecar_process.kill()
    await sidecar_process.start()
    worker, caller = await attach(sidecar_process, named(UNSAFE)), await sidecar_process.caller()
    await ask_again(caller, outcome, "k")
    assert (await caller.call("send", {"to": "bob"}, idempotency_key="k")).failure.kind == CONFLICT
    await worker.flush()
    assert worker.invoked == []


# --- what may be run again, and when


@everywhere
@KEYS
@pytest.mark.parametrize("effects", [READ, IDEMPOTENT], ids=["read", "idempotent"])
@pytest.mark.parametrize("point", ["invoked", "reported", "asked", "answered"])
async def test_guarantee_09_a_safe_tool_is_retried_once_on_another_instance(
    host: Host, point: str, effects: "Effects.ValueType", key: str | None
) -> None:
    worker, caller = await attach(host, named(effects)), await host.caller()
    call = await caller.start(named(effects).name, {"number": 1}, **wishes_of(key))
    first = await worker.next_invoke()
    other = await attach(host, named(effects))
    await walk(worker, first.call, point)
    worker.cut()
    second = await other.next_invoke()
    assert second.invoke.arguments == first.invoke.arguments
    assert second.context.execution_id == first.context.execution_id
    assert (first.context.attempt, second.context.attempt) == (1, 2)
    await worker_ends(other, second)
    assert (await caller.outcome(call)).HasField("result")
    assert len(caller.outcomes(call)) == 1


@everywhere
@pytest.mark.parametrize(("effects", "left"), [(READ, NONE), (IDEMPOTENT, POSSIBLE)], ids=["read", "idempotent"])
async def test_guarantee_09_a_safe_tool_that_is_lost_twice_is_not_run_a_third_time(
    host: Host, effects: "Effects.ValueType", left: "SideEffects.ValueType"
) -> None:
    caller = await host.caller()
    first = await attach(host, named(effects))
    call = await caller.start(named(effects).name)
    await first.next_invoke()
    second = await attach(host, named(effects))
    first.cut()
    await second.next_invoke()
    third = await attach(host, named(effects))
    second.cut()
    lost = (await caller.outcome(call)).failure
    assert (lost.kind, lost.side_effects, lost.retryable) == (WORKER_LOST, left, True)
    await third.flush()
    assert third.invoked == []


async def test_guarantee_09_a_retry_that_the_other_instance_cannot_take_does_not_hide_the_first_run(
    host: Host,
) -> None:
    worker, caller = await attach(host, named(IDEMPOTENT)), await host.caller()
    call = await caller.start("put", {"text": "x" * 6_000})
    await worker.next_invoke()
    other = await attach(host, named(IDEMPOTENT), max_frame_bytes=4_096)
    worker.cut()
    lost = (await caller.outcome(call)).failure
    assert (lost.kind, lost.side_effects) == (WORKER_LOST, POSSIBLE)
    assert other.invoked == []


async def test_guarantee_09_a_safe_tool_without_another_instance_is_lost_after_worker_wait(host: Host) -> None:
    worker, caller = await attach(host, named(READ)), await host.caller()
    call = await caller.start("read")
    await worker.next_invoke()
    worker.cut()
    lost = (await caller.outcome(call)).failure
    assert (lost.kind, lost.side_effects, lost.retryable) == (WORKER_LOST, NONE, True)
    assert 5 <= asyncio.get_running_loop().time() <= 5.02


@pytest.mark.parametrize("name", HARMLESS)
async def test_guarantee_09_a_safe_tool_that_only_looked_is_retried(host: Host, name: str) -> None:
    worker, caller = await attach(host, named(READ)), await host.caller()
    call = await caller.start("read")
    run = (await worker.next_invoke()).call
    await worker.send(asking(run, name))
    await worker.next_of("reply", run)
    worker.cut()
    other = await attach(host, named(READ))
    await worker_ends(other, await other.next_invoke())
    assert (await caller.outcome(call)).HasField("result")


@pytest.mark.parametrize("name", [*OTHERS, "a registration", "an unknown request"])
async def test_guarantee_09_a_safe_tool_that_did_more_than_look_is_not_retried(host: Host, name: str) -> None:
    worker, caller = await attach(host, named(READ)), await host.caller()
    call = await caller.start("read")
    run = (await worker.next_invoke()).call
    if name == "a registration":
        await worker.send(Frame(call=run, register_teardown=RegisterTeardown(request_id=1)))
    elif name == "an unknown request":
        await worker.send(Frame(call=run, outbound_request=OutboundRequest.FromString(b"\x08\x01\xa2\x06\x03abc")))
    else:
        await worker.send(asking(run, name))
    await worker.next_of("reply", run)
    other = await attach(host, named(READ))
    worker.cut()
    lost = (await caller.outcome(call)).failure
    assert (lost.kind, lost.retryable) == (WORKER_LOST, True)
    assert other.invoked == []
