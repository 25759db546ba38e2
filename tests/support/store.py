"""Idempotency records and detached calls in memory, for a sidecar that keeps nothing."""

import asyncio
from collections.abc import Callable

from sidecar.calls.ports import DetachedEntry, IdempotencyRecord, StoreFull, StoreUnavailable
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

    def lost(self, execution: str, tool: str) -> None:
        raise NotImplementedError
