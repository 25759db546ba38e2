"""Causes in how the tool ends, and in what its worker says of it."""

from collections.abc import Awaitable, Callable
from typing import Any

from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outcome_pb2 import Failure, FailureKind, SideEffects
from tests.integration.causes.stage import KIB, MIB, Stage, happens
from tests.support import CallLimits, WireLimits, quiet
from tests.support.pausing import pause


def by_the_tool(cause: str, end: Callable[[Stage, int], Awaitable[None]], **fields: Any) -> None:
    """A cause that is in how the worker ends the call, or in what the tool declares of it."""

    @happens(cause, "yes")
    async def ended(stage: Stage) -> Failure:
        await stage.open()
        await stage.attach(**fields)
        call, run = await stage.running()
        await end(stage, run.call)
        return await stage.failed(call)


async def _end_somehow(stage: Stage, call: int) -> None:
    frame = Frame(call=call)
    frame.outcome.SetInParent()
    await stage.worker.send(frame)


by_the_tool("the tool fails, and says no more", lambda stage, call: stage.worker.fail(call))
by_the_tool(
    "the tool fails, and says what it did",
    lambda stage, call: stage.worker.fail(call, side_effects=SideEffects.SIDE_EFFECTS_COMMITTED),
)
by_the_tool(
    "the worker reports a kind that is not a tool's",
    lambda stage, call: stage.worker.fail(call, FailureKind.FAILURE_KIND_DENIED),
)
by_the_tool("the outcome is of no known kind", _end_somehow)
by_the_tool("the tool pauses and asks nothing", lambda stage, call: stage.worker.send(pause(call, "")))
by_the_tool(
    "the tool pauses with more than it may keep",
    lambda stage, call: stage.worker.send(pause(call, state=b"x" * 65_537)),
)
by_the_tool(
    "the result is over the tool's ceiling",
    lambda stage, call: stage.worker.result(call, "x" * 100),
    result_ceiling_bytes=50,
)
by_the_tool("the result is over the largest frame", lambda stage, call: stage.worker.result(call, "x" * MIB))
by_the_tool(
    "the result does not fit the output schema",
    lambda stage, call: stage.worker.result(call, "seven"),
    output_schema={"type": "integer"},
)


@happens("the result is over what the caller takes", "yes")
async def _(stage: Stage) -> Failure:
    await stage.open()
    await stage.attach()
    hello = Frame()
    hello.caller_hello.max_frame_bytes = 4 * KIB
    await stage.caller.send(hello)
    call, run = await stage.running()
    await stage.worker.result(run.call, "x" * 5 * KIB)
    return await stage.failed(call)


@happens("the result is over 64 KiB, and far too much of the stream is unread", "yes")
async def _(stage: Stage) -> Failure:
    await stage.open(wire=WireLimits(undelivered_hard=200 * KIB))
    await stage.attach()
    runs = [(await stage.running())[1] for _ in range(6)]
    stage.caller.pause()
    for run in runs[:-1]:
        await stage.worker.result(run.call, "x" * 60 * KIB)
    await stage.worker.result(runs[-1].call, "x" * 70 * KIB)
    await quiet()
    stage.caller.resume()
    failure = await stage.failed(6)
    for call in range(1, 6):
        assert (await stage.caller.outcome(call)).HasField("result")
    return failure


@happens("the tool pauses, and that cannot be recorded", "yes")
async def _unrecorded(stage: Stage) -> Failure:
    await stage.open()
    await stage.attach()
    call, run = await stage.running()
    stage.host.pause_store.broken = True
    await stage.worker.send(pause(run.call))
    return await stage.failed(call)


@happens("the tool pauses, and its subject has too many paused calls", "yes")
async def _too_many_paused(stage: Stage) -> Failure:
    await stage.open(calls=CallLimits(paused_per_subject=1))
    await stage.attach()
    call, run = await stage.running()
    await stage.worker.send(pause(run.call))
    await stage.caller.outcome(call)
    call, run = await stage.running()
    await stage.worker.send(pause(run.call))
    return await stage.failed(call)
