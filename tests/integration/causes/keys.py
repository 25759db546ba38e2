"""Causes in calls with an idempotency key."""

import asyncio
import hashlib

from sidecar._gen.pillion.v1.outcome_pb2 import Failure
from sidecar.calls.stores import IdempotencyRecord
from sidecar.scope import Scope, scope_of
from tests.integration.causes.stage import KEY, Stage, happens


@happens("the key was used with other arguments", "no")
async def _(stage: Stage) -> Failure:
    await stage.open()
    await stage.attach()
    await stage.running(idempotency_key=KEY, arguments={"n": 1})
    return await stage.fails(idempotency_key=KEY, arguments={"n": 2})


@happens("the records of keys cannot be reached", "no")
async def _(stage: Stage) -> Failure:
    await stage.open()
    await stage.attach()
    stage.host.store.broken = True
    return await stage.fails(idempotency_key=KEY)


@happens("the key's request was given up a moment ago", "no")
async def _(stage: Stage) -> Failure:
    await stage.open()
    await stage.attach()
    found = asyncio.Event()

    async def find(scope: Scope, tool: str, key: str) -> None:
        await found.wait()

    stage.patch.setattr(stage.host.store, "find", find)
    given_up = await stage.caller.start(idempotency_key=KEY)
    await stage.caller.cancel(given_up)
    await stage.failed(given_up)
    failure = await stage.fails(idempotency_key=KEY)
    found.set()
    return failure


@happens("the sidecar was killed while the key's request ran", "yes")
async def _(stage: Stage) -> Failure:
    await stage.open()
    await stage.attach()
    owner = scope_of(stage.host.principal, None, None, None, "").owner
    digest = hashlib.sha256(b"{}").digest()
    stage.host.store.records[(*owner, "echo", KEY)] = IdempotencyRecord(digest, "exe_of_an_earlier_process", None)
    failure = await stage.fails(idempotency_key=KEY)
    assert not stage.was_run, "an unsafe tool is not run again"
    stage.was_run = True
    return failure


@happens("the sidecar fails around a key's record", "no")
async def _(stage: Stage) -> Failure:
    await stage.open()
    await stage.attach()

    async def find(scope: Scope, tool: str, key: str) -> None:
        raise RuntimeError(key)

    stage.patch.setattr(stage.host.store, "find", find)
    return await stage.fails(idempotency_key=KEY)


@happens("the caller cancels a call that joined another", "yes")
async def _(stage: Stage) -> Failure:
    await stage.open()
    await stage.attach()
    first, run = await stage.running(idempotency_key=KEY)
    second = await stage.caller.start(idempotency_key=KEY)
    await stage.caller.flush()
    await stage.caller.cancel(second)
    stage.was_run = True
    failure = await stage.failed(second)
    await stage.worker.result(run.call)
    assert (await stage.caller.outcome(first)).HasField("result"), "the other call runs on"
    return failure


@happens("the caller cancels a call that another joined", "yes")
async def _(stage: Stage) -> Failure:
    await stage.open()
    await stage.attach()
    first, run = await stage.running(idempotency_key=KEY)
    second = await stage.caller.start(idempotency_key=KEY)
    await stage.caller.flush()
    await stage.caller.cancel(first)
    stage.was_run = True
    failure = await stage.failed(first)
    await stage.worker.result(run.call)
    assert (await stage.caller.outcome(second)).HasField("result"), "the tool runs on for the other call"
    return failure
