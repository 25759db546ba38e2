"""Idempotency records in memory, for a sidecar that keeps nothing."""

from sidecar.calls.ports import IdempotencyRecord, StoreUnavailable
from sidecar.scope import Scope

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
