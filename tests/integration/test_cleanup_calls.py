"""Cleanup calls: what a tool has named to be run where its instance is gone, run once by any that has it."""

import asyncio

from sidecar._gen.pillion.v1.context_pb2 import Identity, SessionKey, TeardownReason, TeardownScope
from sidecar._gen.pillion.v1.execute_pb2 import EndScopeRequest
from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind, SideEffects
from sidecar._gen.pillion.v1.worker_pb2 import CleanupCall
from sidecar.calls.stores import StoreUnavailable
from sidecar.policy.static import Rule
from sidecar.scope import Principal
from tests.support import (
    READ,
    MemoryHost,
    ScopeLimits,
    StartHost,
    attach,
    end_scope,
    quiet,
    tool,
)
from tests.support.keeping import CLEANUP, Keeping

CALL, RUN, SESSION, SHUTDOWN = (
    TeardownScope.TEARDOWN_SCOPE_CALL,
    TeardownScope.TEARDOWN_SCOPE_RUN,
    TeardownScope.TEARDOWN_SCOPE_SESSION,
    TeardownScope.TEARDOWN_SCOPE_SHUTDOWN,
)
SESSION_END = TeardownReason.TEARDOWN_REASON_SESSION_END
WORKER_LOST = TeardownReason.TEARDOWN_REASON_WORKER_LOST
OVERLOADED = FailureKind.FAILURE_KIND_OVERLOADED
WINDOW = 60


async def test_a_cleanup_call_stands_in_for_an_instance_that_does_not_come_back(memory_host: MemoryHost) -> None:
    host = memory_host
    keeping, other = await Keeping.attach(host), await attach(host, tool("put"))
    registration = await keeping.keep(identity=Identity(tenant="acme", principal="ana", conversation_id="c"))
    keeping.lose()
    await asyncio.sleep(WINDOW - 1)
    assert not other.invoked
    run = await other.next_invoke()
    assert run.invoke.tool == "put"
    assert run.invoke.arguments == CLEANUP.arguments
    context = run.context
    assert context.cleanup_reason == WORKER_LOST
    assert context.tool_call_id == registration
    assert (context.session_id, context.HasField("run_id")) == ("s", False)
    assert context.identity == Identity(tenant="acme", principal="ana")
    assert context.caller_principal == host.principal.name
    assert not context.HasField("answerable")
    # The tool finds by its key what it had pooled, and keeps nothing for a session that may be over.
    assert list(context.session_keys) == [SessionKey(scope=SESSION, digest=context.session_keys[0].digest)]
    assert list(context.teardown_scopes.scopes) == [CALL, SHUTDOWN]
    await other.result(run.call)
    await quiet()
    await asyncio.sleep(1_000)
    assert len(other.invoked) == 1
    counts = host.counts.snapshot()
    assert (counts["cleanup_calls"], counts["teardowns"], counts["teardowns.worker-lost"]) == (1, 1, 1)
    assert "lost_teardowns" not in counts
    assert "failed_teardowns" not in counts


async def test_only_what_names_no_call_is_lost(memory_host: MemoryHost) -> None:
    host = memory_host
    keeping, other = await Keeping.attach(host), await attach(host, tool("put"))
    await keeping.keep(name="with")
    await keeping.keep(name="without", cleanup=None)
    await keeping.keep(RUN, run_id="r", name="without", cleanup=None)
    keeping.lose()
    await other.result((await other.next_invoke()).call)
    await quiet()
    assert len(other.invoked) == 1
    assert host.counts.snapshot()["lost_teardowns"] == 2
    assert host.pipeline.teardowns.registry.registrations == 0


async def test_what_ended_while_its_instance_was_away_says_so(memory_host: MemoryHost) -> None:
    host = memory_host
    keeping, other = await Keeping.attach(host), await attach(host, tool("put"))
    await keeping.keep()
    keeping.lose()
    await quiet()
    assert (await end_scope(host, EndScopeRequest(session_id="s"))).fired == 1
    run = await other.next_invoke()
    assert run.context.cleanup_reason == SESSION_END
    # Neither is it in the session, which may begin and end again meanwhile.
    call = await keeping.caller.start("put", session_id="s")
    inner = await other.next_invoke()
    assert (await end_scope(host, EndScopeRequest(session_id="s"))).cancelled == 1
    await other.cancelled(inner.call)
    await other.result(inner.call)
    await keeping.caller.outcome(call)
    assert "cancel" not in other.bodies(run.call)
    await other.result(run.call)
    await quiet()
    assert host.counts.snapshot()["teardowns.session-end"] == 1


async def test_what_its_instance_was_told_to_run_is_not_run_by_another(memory_host: MemoryHost) -> None:
    host = memory_host
    keeping, other = await Keeping.attach(host), await attach(host, tool("put"))
    await keeping.keep()
    end = asyncio.ensure_future(end_scope(host, EndScopeRequest(session_id="s")))
    await keeping.worker.next_teardown()
    keeping.lose()
    assert (await end).failed == 1
    await asyncio.sleep(WINDOW + 60)
    assert not other.invoked, "it may have run already"
    assert host.counts.snapshot()["lost_teardowns"] == 1


async def test_an_instance_that_comes_back_keeps_its_cleanups(memory_host: MemoryHost) -> None:
    host = memory_host
    keeping, other = await Keeping.attach(host), await attach(host, tool("put"))
    first, second = await keeping.keep(name="1"), await keeping.keep(name="2")
    keeping.lose()
    await asyncio.sleep(WINDOW - 1)
    back = await keeping.back(host, second)
    # One that it does not have any more has not run, since a cleanup that names a call never runs by itself.
    run = await other.next_invoke()
    assert run.context.tool_call_id == first
    await other.result(run.call)
    await asyncio.sleep(WINDOW + 60)
    assert len(other.invoked) == 1
    end = asyncio.ensure_future(end_scope(host, EndScopeRequest(session_id="s")))
    assert (await back.next_teardown()).registration_id == second
    await back.torn_down(second)
    assert (await end).fired == 1


async def test_a_cleanup_call_waits_for_an_instance(memory_host: MemoryHost) -> None:
    host = memory_host
    keeping = await Keeping.attach(host)
    await keeping.keep()
    keeping.lose()
    await asyncio.sleep(WINDOW + 50)
    other = await attach(host, tool("put"))
    run = await other.next_invoke()
    assert run.context.cleanup_reason == WORKER_LOST
    await other.result(run.call)
    await asyncio.sleep(100)
    assert len(other.invoked) == 1


async def test_a_cleanup_call_waits_for_a_tool_that_nobody_has_named(start_host: StartHost) -> None:
    host = await start_host(sets={"main": frozenset(("*",))})
    assert isinstance(host, MemoryHost)
    keeping = await Keeping.attach(host)
    await keeping.keep(cleanup=CleanupCall(tool="close"))
    keeping.lose()
    await asyncio.sleep(WINDOW + 50)
    other = await attach(host, tool("close"))
    run = await other.next_invoke()
    assert run.invoke.arguments == b"{}"
    await other.result(run.call)
    await quiet()
    assert host.counts.snapshot()["teardowns"] == 1


async def test_a_cleanup_call_is_not_waited_for_without_end(start_host: StartHost) -> None:
    host = await start_host(scopes=ScopeLimits(cleanup_patience=20))
    assert isinstance(host, MemoryHost)
    keeping = await Keeping.attach(host)
    await keeping.keep()
    keeping.lose()
    await asyncio.sleep(WINDOW + 30)
    late = await attach(host, tool("put"))
    await asyncio.sleep(100)
    assert not late.invoked
    counts = host.counts.snapshot()
    assert counts["failed_teardowns"] == 1
    assert counts["calls"] <= 1 + 20 / 5 + 1, "it is tried a few times, and not again and again"


async def test_a_cleanup_call_that_found_no_room_is_tried_again(memory_host: MemoryHost) -> None:
    host = memory_host
    keeping, other = await Keeping.attach(host), await attach(host, tool("put"), concurrency=1)
    await keeping.keep()
    call = await keeping.caller.start("put", timeout=1_000)
    busy = await other.next_invoke()
    keeping.lose()
    await asyncio.sleep(WINDOW + 20)
    assert len(other.invoked) == 1
    await other.result(busy.call)
    assert (await other.next_invoke()).context.cleanup_reason == WORKER_LOST
    assert call


async def test_a_cleanup_call_that_failed_is_reported_and_not_run_again(memory_host: MemoryHost) -> None:
    host = memory_host
    keeping, other = await Keeping.attach(host), await attach(host, tool("put", effects=READ), concurrency=8)
    for name in "abcd":
        await keeping.keep(name=name)
    keeping.lose()
    runs = [await other.next_invoke() for _ in "abcd"]
    await other.fail(runs[0].call)
    # Retryable, and yet an instance was given it.
    await other.fail(runs[1].call, OVERLOADED, SideEffects.SIDE_EFFECTS_NONE)
    await other.result(runs[2].call, is_error=True)
    await other.result(runs[3].call, "well")
    await asyncio.sleep(1_000)
    assert len(other.invoked) == 4
    counts = host.counts.snapshot()
    assert (counts["failed_teardowns"], counts["teardowns"]) == (3, 1)


async def test_a_cleanup_call_that_is_lost_with_its_instance_is_not_run_again(memory_host: MemoryHost) -> None:
    host = memory_host
    keeping, other = await Keeping.attach(host), await attach(host, tool("put"))
    await keeping.keep()
    keeping.lose()
    await other.next_invoke()
    spare = await attach(host, tool("put"))
    other.cut()
    await asyncio.sleep(1_000)
    assert not spare.invoked
    assert host.counts.snapshot()["failed_teardowns"] == 1


async def test_a_cleanup_call_may_do_what_its_caller_may(memory_host: MemoryHost) -> None:
    host = memory_host
    host.policy.replace([Rule("may", ("echo", "put")), Rule("may-not", ("echo",))])
    other = await attach(host, tool("put"))
    registrations = {}
    for name in ("may", "may-not"):
        host.principal = Principal(name, authenticated=True)
        keeping = await Keeping.attach(host)
        registrations[name] = await keeping.keep()
        keeping.lose()
        await quiet()
    run = await other.next_invoke()
    assert run.context.tool_call_id == registrations["may"]
    assert run.context.caller_principal == "may"
    await other.result(run.call)
    await asyncio.sleep(1_000)
    assert len(other.invoked) == 1
    counts = host.counts.snapshot()
    assert (counts["teardowns"], counts["failed_teardowns"]) == (1, 1)


async def test_many_cleanup_calls_run_a_few_at_once(memory_host: MemoryHost) -> None:
    host = memory_host
    keeping, other = await Keeping.attach(host), await attach(host, tool("put"), concurrency=1_000)
    for number in range(100):
        await keeping.keep(name=str(number))
    keeping.lose()
    await asyncio.sleep(WINDOW + 1)
    assert len(other.invoked) == 64
    for _ in range(100):
        await other.result((await other.next_invoke()).call)
    await quiet()
    assert host.counts.snapshot()["teardowns"] == 100


async def test_a_cleanup_call_that_cannot_be_recorded_is_left_to_the_next_sidecar(memory_host: MemoryHost) -> None:
    host = memory_host

    class Broken:
        async def claim(self, *_: object) -> None:
            raise StoreUnavailable("It was broken on purpose.")

    keeping, other = await Keeping.attach(host), await attach(host, tool("put"))
    await keeping.keep()
    host.pipeline.teardowns.firing.store = Broken()  # type: ignore[assignment]  # it is asked for nothing else
    keeping.lose()
    await asyncio.sleep(WINDOW + 10)
    assert not other.invoked
    assert host.counts.snapshot()["unrecorded_teardowns"] == 1


async def test_a_cleanup_of_a_call_whose_instance_is_lost_runs_too(memory_host: MemoryHost) -> None:
    host = memory_host
    keeping, other = await Keeping.attach(host), await attach(host, tool("put"))
    call = await keeping.caller.start("echo")
    run = (await keeping.worker.next_invoke()).call
    await keeping.worker.registered(run, CALL, cleanup_call=CLEANUP)
    keeping.lose()
    await keeping.caller.outcome(call)
    assert (await other.next_invoke()).context.cleanup_reason == TeardownReason.TEARDOWN_REASON_CALL_END
