"""What the life of a call needs of the rest: its caller, its tool's workers, and the records of its stores."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from sidecar._gen.pillion.v1.context_pb2 import CancelReason, TeardownReason
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outbound_pb2 import OutboundRequest
from sidecar.scope import KeptInstance, Principal, Registration, ScopeKey

if TYPE_CHECKING:
    from sidecar.calls.call import Call
    from sidecar.calls.outbound import Pending
    from sidecar.calls.questions import Question
    from sidecar.calls.teardowns import Teardowns
    from sidecar.calls.tool import Tool


class Sink(Protocol):
    """Where the frames of one call go on the caller's side, in order."""

    def send(self, frame: Frame) -> bool:
        """Sends a frame that is never lost, stamped. False: it is over the caller's largest and was not sent."""
        ...

    def report(self, frame: Frame) -> None:
        """Sends progress, which may give way to newer."""
        ...


class Caller(Protocol):
    """The caller's side of a stream, or of one unary call."""

    in_flight: int
    """Its unfinished calls, counted by the calls themselves."""

    @property
    def principal(self) -> Principal:
        """Who it is."""
        ...

    @property
    def detaches(self) -> bool:
        """Whether it stands for callers that come and go, so that a call may be detachable."""
        ...

    @property
    def answerable(self) -> frozenset[str] | None:
        """The methods that it can be asked; `None`: there is no way back to it."""
        ...

    @property
    def takes_consent(self) -> bool:
        """Whether it takes the addresses at which people authorise, which nobody else is told."""
        ...

    @property
    def gone(self) -> bool:
        """Whether it answers no more, though its calls go on."""
        ...

    @property
    def congested(self) -> bool:
        """Whether so much is undelivered that no call is to be started."""
        ...

    @property
    def overfull(self) -> bool:
        """Whether so much is undelivered that a large outcome is to be refused."""
        ...

    def ask(self, question: "Question") -> int:
        """Takes a question that is about to be sent; answers its number. The question hears what becomes of it."""
        ...

    def forget(self, number: int, question: "Question") -> None:
        """A question needs no answer any more."""
        ...

    def leaves(self, call: "Call") -> None:
        """A call goes on without this caller: it answers none of its questions."""
        ...

    def finished(self, call: "Call") -> None:
        """A call's outcome was sent."""
        ...

    def took_over(self, call: "Call") -> None:
        """A running call's sink is this caller's from now on, in place of one of its own that joined it."""
        ...


class Follower(Caller, Protocol):
    """A caller on whose stream detached calls are followed, each by a call id of that stream."""

    def follows(self, number: int, call: "Call | None") -> None:
        """What it sends under this call id is for this call from now on; `None`: for none."""
        ...

    def follows_no_more(self, number: int) -> None:
        """Nothing more is sent to it under this call id."""
        ...


class FollowerLane(Sink, Protocol):
    """Where the frames of a detached call go on a follower's stream. They are stamped already."""

    call: int
    """The call id on that stream."""
    handed_over: int
    """How many frames were handed to the transport."""

    def missed(self, count: int) -> None:
        """So many reports are not sent; the next frame says so."""
        ...

    def replay(self, frame: Frame) -> None:
        """Sends a frame that was kept. None of them gives way to newer; a report over the largest counts as lost."""
        ...


class Assignment(Protocol):
    """One call on one worker instance: a slot, and the frames that go to the tool."""

    @property
    def instance_id(self) -> str:
        """The instance."""
        ...

    @property
    def invoked(self) -> bool:
        """Whether the message that holds the invoke was handed to the transport."""
        ...

    def knows(self, secret: str) -> bool:
        """Whether this is the instance's own secret. Takes the same time for each wrong one."""
        ...

    def send(self, frame: Frame) -> bool:
        """Sends a frame of the call to the tool. False: it is over the worker's largest and was not sent."""
        ...

    def report(self, frame: Frame) -> None:
        """Sends the tool progress of a call that it made, which may give way to newer."""
        ...

    def cancel(self, reason: "CancelReason.ValueType") -> None:
        """Asks the tool to stop."""
        ...

    def release(self) -> None:
        """Gives the slot back: the tool has ended."""
        ...

    def leak(self) -> None:
        """Gives the call up while the tool still runs: the slot stays taken until the tool ends."""
        ...


class WorkerSet(Protocol):
    """The instances of one configured worker name."""

    name: str

    def brings(self, tool_name: str) -> bool:
        """Whether an instance that takes calls has a tool of this name."""
        ...

    def version_for(self, call: "Call", tool: "Tool") -> "Tool":
        """The version of a tool that holds something that the call's run or session is bound to.

        :raises Refusal: as INVALID_ARGUMENTS if the call does not name what it holds something for.
        """
        ...

    def place(self, call: "Call", now: float) -> None:
        """Gives the call an instance, now or when one is free: `call.placed` is called with the assignment.

        :raises Refusal: as OVERLOADED if too many wait already, or if the instance that it is pinned to cannot take it.
        """
        ...

    def withdraw(self, call: "Call") -> None:
        """Takes back a call that waits. One that does not wait is no error."""
        ...


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All tools at one moment. Never changed; a call that holds one of its tools is pinned to it."""

    generation: int
    """Which one it is: grows with every change of the tools."""
    tools: "Mapping[str, Tool]"
    """By name, in order of names."""


class Keeper(Protocol):
    """An instance that keeps cleanups, while its stream is open."""

    def fire(
        self, registration_id: str, reason: "TeardownReason.ValueType", timeout: float
    ) -> "asyncio.Future[str | None]":
        """Has it run a cleanup; the answer is what went wrong, or `None`.

        An instance that is lost meanwhile fails with `KeeperLost`. A cancelled future is waited for no more.
        """
        ...


class KeeperLost(Exception):
    """The instance went away before it said what became of a cleanup."""


class Keepers(Protocol):
    """The instances that keep cleanups."""

    def keeper(self, worker: str, instance_id: str) -> Keeper | None:
        """The instance, if its stream is open."""
        ...

    def may_return(self, worker: str, instance_id: str) -> bool:
        """Whether an instance whose stream is not open may still come back."""
        ...

    def expect(self, instance: KeptInstance) -> bool:
        """Waits for an instance of an earlier sidecar to come back. False: it cannot."""
        ...

    def relieved(self, worker: str, instance_id: str) -> None:
        """An instance keeps less than it did, and has run what it was to."""
        ...


class Catalogue(Keepers, Protocol):
    """The tools there are now."""

    snapshot: Snapshot
    """The current ones. To be read, not set."""
    teardowns: "Teardowns"
    """Who is told of instances that keep cleanups. Set by the pipeline, before any instance is there."""

    def expected(self, name: str) -> WorkerSet | None:
        """The worker set that is configured to bring a tool of this name, which is not there yet."""
        ...


class Listing(Protocol):
    """The catalogue, as doors list it."""

    snapshot: Snapshot
    """The current ones. To be read, not set."""

    def changed(self) -> Awaitable[None]:
        """To be awaited: the next change from this moment on."""
        ...


class Supplier(Protocol):
    """Puts what a tool declares into its invocation: its `wants` at gate 8, its `needs` at gate 9."""

    def supply(self, call: "Call", tool: "Tool") -> Coroutine[Any, Any, None] | None:
        """Puts it in. `None`: it is there. Else the call waits for it, at most as long as it may take itself.

        :raises Refusal: if it cannot be had; the coroutine likewise. Nothing was done then.
        """
        ...

    def placed(self, call: "Call", assignment: Assignment) -> None:
        """An instance was found and is about to be invoked: puts in what is for it alone. May not raise."""
        ...


Responder: TypeAlias = Callable[["Call", OutboundRequest], "Frame | Pending | Coroutine[Any, Any, Frame]"]
"""Answers one kind of request of running tools: at once, when it comes, or when the coroutine ends.

What is waited for is cancelled with the call.
"""


class Placer(Protocol):
    """Moves results that are too large to be carried to where their tool's placement says: in gate 12."""

    def place(self, call: "Call", tool: "Tool", frame: Frame) -> Coroutine[Any, Any, Frame] | None:
        """The outcome frame in place of this one; `None`: it stays as it is. The coroutine may not raise."""
        ...


class Audit(Protocol):
    """What keeps a record of every call."""

    keeps_arguments: bool
    """Whether calls are to keep their arguments until they end."""

    @property
    def refuses(self) -> bool:
        """Whether no call is to be started, because it could not be recorded."""
        ...

    def ended(self, call: "Call", frame: Frame, seconds: float) -> None:
        """A call has the outcome in this frame, so long after its start."""
        ...

    def flush(self) -> None:
        """Records what has ended. Called before anybody is sent an outcome; never raises."""
        ...


class TeardownReports(Protocol):
    """Who is told what became of cleanups and scopes. Nothing here may raise."""

    def fired(self, registration: Registration, reason: "TeardownReason.ValueType") -> None:
        """A cleanup ran, and well."""
        ...

    def failed(self, registration: Registration, reason: "TeardownReason.ValueType", how: str) -> None:
        """A cleanup failed, or what became of it is not known; `how` is one of a few words."""
        ...

    def lost(self, registration: Registration) -> None:
        """The instance that kept a cleanup is gone for good, and the cleanup with it."""
        ...

    def scope_ended(self, key: ScopeKey, by: Principal, ended: "EndedScope") -> None:
        """Somebody ended a run or session that there was."""
        ...


class EndedScope(NamedTuple):
    """What the end of a scope came to."""

    fired: int = 0
    """How many cleanups were to run."""
    failed: int = 0
    """Of how many it is not known that they did, and well."""
    cancelled: int = 0
    """How many calls were cancelled."""


class DetachedAudit(Protocol):
    """What keeps a record of what becomes of detached calls, beside that of every call."""

    def followed(self, principal: Principal, execution: str) -> None:
        """Somebody follows a call from now on."""
        ...

    def lost_detached(self, execution: str, tool: str) -> None:
        """A call ran when the sidecar was killed, and ended with that."""
        ...
