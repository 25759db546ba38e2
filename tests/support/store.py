"""Stores in memory, for a sidecar that keeps nothing."""

import asyncio
from collections.abc import Callable

from sidecar.calls.paused import PausedCall
from sidecar.calls.stores import DetachedEntry, IdempotencyRecord, PausesFull, StoreFull, StoreUnavailable
from sidecar.scope import Owner, Principal, Scope

_Address = tuple[str | None, str, str, str]


class InMemoryIdempotencyStore:
    """Keeps records as long as it lives, and no longer: it can stand in for a database where no crash is at stake.

    `records` may be looked at and set. With `broken`, every method says that the store is unavailable.
    """

    def __init__(self) -> None:
        self.records: dict[_Address, IdempotencyRecord] = {}
        self.broken = False

    async def find(self, scope: Scope, tool: str, key: str) -> IdempotencyRecord | None:
        self._check()
        return self.records.get((*scope.owner, tool, key))

    async def begin(self, scope: Scope, tool: str, key: str, digest: bytes, execution_id: str) -> None:
        self._check()
        self.records[(*scope.owner, tool, key)] = IdempotencyRecord(digest, execution_id, None)

    async def finish(self, scope: Scope, tool: str, key: str, outcome: bytes) -> None:
        self._check()
        address = (*scope.owner, tool, key)
        self.records[address] = self.records[address]._replace(outcome=outcome)

    async def free(self, scope: Scope, tool: str, key: str) -> None:
        self._check()
        self.records.pop((*scope.owner, tool, key), None)

    def _check(self) -> None:
        if self.broken:
            raise StoreUnavailable("The store was broken on purpose.")


class InMemoryPauseStore:
    """Keeps paused calls as long as it lives. `paused` and `claimed` may be looked at; `broken` is as above."""

    def __init__(self, most_paused: int = 1_024) -> None:
        self.paused: dict[bytes, PausedCall] = {}
        self.claimed: set[bytes] = set()
        self.broken = False
        self._most_paused = most_paused

    async def keep(self, paused: PausedCall, instead_of: bytes | None = None, *, is_claimed: bool = False) -> bool:
        self._check()
        if instead_of is not None:
            if not is_claimed and (instead_of in self.claimed or instead_of not in self.paused):
                return False
            self._finish(instead_of)
        if sum(one.owner == paused.owner for one in self.paused.values()) >= self._most_paused:
            raise PausesFull
        self.paused[paused.ticket_digest] = paused
        return True

    async def find(self, ticket_digest: bytes) -> PausedCall | None:
        self._check()
        found = self.paused.get(ticket_digest)
        return found and found._replace(is_used=ticket_digest in self.claimed)

    async def claim(self, ticket_digest: bytes, *, remember: bool) -> bool:
        self._check()
        found = self.paused.get(ticket_digest)
        if found is None or ticket_digest in self.claimed:
            return False
        self.claimed.add(ticket_digest)
        self.paused[ticket_digest] = found._replace(is_used=remember)
        return True

    async def release(self, ticket_digest: bytes) -> bool:
        self._check()
        self.claimed.discard(ticket_digest)
        if ticket_digest not in self.paused:
            return False
        self.paused[ticket_digest] = self.paused[ticket_digest]._replace(is_used=False)
        return True

    async def finish(self, ticket_digest: bytes) -> None:
        self._check()
        self._finish(ticket_digest)

    async def expire(self, now: float, most: int) -> list[PausedCall]:
        self._check()
        ended = [
            one
            for digest, one in self.paused.items()
            if one.expires_at <= now and (one.is_used or digest not in self.claimed)
        ]
        return self._remove(ended[:most])

    async def next_expiry(self) -> float | None:
        self._check()
        return min(
            (one.expires_at for digest, one in self.paused.items() if one.is_used or digest not in self.claimed),
            default=None,
        )

    async def end(self, owner: Owner, *, run_id: str | None = None, session_id: str | None = None) -> list[PausedCall]:
        self._check()
        ended = [
            one
            for one in self.paused.values()
            if one.owner == owner and (one.run_id == run_id if run_id is not None else one.session_id == session_id)
        ]
        claimed = set(self.claimed)
        return [one for one in self._remove(ended) if one.ticket_digest not in claimed]

    async def recover(self) -> list[PausedCall]:
        self._check()
        return self._remove([self.paused[digest] for digest in self.claimed if not self.paused[digest].is_used])

    async def executions(self) -> frozenset[str]:
        self._check()
        return frozenset(
            execution_id
            for digest, one in self.paused.items()
            if digest not in self.claimed
            for execution_id in one.pause.execution_ids()
        )

    async def busy(self) -> list[tuple[bytes, Owner, str | None, str | None]]:
        self._check()
        return [
            (digest, one.owner, one.run_id, one.session_id)
            for digest, one in self.paused.items()
            if digest not in self.claimed
        ]

    def _finish(self, ticket_digest: bytes) -> None:
        found = self.paused.get(ticket_digest)
        if found is not None and not found.is_used:
            self._remove([found])

    def _remove(self, ended: list[PausedCall]) -> list[PausedCall]:
        for one in ended:
            del self.paused[one.ticket_digest]
            self.claimed.discard(one.ticket_digest)
        return ended

    def _check(self) -> None:
        if self.broken:
            raise StoreUnavailable("The store was broken on purpose.")


class InMemoryDetachedStore:
    """Keeps the entries of detached calls likewise, by the loop's clock."""

    def __init__(self) -> None:
        self.entries: dict[bytes, tuple[DetachedEntry, float]] = {}
        """By digest, each with when it expires."""
        self.broken = False
        self.writable = asyncio.Event()
        """Not set: what is to begin waits."""
        self.writable.set()

    async def begin(self, owner: Owner, digest: bytes, entry: DetachedEntry, most: int) -> None:
        await self.writable.wait()
        self._check()
        if sum(kept.owner == owner for kept, _ in self.entries.values()) >= most:
            raise StoreFull
        self.entries[digest] = (entry, float("inf"))

    async def finish(self, owner: Owner, digest: bytes, started: bytes, outcome: bytes, lasts: float) -> None:
        self._check()
        entry = self.entries[digest][0]._replace(started=started, outcome=outcome)
        assert entry.owner == owner
        self.entries[digest] = (entry, asyncio.get_running_loop().time() + lasts)

    async def find(self, principal: str, digest: bytes) -> DetachedEntry | None:
        self._check()
        if digest not in self.entries:
            return None
        entry, expires_at = self.entries[digest]
        is_there = entry.principal == principal and expires_at > asyncio.get_running_loop().time()
        return entry if is_there else None

    async def forget(self, owner: Owner, digest: bytes) -> None:
        self._check()
        assert self.entries.pop(digest)[0].owner == owner

    async def end_lost(self, outcome_of: Callable[[DetachedEntry], bytes], lasts: float) -> list[DetachedEntry]:
        self._check()
        return []

    async def sweep(self) -> None:
        self._check()
        now = asyncio.get_running_loop().time()
        self.entries = {digest: kept for digest, kept in self.entries.items() if kept[1] > now}

    def _check(self) -> None:
        if self.broken:
            raise StoreUnavailable("The store is broken.")


class FollowedCalls:
    """What an audit log would hold of detached calls."""

    def __init__(self) -> None:
        self.followed_by: list[tuple[Principal, str]] = []
        """Who followed which execution."""

    def followed(self, principal: Principal, execution: str) -> None:
        self.followed_by.append((principal, execution))

    def lost_detached(self, execution: str, tool: str) -> None:
        raise NotImplementedError
