"""Idempotency records in SQLite."""

import sqlite3
import time
from collections.abc import Callable

from sidecar.calls.stores import IdempotencyRecord, StoreUnavailable
from sidecar.scope import Scope
from sidecar.storage.database import Database, StoreBusy
from sidecar.storage.owners import stored

_DAY = 24 * 3600.0
_MOST_RECORDS = 10_000
# Each write that adds a record takes away up to so many that are no longer wanted, so that they cannot pile up.
_SWEPT = 16

_FIND = """
    SELECT digest, execution_id, outcome FROM idempotency_record
    WHERE owner = (SELECT id FROM idempotency_owner WHERE tenant = ? AND subject = ?)
        AND tool = ? AND key = ? AND expires_at > ?
"""
_ADD_OWNER = "INSERT INTO idempotency_owner (tenant, subject) VALUES (?, ?) ON CONFLICT DO NOTHING"
_OWNER = "SELECT id FROM idempotency_owner WHERE tenant = ? AND subject = ?"
_COUNT = "SELECT records FROM idempotency_owner WHERE id = ?"
_BEGIN = """
    INSERT INTO idempotency_record (owner, tool, key, digest, execution_id, expires_at) VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT (owner, tool, key) DO UPDATE
    SET digest = excluded.digest, execution_id = excluded.execution_id, expires_at = excluded.expires_at,
        finished_at = NULL, outcome = NULL
    WHERE finished_at IS NULL OR expires_at <= ?
"""
_FINISH = """
    UPDATE idempotency_record SET outcome = ?, finished_at = ?, expires_at = ?
    WHERE owner = (SELECT id FROM idempotency_owner WHERE tenant = ? AND subject = ?) AND tool = ? AND key = ?
"""
_FREE = """
    DELETE FROM idempotency_record
    WHERE owner = (SELECT id FROM idempotency_owner WHERE tenant = ? AND subject = ?) AND tool = ? AND key = ?
"""
_SWEEP = """
    DELETE FROM idempotency_record WHERE id IN (
        SELECT id FROM idempotency_record WHERE expires_at <= ? ORDER BY expires_at LIMIT ?
    )
"""
_EVICT = """
    DELETE FROM idempotency_record WHERE id IN (
        SELECT id FROM idempotency_record WHERE owner = ? AND finished_at IS NOT NULL ORDER BY finished_at, id LIMIT ?
    )
"""


class SqliteIdempotencyStore:
    """Keeps the records of requests with a key, each within its tenant, subject and tool.

    A record lasts for `lifetime` seconds of the wall clock from when its request began, and again from when it ended. A
    tenant's subject has at most `most_records`: beyond them the oldest of the finished goes. The record of a request
    that runs never goes before its time, so a further one is refused where all of them run.
    """

    def __init__(
        self,
        database: Database,
        *,
        lifetime: float = _DAY,
        most_records: int = _MOST_RECORDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._database = database
        self._lifetime = lifetime
        self._most_records = most_records
        self._clock = clock

    async def find(self, scope: Scope, tool: str, key: str) -> IdempotencyRecord | None:
        """The record of a key, unless it has expired.

        :raises StoreUnavailable: if the database cannot answer.
        """
        address = (*stored(scope.owner), tool, key, self._clock())
        row = await self._database.read(lambda connection: connection.execute(_FIND, address).fetchone())
        return None if row is None else IdempotencyRecord(*row)

    async def begin(self, scope: Scope, tool: str, key: str, digest: bytes, execution_id: str) -> None:
        """Records that a request runs, in place of an expired or unfinished record. Synced on return.

        :raises StoreBusy: if the subject has as many running requests as it may have records.
        :raises StoreUnavailable: if the database cannot store it, or a finished record has the key.
        """
        owner, now = stored(scope.owner), self._clock()

        def operation(connection: sqlite3.Connection) -> None:
            connection.execute(_SWEEP, (now, _SWEPT))
            connection.execute(_ADD_OWNER, owner)
            (identifier,) = connection.execute(_OWNER, owner).fetchone()
            record = (identifier, tool, key, digest, execution_id, now + self._lifetime, now)
            if connection.execute(_BEGIN, record).rowcount != 1:
                raise StoreUnavailable("The request has ended already; its record tells how.")
            self._make_room(connection, identifier)

        await self._database.write(operation)

    def _make_room(self, connection: sqlite3.Connection, owner: int) -> None:
        (records,) = connection.execute(_COUNT, (owner,)).fetchone()
        excess = records - self._most_records
        # More than one is over only where the limit was lowered.
        if excess > 0 and connection.execute(_EVICT, (owner, min(excess, _SWEPT))).rowcount == 0:
            raise StoreBusy("The subject has too many unfinished requests with a key; try again when one has ended.")

    async def finish(self, scope: Scope, tool: str, key: str, outcome: bytes) -> None:
        """Records how a request ended. Synced on return.

        :raises StoreUnavailable: if the database cannot store it, or the request's own record has expired.
        """
        owner, now = stored(scope.owner), self._clock()

        def operation(connection: sqlite3.Connection) -> None:
            record = (outcome, now, now + self._lifetime, *owner, tool, key)
            if connection.execute(_FINISH, record).rowcount != 1:
                raise StoreUnavailable("The record of the request has expired.")

        await self._database.write(operation)

    async def free(self, scope: Scope, tool: str, key: str) -> None:
        """Forgets a key, if there is a record of it. Synced on return.

        :raises StoreUnavailable: if the database cannot store it.
        """
        address = (*stored(scope.owner), tool, key)
        await self._database.write(lambda connection: connection.execute(_FREE, address).close())
