"""What becomes of cleanups when the instance that keeps them leaves, is drained, is lost, or comes back."""

import asyncio

import pytest

from sidecar._gen.pillion.v1.context_pb2 import CancelReason, TeardownReason
from sidecar._gen.pillion.v1.execute_pb2 import EndScopeRequest
from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind
from sidecar._gen.pillion.v1.tool_pb2 import ToolDescriptor
from sidecar._gen.pillion.v1.worker_pb2 import Reattach, Welcome
from tests.integration.teardowns import CALL, SESSION, SHUTDOWN, kept, ran
from tests.support import (
    READ,
    Host,
    MemoryHost,
    StartHost,
    WorkerLimits,
    WorkerPeer,
    attach,
    end_scope,
    everywhere,
    quiet,
    tool,
)

EVICTED = TeardownReason.TEARDOWN_REASON_EVICTED


def version(number: int) -> ToolDescriptor:
    return tool(title=f"version {number}")


def ending(host: Host, session: str = "s") -> "asyncio.Task[tuple[int, int, int]]":
    async def ended() -> tuple[int, int, int]:
        answer = await end_scope(host, EndScopeRequest(session_id=session))
        return answer.fired, answer.failed, answer.cancelled

    return asyncio.get_running_loop().create_task(ended())


async def welcomed(host: Host, *tools: ToolDescriptor) -> tuple[WorkerPeer, Welcome]:
    worker = await host.worker()
    return worker, await worker.hello(*(tools or (tool(),)))


async def back(host: Host, welcome: Welcome, *registrations: str, tools: tuple[ToolDescriptor, ...] = ()) -> WorkerPeer:
    """The instance of this welcome on another stream, with what it says that it keeps."""
    worker = await host.worker()
    again = await worker.hello(
        *(tools or (tool(),)),
        reattach=Reattach(instance_id=welcome.instance_id, secret=welcome.reattach_secret, registrations=registrations),
    )
    assert again.instance_id == welcome.instance_id
    return worker


# --- it leaves


@everywhere
async def test_an_instance_that_says_goodbye_runs_what_it_keeps_first(host: Host) -> None:
    worker, caller = await attach(host), await host.caller()
    ids = [
        await kept(worker, caller, "s"),
        await kept(worker, caller, "s", scope=SHUTDOWN),
    ]
    call = await caller.start(session_id="s")
    run = (await worker.next_invoke()).call
    of_call = await worker.registered(run, CALL)
    await worker.goodbye()
    await worker.flush()
    assert not worker.teardowns()
    await worker.result(run)
    fired = await worker.next_teardown()
    assert (fired.registration_id, fired.reason) == (
        of_call.registration_id,
        TeardownReason.TEARDOWN_REASON_CALL_END,
    )
    await worker.torn_down(fired.registration_id)
    assert (await caller.outcome(call)).HasField("result")
    fired_last = [await worker.next_teardown() for _ in ids]
    assert [one.registration_id for one in fired_last] == ids[::-1]
    assert {one.reason for one in fired_last} == {EVICTED}
    assert not worker.is_over
    for registration in ids:
        await worker.torn_down(registration)
    await worker.end()


async def test_an_instance_that_leaves_does_not_wait_for_cleanups_for_ever(memory_host: MemoryHost) -> None:
    worker, caller = await attach(memory_host), await memory_host.caller()
    await kept(worker, caller, "s")
    begun = asyncio.get_running_loop().time()
    await worker.goodbye()
    await worker.end()
    assert asyncio.get_running_loop().time() - begun == pytest.approx(5, abs=0.1)
    assert memory_host.counts["failed_teardowns"] == 1


# --- it is drained


@everywhere
async def test_a_drained_instance_stays_until_the_scopes_that_it_keeps_something_for_end(host: Host) -> None:
    worker, caller = await attach(host, version(1)), await host.caller()
    registration = await kept(worker, caller, "s")
    until_the_stop = await kept(worker, caller, "s", scope=SHUTDOWN)
    newer = await attach(host, version(2))
    await worker.flush()
    assert worker.bodies() == ["welcome"]
    call = await caller.start()
    await newer.result((await newer.next_invoke()).call)
    assert (await caller.outcome(call)).HasField("result")
    end = ending(host)
    await ran(worker, registration)
    assert await end == (1, 0, 0)
    # Nothing that it keeps has an end before the sidecar's any more.
    fired = await worker.next_teardown()
    assert (fired.registration_id, fired.reason) == (until_the_stop, EVICTED)
    await worker.torn_down(until_the_stop)
    assert 0 < (await worker.next_of("drain")).drain.grace.ToNanoseconds() <= 30e9
    await worker.goodbye()
    await worker.end()
    assert not newer.teardowns()


@everywhere
async def test_a_drained_instance_that_keeps_nothing_is_told_at_once(host: Host) -> None:
    worker, caller = await attach(host, version(1)), await host.caller()
    call = await caller.start(session_id="s")
    run = (await worker.next_invoke()).call
    await attach(host, version(2))
    await worker.next_of("drain")
    # What is registered all the same fires when the instance runs nothing any more.
    registration = (await worker.registered(run, SESSION)).registration_id
    await worker.result(run)
    assert (await caller.outcome(call)).HasField("result")
    fired = await worker.next_teardown()
    assert (fired.registration_id, fired.reason) == (registration, EVICTED)
    await worker.goodbye()
    await worker.flush()
    assert not worker.is_over
    await worker.torn_down(registration)
    await worker.end()


async def test_what_a_drained_instance_keeps_when_its_time_is_up_fires_as_evicted(start_host: StartHost) -> None:
    host = await start_host(workers=WorkerLimits(drain=20))
    assert isinstance(host, MemoryHost)
    worker, caller = await attach(host, version(1)), await host.caller()
    registration = await kept(worker, caller, "s")
    call = await caller.start(session_id="s", timeout=100)
    run = (await worker.next_invoke()).call
    begun = asyncio.get_running_loop().time()
    await attach(host, version(2))
    assert await worker.cancelled(run) == CancelReason.CANCEL_REASON_DRAIN
    assert asyncio.get_running_loop().time() - begun == pytest.approx(20, abs=0.1)
    await worker.result(run)
    assert (await caller.outcome(call)).failure.kind == FailureKind.FAILURE_KIND_CANCELLED
    fired = await worker.next_teardown()
    assert (fired.registration_id, fired.reason) == (registration, EVICTED)
    await worker.torn_down(registration)
    await worker.next_of("drain")
    await worker.goodbye()
    await worker.end()
    assert host.counts["teardowns.evicted"] == 1


async def test_a_drain_ends_also_where_cleanups_and_tools_hang(start_host: StartHost) -> None:
    host = await start_host(workers=WorkerLimits(drain=20))
    assert isinstance(host, MemoryHost)
    worker, caller = await attach(host, version(1)), await host.caller()
    await kept(worker, caller, "s")
    call = await caller.start(session_id="s", timeout=100)
    await worker.next_invoke()
    begun = asyncio.get_running_loop().time()
    await attach(host, version(2))
    assert (await caller.outcome(call)).failure.kind == FailureKind.FAILURE_KIND_CANCELLED
    await worker.end()
    # Its drain time, then the graces of its calls, and of what is left.
    assert asyncio.get_running_loop().time() - begun <= 20 + 2 + 7.1
    await quiet()
    assert host.counts["failed_teardowns"] == 1


# --- it is lost, and perhaps comes back


@everywhere
async def test_an_instance_that_comes_back_keeps_what_it_kept(host: Host) -> None:
    worker, welcome = await welcomed(host)
    caller = await host.caller()
    registration = await kept(worker, caller, "s")
    worker.cut()
    worker = await back(host, welcome, registration, "reg_of_nobody")
    assert (await worker.next_of("release")).release.registration_id == "reg_of_nobody"
    assert await kept(worker, caller, "s") == registration
    end = ending(host)
    await ran(worker, registration)
    assert await end == (1, 0, 0)
    assert worker.bodies().count("release") == 1


async def test_what_ended_while_an_instance_was_away_fires_when_it_is_back(memory_host: MemoryHost) -> None:
    worker, welcome = await welcomed(memory_host)
    caller = await memory_host.caller()
    ids = [await kept(worker, caller, "s", name=name) for name in "ab"]
    call = await caller.start()
    run = (await worker.next_invoke()).call
    of_call = (await worker.registered(run, CALL)).registration_id
    worker.cut()
    assert (await caller.outcome(call)).failure.kind == FailureKind.FAILURE_KIND_OUTCOME_UNKNOWN
    assert await ending(memory_host) == (2, 2, 0)
    worker = await back(memory_host, welcome, *ids, of_call)
    fired = {one.registration_id: one.reason for one in [await worker.next_teardown() for _ in range(3)]}
    assert fired == {
        of_call: TeardownReason.TEARDOWN_REASON_CALL_END,
        ids[0]: TeardownReason.TEARDOWN_REASON_SESSION_END,
        ids[1]: TeardownReason.TEARDOWN_REASON_SESSION_END,
    }
    order = [one.registration_id for one in worker.teardowns()]
    assert order.index(ids[1]) < order.index(ids[0])
    for registration in fired:
        await worker.torn_down(registration)
    await quiet()
    assert memory_host.counts["teardowns"] == 3
    assert "release" not in worker.bodies()


async def test_what_an_instance_does_not_bring_back_is_reported_and_dropped(memory_host: MemoryHost) -> None:
    worker, welcome = await welcomed(memory_host)
    caller = await memory_host.caller()
    first, second = [await kept(worker, caller, "s", name=name) for name in "ab"]
    worker.cut()
    worker = await back(memory_host, welcome, second)
    await quiet()
    assert memory_host.counts["lost_teardowns"] == 1
    end = ending(memory_host)
    await ran(worker, second)
    assert await end == (1, 0, 0)
    assert memory_host.pipeline.teardowns.registry.find(first) is None


async def test_a_cleanup_that_was_under_way_when_its_instance_was_lost_runs_once(memory_host: MemoryHost) -> None:
    """Where it comes back with it, it had not begun; where it comes back without, nobody knows."""
    worker, welcome = await welcomed(memory_host)
    caller = await memory_host.caller()
    ids = [await kept(worker, caller, "s", name=name) for name in "ab"]
    end = ending(memory_host)
    for _ in ids:
        await worker.next_teardown()
    worker.cut()
    assert await end == (2, 2, 0)
    worker = await back(memory_host, welcome, ids[0])
    await ran(worker, ids[0])
    await quiet()
    assert len(worker.teardowns()) == 1
    assert memory_host.counts["teardowns"] == 1
    assert memory_host.counts["failed_teardowns"] == 1
    assert not memory_host.pipeline.teardowns.firing.open


async def test_a_cleanup_that_is_under_way_when_its_instance_takes_another_stream_runs_once(
    memory_host: MemoryHost,
) -> None:
    worker, welcome = await welcomed(memory_host)
    caller = await memory_host.caller()
    registration = await kept(worker, caller, "s")
    end = ending(memory_host)
    await worker.next_teardown()
    again = await back(memory_host, welcome, registration)
    await ran(again, registration)
    assert (await end)[0] == 1
    await quiet()
    assert memory_host.counts["teardowns"] == 1
    assert not memory_host.pipeline.teardowns.firing.open
    assert "release" not in again.bodies()


async def test_what_a_lost_instance_kept_is_reported_once_it_does_not_come_back(memory_host: MemoryHost) -> None:
    worker, welcome = await welcomed(memory_host)
    caller = await memory_host.caller()
    for session in ("s", "t"):
        await kept(worker, caller, session)
    worker.cut()
    await quiet()
    assert await ending(memory_host, "t") == (1, 1, 0)
    await asyncio.sleep(50)
    assert memory_host.counts["lost_teardowns"] == 0
    await asyncio.sleep(20)
    assert memory_host.counts["lost_teardowns"] == 2
    assert await ending(memory_host) == (0, 0, 0)
    later = await memory_host.worker()
    again = await later.hello(
        tool(), reattach=Reattach(instance_id=welcome.instance_id, secret=welcome.reattach_secret, registrations="x")
    )
    assert again.instance_id != welcome.instance_id
    assert (await later.next_of("release")).release.registration_id == "x"


async def test_another_instance_takes_none_of_what_is_kept(memory_host: MemoryHost) -> None:
    worker, caller = await attach(memory_host, tool(effects=READ)), await memory_host.caller()
    registration = await kept(worker, caller, "s")
    stranger, welcome = await welcomed(memory_host, tool(effects=READ))
    await stranger.torn_down(registration)
    await stranger.flush()
    assert memory_host.counts["late_teardowns"] == 1
    stranger.cut()
    stranger = await back(memory_host, welcome, registration, tools=(tool(effects=READ),))
    assert (await stranger.next_of("release")).release.registration_id == registration
    end = ending(memory_host)
    assert (await worker.next_teardown()).registration_id == registration
    await stranger.torn_down(registration)
    await stranger.flush()
    assert not end.done()
    await worker.torn_down(registration)
    assert await end == (1, 0, 0)
