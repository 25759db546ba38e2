"""A worker in a test's hands."""

from typing import Any

from sidecar._gen.pillion.v1.context_pb2 import CancelReason, TeardownScope
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outbound_pb2 import OutboundRequest, Reply, TeardownAccepted
from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind, SideEffects
from sidecar._gen.pillion.v1.tool_pb2 import ToolDescriptor
from sidecar._gen.pillion.v1.worker_pb2 import (
    Invoke,
    Reattach,
    RegisterTeardown,
    RunTeardown,
    TeardownDone,
    Welcome,
    WorkerHello,
)
from tests.support.links import Link
from tests.support.peer import Peer
from tests.support.tools import text


def token_of(worker: str) -> str:
    """The token of a worker set of the tests."""
    return f"token-of-{worker}"


class Invocation:
    """An `Invoke` that came, and the call id to answer it on."""

    def __init__(self, frame: Frame) -> None:
        self.call = frame.call
        self.invoke: Invoke = frame.invoke
        self.context = frame.invoke.context


class WorkerPeer(Peer):
    """Hosts tools on one `Attach` stream; each step of a call is the test's to take."""

    def __init__(self, link: Link, *, virtual: bool) -> None:
        super().__init__(link, virtual=virtual)
        self.invoked: list[Invocation] = []
        """All invokes that came."""
        self._taken_invokes = 0

    def received(self, frame: Frame) -> None:
        if frame.HasField("invoke"):
            self.invoked.append(Invocation(frame))

    async def hello(
        self,
        *tools: ToolDescriptor,
        worker: str = "main",
        token: str | None = None,
        concurrency: int | None = None,
        reattach: Reattach | None = None,
        **fields: Any,
    ) -> Welcome:
        """Presents the worker; answers the sidecar's welcome."""
        await self.present(*tools, worker=worker, token=token, concurrency=concurrency, reattach=reattach, **fields)
        return (await self.next_of("welcome")).welcome

    async def present(
        self,
        *tools: ToolDescriptor,
        worker: str = "main",
        token: str | None = None,
        concurrency: int | None = None,
        reattach: Reattach | None = None,
        **fields: Any,
    ) -> None:
        """Sends the hello, and waits for nothing."""
        hello = WorkerHello(
            worker=worker,
            token=token_of(worker) if token is None else token,
            tools=tools,
            concurrency=concurrency,
            reattach=reattach,
            **fields,
        )
        await self.send(Frame(worker_hello=hello))

    async def next_invoke(self) -> Invocation:
        """The next invoke that was not taken yet."""
        await self._until(lambda: len(self.invoked) > self._taken_invokes, "an invoke")
        invocation = self.invoked[self._taken_invokes]
        self._taken_invokes += 1
        return invocation

    async def progress(self, call: int, payload: Any = None) -> None:
        """Reports."""
        await self.send(progress(call, payload))

    async def result(self, call: int, value: Any = None, **fields: Any) -> None:
        """Ends a call in a result: `value` is JSON bytes or a value, `None` none."""
        await self.send(result(call, value, **fields))

    async def fail(
        self,
        call: int,
        kind: "FailureKind.ValueType" = FailureKind.FAILURE_KIND_TOOL_FAILED,
        side_effects: "SideEffects.ValueType" = SideEffects.SIDE_EFFECTS_UNSPECIFIED,
        message: str = "The tool failed.",
    ) -> None:
        """Ends a call in a failure."""
        await self.send(failure(call, kind, side_effects, message))

    async def ask(self, call: int, request: OutboundRequest) -> Reply:
        """Sends an outbound request; answers its reply."""
        await self.send(Frame(call=call, outbound_request=request))
        return (await self.next_of("reply", call)).reply

    async def register(self, call: int, registration: RegisterTeardown) -> Reply:
        """Registers a teardown; answers its reply."""
        await self.send(Frame(call=call, register_teardown=registration))
        return (await self.next_of("reply", call)).reply

    async def registered(
        self, call: int, scope: "TeardownScope.ValueType", number: int = 1, **fields: Any
    ) -> TeardownAccepted:
        """Registers a teardown that stands; answers how."""
        reply = await self.register(call, RegisterTeardown(request_id=number, scope=scope, **fields))
        assert reply.HasField("teardown"), reply
        assert reply.request_id == number
        return reply.teardown

    async def next_teardown(self) -> RunTeardown:
        """The next cleanup that it is to run."""
        return (await self.next_of("run_teardown")).run_teardown

    def teardowns(self) -> list[RunTeardown]:
        """All cleanups that it was to run so far, in order."""
        return [frame.run_teardown for frame in self.frames[0] if frame.HasField("run_teardown")]

    async def torn_down(self, registration_id: str, error: str | None = None) -> None:
        """Says that a cleanup is over."""
        await self.send(Frame(teardown_done=TeardownDone(registration_id=registration_id, error=error)))

    async def cancelled(self, call: int) -> "CancelReason.ValueType":
        """The reason of the cancel of a call, once it comes."""
        return (await self.next_of("cancel", call)).cancel.reason

    async def goodbye(self) -> None:
        """Leaves: takes no new calls."""
        frame = Frame()
        frame.goodbye.SetInParent()
        await self.send(frame)


def tools_changed(*tools: ToolDescriptor) -> Frame:
    """Other tools from now on."""
    frame = Frame()
    frame.tools_changed.tools.extend(tools)
    return frame


def progress(call: int, payload: Any = None) -> Frame:
    """A report."""
    frame = Frame(call=call)
    frame.progress.payload = text({} if payload is None else payload)
    return frame


def result(call: int, value: Any = None, **fields: Any) -> Frame:
    """An outcome that is a result."""
    frame = Frame(call=call)
    frame.outcome.result.SetInParent()
    if value is not None:
        frame.outcome.result.json = text(value)
    for name, setting in fields.items():
        setattr(frame.outcome.result, name, setting)
    return frame


def failure(
    call: int,
    kind: "FailureKind.ValueType" = FailureKind.FAILURE_KIND_TOOL_FAILED,
    side_effects: "SideEffects.ValueType" = SideEffects.SIDE_EFFECTS_UNSPECIFIED,
    message: str = "The tool failed.",
) -> Frame:
    """An outcome that is a failure."""
    frame = Frame(call=call)
    reason = frame.outcome.failure
    reason.kind, reason.side_effects, reason.message = kind, side_effects, message
    return frame
