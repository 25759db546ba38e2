"""Causes in artifacts: those that a tool wants, and those that its results become."""

import asyncio
from typing import Any, NoReturn

from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outcome_pb2 import Failure
from sidecar._gen.pillion.v1.tool_pb2 import Placement
from sidecar.calls.stores import StoreUnavailable
from tests.integration.causes.stage import Stage, happens

NOWHERE = "art_" + "0" * 22


async def wanting(stage: Stage) -> None:
    """A tool that wants an artifact."""
    await stage.open(keeps_artifacts=True)
    await stage.attach(wants={"text": "note"})


@happens("a wanted artifact is not there", "no")
async def _(stage: Stage) -> Failure:
    await wanting(stage)
    return await stage.fails(arguments={"text": NOWHERE})


@happens("a wanted artifact cannot be read just now", "no")
async def _(stage: Stage) -> Failure:
    await wanting(stage)

    def broken(*_: Any) -> NoReturn:
        raise StoreUnavailable("The disk is gone.")

    stage.patch.setattr(stage.host.artifacts, "get", broken)
    return await stage.fails(arguments={"text": NOWHERE})


async def naming(stage: Stage, placement: Placement | None) -> Failure:
    """A tool that ends in an artifact which it did not upload."""
    await stage.open(keeps_artifacts=True)
    await stage.attach(placement=placement)
    call, run = await stage.running()
    frame = Frame(call=run.call)
    frame.outcome.result.SetInParent()
    frame.outcome.uploaded_reference = NOWHERE
    await stage.worker.send(frame)
    return await stage.failed(call)


@happens("the result was uploaded, and its tool declares no placement", "yes")
async def _(stage: Stage) -> Failure:
    return await naming(stage, None)


@happens("the worker names another artifact as its result", "yes")
async def _(stage: Stage) -> Failure:
    return await naming(stage, Placement(over_bytes=10))


@happens("the result cannot be put in time", "yes")
async def _(stage: Stage) -> Failure:
    await stage.open(keeps_artifacts=True)
    await stage.attach(placement=Placement(over_bytes=10))

    async def waits(*_: Any) -> None:
        await asyncio.Event().wait()

    stage.patch.setattr(stage.host.artifacts, "put", waits)
    call, run = await stage.running()
    await stage.worker.result(run.call, "x" * 100)
    return await stage.failed(call)
