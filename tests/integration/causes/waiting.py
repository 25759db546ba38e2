"""Causes while a call waits for an instance."""

import asyncio
from typing import Any

from sidecar._gen.pillion.v1.context_pb2 import TeardownScope
from sidecar._gen.pillion.v1.execute_pb2 import EndScopeRequest
from sidecar._gen.pillion.v1.outcome_pb2 import Failure
from tests.integration.causes.stage import KIB, Stage, happens, misdirected
from tests.support import CallLimits, end_scope, quiet, tools_changed


async def waiting(stage: Stage, **fields: Any) -> int:
    """A call that waits behind another."""
    await stage.open()
    await stage.attach(concurrency=1)
    await stage.running()
    call = await stage.caller.start(**fields)
    await stage.caller.flush()
    return call


async def held(stage: Stage, **fields: Any) -> None:
    """A session that the only worker holds something for."""
    await stage.open()
    await stage.attach(holds=TeardownScope.TEARDOWN_SCOPE_SESSION, **fields)
    call, invocation = await stage.running(session_id="s")
    await stage.worker.result(invocation.call)
    await stage.caller.outcome(call)


@happens("the instance that holds the session is full", "no")
async def _(stage: Stage) -> Failure:
    await held(stage, concurrency=1)
    await stage.running(session_id="s")
    return await stage.fails(session_id="s")


@happens("the instance that holds the session is away", "no")
async def _(stage: Stage) -> Failure:
    await held(stage)
    stage.worker.cut()
    await quiet()
    return await stage.fails(session_id="s")


@happens("the instance that holds the session does not have the tool", "no")
async def _(stage: Stage) -> Failure:
    await held(stage)
    pinned = stage.worker
    await stage.attach(holds=TeardownScope.TEARDOWN_SCOPE_SESSION)
    await pinned.send(tools_changed())
    await pinned.flush()
    return await stage.fails(session_id="s")


@happens("the instance that held the session is gone", "no")
async def _(stage: Stage) -> Failure:
    await held(stage)
    await stage.worker.goodbye()
    await stage.worker.end()
    return await stage.fails(session_id="s")


@happens("too many calls wait for the worker", "no")
async def _(stage: Stage) -> Failure:
    await stage.open(calls=CallLimits(waiting_per_set=1))
    await stage.attach(concurrency=1)
    await stage.running()
    await stage.caller.start()
    return await stage.fails()


@happens("no worker attaches in time", "no")
async def _(stage: Stage) -> Failure:
    await stage.open()
    return await stage.fails()


@happens("no slot is free in time", "no")
async def _(stage: Stage) -> Failure:
    return await stage.failed(await waiting(stage))


@happens("the arguments are over what the worker takes", "no")
async def _(stage: Stage) -> Failure:
    await stage.open()
    await stage.attach(hello={"max_frame_bytes": 4 * KIB})
    return await stage.fails(arguments={"text": "x" * 5 * KIB})


@happens("the caller cancels", "no")
async def _(stage: Stage) -> Failure:
    call = await waiting(stage)
    await stage.caller.cancel(call)
    return await stage.failed(call)


@happens("the call's run or session ends", "no")
async def _(stage: Stage) -> Failure:
    call = await waiting(stage, session_id="s")
    await end_scope(stage.host, EndScopeRequest(session_id="s"))
    return await stage.failed(call)


@happens("the call's run or session is being ended", "no")
async def _(stage: Stage) -> Failure:
    await stage.open()
    await stage.attach()
    await stage.running(run_id="r")
    # It waits for the call that runs, which does not stop.
    ending = asyncio.ensure_future(end_scope(stage.host, EndScopeRequest(run_id="r")))
    await quiet()
    failure = await stage.fails(run_id="r")
    await ending
    return failure


@happens("the caller's stream is lost", "no")
async def _(stage: Stage) -> Failure:
    await waiting(stage)
    other = await stage.host.caller()
    await other.start()
    await other.flush()
    return await stage.unseen_failure(other.cut)


@happens("the timeout passes", "no")
async def _(stage: Stage) -> Failure:
    return await stage.failed(await waiting(stage, timeout=1))


@happens("the caller breaks the protocol in the call", "no")
async def _(stage: Stage) -> Failure:
    call = await waiting(stage)
    await stage.caller.send(misdirected(call))
    return await stage.failed(call)


@happens("the worker is lost, and no other comes", "no")
async def _(stage: Stage) -> Failure:
    await stage.open()
    await stage.attach()
    stage.worker.pause()
    for _ in range(2):
        await stage.caller.start()
        await quiet()
    # The first invoke is read in spite of the pause, and the second is being written: the third is not handed over.
    call = await stage.caller.start()
    await quiet()
    stage.worker.cut()
    return await stage.failed(call)
