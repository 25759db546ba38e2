"""A call whose tool calls a tool, and so on, until the innermost asks the caller: each step is the test's to take."""

import gc
from typing import Any

from sidecar._gen.pillion.v1.call_pb2 import CallerHello, CallerRequest
from sidecar._gen.pillion.v1.context_pb2 import CancelReason
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outbound_pb2 import OutboundRequest, Reply
from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind
from sidecar.calls.call import Call
from sidecar.calls.outbound import OutboundRequests
from sidecar.calls.questions import Question
from tests.support.caller import CallerPeer
from tests.support.host import Host, attach
from tests.support.tools import seconds, text, tool
from tests.support.worker import Invocation, WorkerPeer

LINKS = ("first", "second", "third", "fourth")
"""The tools of a chain, from the one that the caller calls to the one at depth 3; each has a worker set of its name."""
CHAIN_SETS = {name: frozenset((name,)) for name in LINKS}
"""What a host of chains is started with."""
METHOD = "elicitation/create"

_KEPT = (Call, OutboundRequests, Question)


class Chain:
    """One call and the calls within it, all of which run."""

    def __init__(self, caller: CallerPeer, workers: list[WorkerPeer]) -> None:
        self.caller = caller
        self.workers = workers
        self.call = 0
        """The caller's call."""
        self.runs: list[Invocation] = []
        """What came to the workers, from the outermost to the innermost."""

    @property
    def innermost(self) -> tuple[WorkerPeer, int]:
        """The worker of the tool at the end, and its call there."""
        return self.workers[-1], self.runs[-1].call

    async def begin(self, *, inner_timeout: float | None = None, **wishes: Any) -> None:
        """Has the caller call the first tool, and each tool call the next; `inner_timeout` is what those ask for."""
        self.call = await self.caller.start(LINKS[0], tool_call_id="t", **wishes)
        self.runs = [await self.workers[0].next_invoke()]
        for depth, name in enumerate(LINKS[1:], 1):
            asked = OutboundRequest(request_id=1)
            asked.tools_call.tool = name
            if inner_timeout is not None:
                asked.timeout.CopyFrom(seconds(inner_timeout))
            await self.workers[depth - 1].send(Frame(call=self.runs[-1].call, outbound_request=asked))
            self.runs.append(await self.workers[depth].next_invoke())

    async def ask(self, number: int = 1, timeout: float | None = None) -> CallerRequest:
        """Has the innermost tool ask the caller; answers the question as it came there."""
        asked = OutboundRequest(request_id=number, timeout=None if timeout is None else seconds(timeout))
        asked.caller_request.method = METHOD
        worker, run = self.innermost
        await worker.send(Frame(call=run, outbound_request=asked))
        return (await self.caller.next_of("caller_request", self.call)).caller_request

    async def answer(self, question: CallerRequest, value: Any) -> Reply:
        """Has the caller answer; answers the reply as it came to the innermost tool."""
        frame = Frame(call=self.call)
        frame.reply.request_id = question.request_id
        frame.reply.caller.result = text(value)
        await self.caller.send(frame)
        return await self.reply(len(LINKS) - 1)

    async def reply(self, depth: int) -> Reply:
        """The next reply to the tool at a depth."""
        return (await self.workers[depth].next_of("reply", self.runs[depth].call)).reply

    async def cancelled(self, *depths: int) -> list[str]:
        """The reasons that these tools are cancelled with, once they are."""
        return [
            CancelReason.Name(await self.workers[depth].cancelled(self.runs[depth].call)).removeprefix("CANCEL_REASON_")
            for depth in depths
        ]

    async def stop(self, *depths: int) -> None:
        """Has these tools, which were cancelled, end; the innermost first."""
        for depth in reversed(depths):
            await self.workers[depth].fail(self.runs[depth].call, FailureKind.FAILURE_KIND_CANCELLED)
            await self.workers[depth].flush()

    async def finish(self, *depths: int) -> None:
        """Has these tools return, the innermost first; each but that is told by then how the next one ended."""
        for depth in reversed(depths):
            await self.workers[depth].result(self.runs[depth].call, {"depth": depth})
            await self.workers[depth].flush()


async def chained(host: Host, **hello: Any) -> Chain:
    """A caller that answers questions, and a worker for each tool of a chain, on a host of `CHAIN_SETS`."""
    workers = [await attach(host, tool(name), worker=name, **hello) for name in LINKS]
    caller = await host.caller()
    await caller.send(Frame(caller_hello=CallerHello(can_answer=[METHOD])))
    await caller.next_of("host_hello")
    return Chain(caller, workers)


def kept() -> list[object]:
    """The calls, open requests and open questions that are still held in this process."""
    gc.collect()
    return [thing for thing in gc.get_objects() if isinstance(thing, _KEPT)]
