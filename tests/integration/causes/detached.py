"""Causes in detached calls, and where such are followed."""

from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outcome_pb2 import Failure
from sidecar.doors.unary import run_call
from tests.integration.causes.stage import Stage, happens
from tests.support import CallLimits, start_of


@happens("a detachable call is started without a stream", "no")
async def _(stage: Stage) -> Failure:
    await stage.open()
    await stage.attach()
    _, outcome = await run_call(stage.host.pipeline, stage.host.principal, start_of("echo", detachable=True))
    return outcome.failure


@happens("the subject has too many detached calls", "no")
async def _(stage: Stage) -> Failure:
    await stage.open(calls=CallLimits(detached_per_subject=1))
    await stage.attach()
    await stage.running(detachable=True)
    return await stage.fails(detachable=True)


@happens("the records of detached calls cannot be reached", "no")
async def _(stage: Stage) -> Failure:
    await stage.open()
    await stage.attach()
    stage.host.detached_store.broken = True
    return await stage.fails(detachable=True)


@happens("a ticket is wrong, expired or another caller's", "no")
async def _(stage: Stage) -> Failure:
    await stage.open()
    return await stage.failed(await follow(stage, "t"))


@happens("the sidecar was killed while a detached call ran", "yes")
async def _(stage: Stage) -> Failure:
    await stage.open()
    await stage.attach()
    call, _ = await stage.running(detachable=True)
    stage.host.forget_detached()
    return await stage.failed(await follow(stage, stage.caller.frames[call][0].started.ticket))


async def follow(stage: Stage, ticket: str) -> int:
    """Follows the call of a ticket; answers the call id."""
    stage.caller.last_call += 1
    frame = Frame(call=stage.caller.last_call)
    frame.follow.ticket = ticket
    await stage.caller.send(frame)
    return frame.call
