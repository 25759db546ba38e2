"""Calls of tools that pause: the outer one pauses with them, and its answer goes through to them."""

import asyncio
import json
from typing import Any

from sidecar._gen.pillion.v1.context_pb2 import Resume, TeardownScope
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outbound_pb2 import OutboundRequest
from sidecar._gen.pillion.v1.outcome_pb2 import Outcome
from sidecar._gen.pillion.v1.worker_pb2 import RegisterTeardown
from tests.support import Host, Invocation, MemoryHost, WorkerPeer, attach, everywhere, tool
from tests.support.pausing import pause, resume, told

TOOLS = ("echo", "read", "put", "slow")


async def make(worker: WorkerPeer, outer: Invocation, name: str, arguments: Any = None, number: int = 1) -> None:
    """Has a running tool call another."""
    asked = OutboundRequest(request_id=number)
    asked.tools_call.tool = name
    if arguments is not None:
        asked.tools_call.arguments = json.dumps(arguments).encode()
    await worker.send(Frame(call=outer.call, outbound_request=asked))


async def answered(worker: WorkerPeer, outer: Invocation) -> Outcome:
    """How the call that it made ended."""
    return (await worker.next_of("reply", outer.call)).reply.tool_outcome


@everywhere
async def test_at_depth_3_the_innermost_pauses_and_the_answer_goes_through_to_it(host: Host) -> None:
    worker, caller = await attach(host, *map(tool, TOOLS)), await host.caller()
    call = await caller.start("echo", {"n": 1})
    outer = await worker.next_invoke()
    await make(worker, outer, "read", {"n": 2})
    middle = await worker.next_invoke()
    await make(worker, middle, "put", {"n": 3})
    inner = await worker.next_invoke()
    await worker.send(pause(inner.call, "Really?", kind="confirm", state=b"inner"))
    seen = await answered(worker, middle)
    assert (seen.paused.ask.message, seen.paused.HasField("ticket"), seen.paused.HasField("state")) == (
        "Really?",
        False,
        False,
    )
    await worker.send(pause(middle.call, "Really?", state=b"middle"))
    assert (await answered(worker, outer)).paused == seen.paused
    await worker.send(pause(outer.call, "Really?", state=b"outer"))
    outcome = await caller.outcome(call)
    assert outcome.paused.ask == seen.paused.ask

    call = await resume(caller, outcome.paused.ticket, "yes")
    outer = await worker.next_invoke()
    assert told(outer) == Resume(state=b"outer", answer=b'"yes"')
    await make(worker, outer, "read", {"n": 2})
    middle = await worker.next_invoke()
    assert told(middle) == Resume(state=b"middle", answer=b'"yes"')
    assert middle.context.tool_call_id == outer.context.tool_call_id + "#inner-1"
    await make(worker, middle, "put", {"n": 3})
    inner = await worker.next_invoke()
    assert told(inner) == Resume(state=b"inner", answer=b'"yes"')
    await worker.result(inner.call, 3)
    assert (await answered(worker, middle)).result.json == b"3"
    await worker.result(middle.call, 2)
    assert (await answered(worker, outer)).result.json == b"2"
    await worker.result(outer.call, 1)
    assert (await caller.outcome(call)).result.json == b"1"


async def test_an_inner_call_with_other_arguments_is_a_new_one(host: Host) -> None:
    worker, caller = await attach(host, *map(tool, TOOLS)), await host.caller()
    call = await caller.start("echo")
    outer = await worker.next_invoke()
    await make(worker, outer, "read", {"n": 1})
    await worker.send(pause((await worker.next_invoke()).call, state=b"kept"))
    await answered(worker, outer)
    await worker.send(pause(outer.call))
    ticket = (await caller.outcome(call)).paused.ticket
    await resume(caller, ticket, 1)
    outer = await worker.next_invoke()
    await make(worker, outer, "read", {"n": 2})
    other = await worker.next_invoke()
    assert told(other) is None
    await worker.result(other.call)
    await make(worker, outer, "put", {"n": 1}, 2)
    assert told(await worker.next_invoke()) is None
    await make(worker, outer, "read", {"n": 1}, 3)
    assert told(await worker.next_invoke()) == Resume(state=b"kept", answer=b"1")
    # It went on once; the same call again is a new one.
    await make(worker, outer, "read", {"n": 1}, 4)
    assert told(await worker.next_invoke()) is None


async def test_of_two_inner_calls_that_paused_the_asked_one_goes_on(host: Host) -> None:
    worker, caller = await attach(host, *map(tool, TOOLS)), await host.caller()
    call = await caller.start("echo")
    outer = await worker.next_invoke()
    for number, name in enumerate(("read", "put"), 1):
        await make(worker, outer, name, None, number)
        await worker.send(pause((await worker.next_invoke()).call, f"{name}?", state=name.encode()))
        await answered(worker, outer)
    await worker.send(pause(outer.call, "read?"))
    ticket = (await caller.outcome(call)).paused.ticket
    call = await resume(caller, ticket, 1)
    outer = await worker.next_invoke()
    await make(worker, outer, "put")
    # It still waits, and is not run for an answer that was another's.
    assert (await answered(worker, outer)).paused.ask.message == "put?"
    await make(worker, outer, "read", None, 2)
    inner = await worker.next_invoke()
    assert told(inner) == Resume(state=b"read", answer=b"1")
    await worker.result(inner.call)
    await answered(worker, outer)
    await worker.send(pause(outer.call, "put?"))
    ticket = (await caller.outcome(call)).paused.ticket
    await resume(caller, ticket, 2)
    outer = await worker.next_invoke()
    await make(worker, outer, "put")
    assert told(await worker.next_invoke()) == Resume(state=b"put", answer=b"2")


async def test_where_the_outer_call_goes_on_without_it_an_inner_pause_ends(memory_host: MemoryHost) -> None:
    worker, caller = await attach(memory_host, *map(tool, TOOLS)), await memory_host.caller()
    call = await caller.start("echo")
    outer = await worker.next_invoke()
    await make(worker, outer, "read")
    inner = await worker.next_invoke()
    kept = RegisterTeardown(request_id=1, scope=TeardownScope.TEARDOWN_SCOPE_CALL)
    registration = (await worker.register(inner.call, kept)).teardown.registration_id
    await worker.send(pause(inner.call))
    assert (await answered(worker, outer)).HasField("paused")
    await asyncio.sleep(10)
    assert "run_teardown" not in worker.bodies(0)
    await worker.result(outer.call, "without")
    assert (await worker.next_of("run_teardown")).run_teardown.registration_id == registration
    done = Frame()
    done.teardown_done.registration_id = registration
    await worker.send(done)
    assert (await caller.outcome(call)).result.json == b'"without"'
    assert len(memory_host.pipeline.teardowns.registry) == 0


async def test_an_inner_call_keeps_what_it_registered_until_it_goes_on_and_ends(memory_host: MemoryHost) -> None:
    worker, caller = await attach(memory_host, *map(tool, TOOLS)), await memory_host.caller()
    call = await caller.start("echo")
    outer = await worker.next_invoke()
    await make(worker, outer, "read")
    inner = await worker.next_invoke()
    kept = RegisterTeardown(request_id=1, scope=TeardownScope.TEARDOWN_SCOPE_CALL)
    registration = (await worker.register(inner.call, kept)).teardown.registration_id
    await worker.send(pause(inner.call))
    await answered(worker, outer)
    await worker.send(pause(outer.call))
    ticket = (await caller.outcome(call)).paused.ticket
    await resume(caller, ticket)
    outer = await worker.next_invoke()
    await make(worker, outer, "read")
    inner = await worker.next_invoke()
    assert "run_teardown" not in worker.bodies(0)
    await worker.result(inner.call)
    assert (await worker.next_of("run_teardown")).run_teardown.registration_id == registration


async def test_a_tool_that_collects_pauses_of_others_has_its_bound(memory_host: MemoryHost) -> None:
    worker, caller = await attach(memory_host, *map(tool, TOOLS)), await memory_host.caller()
    await caller.start("echo")
    outer = await worker.next_invoke()
    for number in range(1, 66):
        await make(worker, outer, "read", {"n": number}, number)
        await worker.send(pause((await worker.next_invoke()).call))
        assert (await answered(worker, outer)).HasField("paused") is (number <= 64)


async def test_states_of_inner_calls_beyond_what_is_kept_fail_the_outer_one(memory_host: MemoryHost) -> None:
    worker, caller = await attach(memory_host, *map(tool, TOOLS)), await memory_host.caller()
    call = await caller.start("echo")
    outer = await worker.next_invoke()
    for number in range(1, 17):
        await make(worker, outer, "read", {"n": number}, number)
        await worker.send(pause((await worker.next_invoke()).call, state=b"x" * 65_536))
        await answered(worker, outer)
    await worker.send(pause(outer.call))
    assert (await caller.outcome(call)).HasField("failure")
    assert not memory_host.pause_store.paused
