"""Calls for tools whose worker is configured and has never been there."""

import asyncio

from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind
from tests.support import CallLimits, StartHost, attach, quiet, tool

SETS = {"named": frozenset(("echo",)), "any": frozenset(("*",))}
UNAVAILABLE = FailureKind.FAILURE_KIND_UNAVAILABLE
UNKNOWN_TOOL = FailureKind.FAILURE_KIND_UNKNOWN_TOOL


async def test_a_call_waits_for_a_worker_that_is_to_bring_its_tool_by_name(start_host: StartHost) -> None:
    host = await start_host(sets=SETS, calls=CallLimits(worker_wait=5))
    caller, now = await host.caller(), asyncio.get_running_loop().time
    began = now()
    assert (await caller.call("echo")).failure.kind == UNAVAILABLE
    assert 5 <= now() - began < 5.1
    call = await caller.start("echo")
    await quiet()
    worker = await attach(host, tool("echo"), worker="named")
    await worker.result((await worker.next_invoke()).call, "here")
    assert (await caller.outcome(call)).result.json == b'"here"'


async def test_a_worker_of_any_tools_promises_none_until_it_was_there(start_host: StartHost) -> None:
    host = await start_host(sets=SETS)
    caller, now = await host.caller(), asyncio.get_running_loop().time
    began = now()
    failure = (await caller.call("read")).failure
    assert (failure.kind, failure.retryable, now() - began < 0.1) == (UNKNOWN_TOOL, False, True)
    worker = await attach(host, tool("read"), worker="any")
    worker.cut()
    await quiet()
    began = now()
    assert (await caller.call("read")).failure.kind == UNAVAILABLE
    assert now() - began > 4
