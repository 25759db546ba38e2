"""Causes while the tool runs."""

from sidecar._gen.pillion.v1.bus_pb2 import KvGet
from sidecar._gen.pillion.v1.execute_pb2 import EndScopeRequest
from sidecar._gen.pillion.v1.outbound_pb2 import OutboundRequest
from sidecar._gen.pillion.v1.outcome_pb2 import Failure, FailureKind, SideEffects
from tests.integration.causes.stage import Stage, happens, misdirected
from tests.support import UNSAFE, CallLimits, end_scope, tool


@happens("the caller cancels, and the tool does not stop", "yes")
async def _(stage: Stage) -> Failure:
    await stage.open()
    await stage.attach()
    call, _ = await stage.running()
    await stage.caller.cancel(call)
    return await stage.failed(call)


@happens("the caller cancels, and the tool says that it did nothing", "yes")
async def _(stage: Stage) -> Failure:
    await stage.open()
    await stage.attach()
    call, run = await stage.running()
    await stage.caller.cancel(call)
    await stage.worker.cancelled(run.call)
    await stage.worker.fail(run.call, FailureKind.FAILURE_KIND_CANCELLED, SideEffects.SIDE_EFFECTS_NONE)
    return await stage.failed(call)


@happens("the caller cancels, and the tool returns all the same", "yes")
async def _(stage: Stage) -> Failure:
    await stage.open()
    await stage.attach()
    call, run = await stage.running()
    await stage.caller.cancel(call)
    await stage.worker.cancelled(run.call)
    await stage.worker.result(run.call, {"done": True})
    return await stage.failed(call)


@happens("the caller's stream is lost", "yes")
async def _(stage: Stage) -> Failure:
    await stage.open()
    await stage.attach()
    await stage.running()
    return await stage.unseen_failure(stage.caller.cut)


@happens("the call's run or session ends", "yes")
async def _(stage: Stage) -> Failure:
    await stage.open()
    await stage.attach()
    call, _ = await stage.running(session_id="s")
    await end_scope(stage.host, EndScopeRequest(session_id="s"))
    return await stage.failed(call)


@happens("the timeout passes", "yes")
async def _(stage: Stage) -> Failure:
    await stage.open()
    await stage.attach()
    call, _ = await stage.running(timeout=1)
    return await stage.failed(call)


@happens("the idle timeout passes", "yes")
async def _(stage: Stage) -> Failure:
    await stage.open()
    await stage.attach()
    call, _ = await stage.running(idle_timeout=1)
    return await stage.failed(call)


@happens("the caller breaks the protocol in the call", "yes")
async def _(stage: Stage) -> Failure:
    await stage.open()
    await stage.attach()
    call, _ = await stage.running()
    await stage.caller.send(misdirected(call))
    return await stage.failed(call)


@happens("the worker breaks the protocol in the call", "yes")
async def _(stage: Stage) -> Failure:
    await stage.open()
    await stage.attach()
    call, run = await stage.running()
    await stage.worker.send(misdirected(run.call))
    return await stage.failed(call)


@happens("the worker is lost, and no other comes", "yes")
async def _(stage: Stage) -> Failure:
    await stage.open()
    await stage.attach()
    call, _ = await stage.running()
    stage.worker.cut()
    return await stage.failed(call)


@happens("the worker is lost, and then the other", "yes")
async def _(stage: Stage) -> Failure:
    await stage.open()
    await stage.attach()
    call, _ = await stage.running()
    first = stage.worker
    await stage.attach()
    first.cut()
    await stage.worker.next_invoke()
    stage.worker.cut()
    return await stage.failed(call)


@happens("the worker is lost, and too many calls wait for another", "yes")
async def _(stage: Stage) -> Failure:
    await stage.open(calls=CallLimits(waiting_per_set=1))
    await stage.attach(concurrency=1)
    call, _ = await stage.running()
    await stage.caller.start()
    await stage.caller.flush()
    stage.worker.cut()
    return await stage.failed(call)


@happens("the worker is lost, and the tool that is there now is unsafe", "yes")
async def _(stage: Stage) -> Failure:
    await stage.open()
    await stage.attach()
    call, _ = await stage.running()
    first, other = stage.worker, await stage.host.worker()
    await other.hello(tool("echo", effects=UNSAFE))
    first.cut()
    failure = await stage.failed(call)
    assert not other.invoked, "an unsafe tool is not run for a request that another version ran for"
    return failure


@happens("the instance drained too long", "yes")
async def _(stage: Stage) -> Failure:
    await stage.open()
    await stage.attach()
    call, _ = await stage.running()
    other = await stage.host.worker()
    await other.hello(tool("echo", effects=stage.effects, title="A newer one"))
    return await stage.failed(call)


@happens("the worker is lost after the tool asked for more than a look", "yes")
async def _(stage: Stage) -> Failure:
    await stage.open()
    await stage.attach()
    call, run = await stage.running()
    first = stage.worker
    await stage.attach()
    await first.ask(run.call, OutboundRequest(request_id=1, kv_get=KvGet(bucket="notes", key="today")))
    first.cut()
    failure = await stage.failed(call)
    assert not stage.worker.invoked, "it is not run again, though there is another worker"
    return failure
