"""What the life of a call needs of what keeps things beyond it, each by a store of its own."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from sidecar._gen.pillion.v1.context_pb2 import TeardownReason
from sidecar._gen.pillion.v1.tool_pb2 import Effects
from sidecar.calls.paused import PausedCall
from sidecar.scope import Owner, Registration, Scope, ScopeKey


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


class StoreFull(Exception):
    """A tenant's subject has as many entries as it may have. Nothing was stored."""


class DetachedEntry(NamedTuple):
    """What is remembered of a detached call, so that it can be followed without it."""

    owner: Owner
    """Whom it is for."""
    principal: str
    """The name of the caller principal that started it."""
    tool: str
    key: str | None
    """Its idempotency key."""
    effects: "Effects.ValueType"
    """Of its tool."""
    started: bytes
    """Its serialised `Started` frame, without the ticket and without a call id."""
    outcome: bytes | None
    """Its serialised outcome frame, likewise; `None` while it runs."""


class DetachedStore(Protocol):
    """Keeps detached calls by the digests of their tickets.

    Each method raises `StoreUnavailable` if the store cannot answer.
    """

    async def begin(self, owner: Owner, digest: bytes, entry: DetachedEntry, most: int) -> None:
        """Records that a call runs. Synced on return.

        :raises StoreFull: if its owner has `most` entries already, of calls that run and of those that ended.
        """
        ...

    async def finish(self, owner: Owner, digest: bytes, started: bytes, outcome: bytes, lasts: float) -> None:
        """Records how it ended; the entry lasts so many seconds from now. Synced on return."""
        ...

    async def find(self, principal: str, digest: bytes) -> DetachedEntry | None:
        """The entry of a ticket, where this caller principal started the call, and it has not expired."""
        ...

    async def forget(self, owner: Owner, digest: bytes) -> None:
        """Removes an entry."""
        ...

    async def end_lost(self, outcome_of: Callable[[DetachedEntry], bytes], lasts: float) -> list[DetachedEntry]:
        """Ends all that are said to run, in a sidecar that has just started: none of them does. Synced on return.

        Where the outcome of the same request was recorded under its idempotency key, that is how one ended; else it is
        what `outcome_of` answers. Each entry lasts so many seconds from now. Answers those that were ended by
        `outcome_of`.
        """
        ...

    async def sweep(self) -> None:
        """Removes what has expired."""
        ...
