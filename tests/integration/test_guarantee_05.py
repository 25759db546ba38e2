"""What a tool asks of the sidecar is answered or refused, at any depth."""

import asyncio
import json

import pytest

from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outbound_pb2 import OutboundRequest, ReplyErrorCode
from sidecar._gen.pillion.v1.worker_pb2 import RegisterTeardown
from sidecar.calls.call import Call
from tests.support import CallerPeer, Host, Invocation, MemoryHost, WorkerPeer, attach, everywhere

KINDS = [field.name for field in OutboundRequest.DESCRIPTOR.oneofs_by_name["request"].fields]
# Field 100, length-delimited, as a later protocol may have it.
OF_LATER = b"\xa2\x06\x03abc"


async def at_depth(depth: int, worker: WorkerPeer, caller: CallerPeer) -> Invocation:
    """The innermost of calls within calls."""
    await caller.start("echo", {"depth": 0})
    innermost = await worker.next_invoke()
    for level in range(1, depth + 1):
        nested = OutboundRequest(request_id=1)
        nested.tools_call.tool = "echo"
        nested.tools_call.arguments = json.dumps({"depth": level}).encode()
        await worker.send(Frame(call=innermost.call, outbound_request=nested))
        innermost = await worker.next_invoke()
    return innermost


@pytest.mark.parametrize("depth", [0, 1, 3, 8])
@everywhere
async def test_guarantee_05_every_request_is_answered_or_refused_at_any_depth(host: Host, depth: int) -> None:
    worker, caller = await attach(host), await host.caller()
    run = (await at_depth(depth, worker, caller)).call
    for number, kind in enumerate(KINDS, 10):
        request = OutboundRequest(request_id=number)
        getattr(request, kind).SetInParent()
        reply = await worker.ask(run, request)
        assert reply.request_id == number, kind
        assert reply.WhichOneof("answer") is not None, kind
        assert not reply.HasField("error") or reply.error.message, kind
    unknown = OutboundRequest.FromString(OutboundRequest(request_id=1_000).SerializeToString() + OF_LATER)
    assert (await worker.ask(run, unknown)).error.code == ReplyErrorCode.REPLY_ERROR_CODE_UNSUPPORTED
    assert (await worker.register(run, RegisterTeardown(request_id=1_001))).request_id == 1_001


@pytest.mark.parametrize("depth", [0, 3])
async def test_guarantee_05_what_is_open_when_a_call_is_given_up_is_refused_at_any_depth(
    memory_host: MemoryHost, depth: int
) -> None:
    async def never(_: Call, __: OutboundRequest) -> Frame:
        await asyncio.sleep(10_000)
        raise AssertionError("nothing of a call lasts so long")

    memory_host.pipeline.responders["kv_get"] = never
    worker, caller = await attach(memory_host), await memory_host.caller()
    run = (await at_depth(depth, worker, caller)).call
    request = OutboundRequest(request_id=7)
    request.kv_get.key = "k"
    await worker.send(Frame(call=run, outbound_request=request))
    await worker.flush()
    # No tool of the chain heeds the cancel, so all of them are given up.
    await caller.cancel(1)
    reply = (await worker.next_of("reply", run)).reply
    assert (reply.request_id, reply.error.code) == (7, ReplyErrorCode.REPLY_ERROR_CODE_CANCELLED)
    request.request_id = 8
    reply = await worker.ask(run, request)
    assert (reply.request_id, reply.error.code) == (8, ReplyErrorCode.REPLY_ERROR_CODE_CANCELLED)
