"""What the life of a call needs of the rest: its caller, its tool's workers, and the records of its stores."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from sidecar._gen.pillion.v1.context_pb2 import CancelReason, TeardownReason
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outbound_pb2 import OutboundRequest
from sidecar.calls.paused import PausedCall
from sidecar.scope import KeptInstance, Owner, Principal, Registration, Scope, ScopeKey

if TYPE_CHECKING:
    from sidecar.calls.call import Call
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

    principal: Principal
    in_flight: int
    """Its unfinished calls, counted by the calls themselves."""

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

    def forget(self, number: int) -> None:
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
    teardowns: "Teardowns | None"
    """Who is told of instances that keep cleanups. Set by the pipeline."""

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


Responder: TypeAlias = Callable[["Call", OutboundRequest], Frame | Coroutine[Any, Any, Frame]]
"""Answers one kind of request of running tools: at once, or when the coroutine ends; it is cancelled with the call."""


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


class StoreUnavailable(Exception):
    """A store could not read or write just now. Nothing is known to have been stored."""


class IdempotencyRecord(NamedTuple):
    """What is remembered of a request with an idempotency key."""

    digest: bytes
    """Of its arguments."""
    execution_id: str
    """The execution that ran for it."""
    outcome: bytes | None
    """Its serialised `Outcome`; `None` while it runs, and after a crash of the sidecar while it ran."""


class IdempotencyStore(Protocol):
    """Keeps the records of requests with a key. A key is bound to tenant, subject and tool.

    Each method raises `StoreUnavailable` if the store cannot answer.
    """

    async def find(self, scope: Scope, tool: str, key: str) -> IdempotencyRecord | None:
        """The record of a key, unless it has expired."""
        ...

    async def begin(self, scope: Scope, tool: str, key: str, digest: bytes, execution_id: str) -> None:
        """Records that a request runs, in place of an expired or unfinished record. Synced on return."""
        ...

    async def finish(self, scope: Scope, tool: str, key: str, outcome: bytes) -> None:
        """Records how it ended. Synced on return."""
        ...

    async def free(self, scope: Scope, tool: str, key: str) -> None:
        """Forgets a key whose request had no effect."""
        ...


class RegistrationStore(Protocol):
    """Keeps the registrations of runs, of sessions and of what lasts until the sidecar stops, also after its end.

    What is called earlier is done earlier, whether its caller waits for it or not: of a registration that is added and
    removed at once nothing is left. Each method raises `StoreUnavailable` if the store cannot answer.
    """

    async def add(self, registration: Registration) -> None:
        """Keeps a registration. Synced on return: only then is it acknowledged."""
        ...

    async def claim(self, registrations: Sequence[Registration], reason: "TeardownReason.ValueType") -> None:
        """Records that they are about to fire, and why. Synced on return: only then do they."""
        ...

    async def unclaim(self, registrations: Sequence[Registration]) -> None:
        """Records that they did not fire after all. Synced on return."""
        ...

    async def remove(self, registrations: Sequence[Registration]) -> None:
        """Forgets registrations whose cleanup is done, or of which was reported. Unknown ones are passed over."""
        ...


Pin: TypeAlias = tuple[ScopeKey, str]
"""A scope, and the worker set whose calls of it are pinned."""


class PinStore(Protocol):
    """Keeps which instance each scope is pinned to, also after the end of the sidecar."""

    async def pin(self, pins: Mapping[Pin, str | None]) -> None:
        """Has each scope pinned to this instance alone, for the calls of a worker set, or to none. Synced on return.

        :raises StoreUnavailable: if the store cannot answer.
        """
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


class PausesFull(Exception):
    """A subject has as many paused calls as it may have."""


class PauseStore(Protocol):
    """Keeps paused calls, by the digests of their tickets. What it is told is synced on return.

    Each method raises `StoreUnavailable` if the store cannot answer. Times are in seconds since the Unix epoch.
    """

    async def keep(self, paused: PausedCall, instead_of: bytes | None = None, *, is_claimed: bool = False) -> bool:
        """Keeps a call. `instead_of` is the ticket of the pause that it went on from, which is used up by this.

        False: that one is not there any more, or claimed, unless `is_claimed` says by whom: nothing is kept then.

        :raises PausesFull: if its subject has too many.
        """
        ...

    async def find(self, ticket_digest: bytes) -> PausedCall | None:
        """The call of a ticket, a used one too."""
        ...

    async def claim(self, ticket_digest: bytes, *, remember: bool) -> bool:
        """Claims a call for one resume. False: it is not there any more, or claimed.

        `remember`: whether it is to be found once more after that, as a used one.
        """
        ...

    async def release(self, ticket_digest: bytes) -> bool:
        """The resume came to nothing: the call may be claimed again. False: it has ended meanwhile."""
        ...

    async def finish(self, ticket_digest: bytes) -> None:
        """The resume came to an end: the call is forgotten, or a used one."""
        ...

    async def expire(self, now: float, most: int) -> list[PausedCall]:
        """Takes away those whose time is up, that were not claimed, and at most so many; answers them."""
        ...

    async def next_expiry(self) -> float | None:
        """When the next one's time is up; `None`: there is none."""
        ...

    async def end(self, owner: Owner, *, run_id: str | None = None, session_id: str | None = None) -> list[PausedCall]:
        """Takes away those of a run or a session; answers those that were not claimed."""
        ...

    async def recover(self) -> list[PausedCall]:
        """Takes away those that were claimed when the sidecar stopped; answers them."""
        ...

    async def executions(self) -> frozenset[str]:
        """The executions that something may be kept under for those that can be resumed, and their inner calls."""
        ...

    async def busy(self) -> list[tuple[bytes, Owner, str | None, str | None]]:
        """Those of runs and sessions that can be resumed: ticket digest, owner, run and session."""
        ...
