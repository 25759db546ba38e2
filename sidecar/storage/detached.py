"""Detached calls in SQLite."""

import sqlite3
import time
from collections.abc import Callable, Sequence
from typing import Any

from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar.calls.stores import DetachedEntry, StoreFull
from sidecar.scope import Owner
from sidecar.storage.database import Database
from sidecar.storage.owners import owner_of, stored

# Each write that adds an entry takes away up to so many that have expired, so that they cannot pile up.
_SWEPT = 16
_SWEPT_AT_ONCE = 1_024

_COUNT = """
    SELECT count(*) FROM detached_call
    WHERE tenant = ? AND subject = ? AND (expires_at IS NULL OR expires_at > ?)
"""
_BEGIN = """
    INSERT INTO detached_call (tenant, subject, digest, principal, tool, key, effects, started)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""
_FINISH = """
    UPDATE detached_call SET started = ?, outcome = ?, expires_at = ?
    WHERE tenant = ? AND subject = ? AND digest = ?
"""
_FIND = """
    SELECT tenant, subject, principal, tool, key, effects, started, outcome FROM detached_call
    WHERE principal = ? AND digest = ? AND (expires_at IS NULL OR expires_at > ?)
"""
_FORGET = "DELETE FROM detached_call WHERE tenant = ? AND subject = ? AND digest = ?"
_SWEEP = """
    DELETE FROM detached_call WHERE id IN (
        SELECT id FROM detached_call WHERE expires_at <= ? ORDER BY expires_at LIMIT ?
    )
"""
_UNFINISHED = """
    SELECT tenant, subject, principal, tool, key, effects, started, outcome, id FROM detached_call
    WHERE expires_at IS NULL
"""
_OF_THE_SAME_REQUEST = """
    SELECT outcome FROM idempotency_record
    WHERE owner = (SELECT id FROM idempotency_owner WHERE tenant = ? AND subject = ?) AND tool = ? AND key = ?
        AND outcome IS NOT NULL
"""
_END = "UPDATE detached_call SET outcome = ?, expires_at = ? WHERE id = ?"


class SqliteDetachedStore:
    """Keeps detached calls by the digests of their tickets, each within its tenant and subject.

    An entry has no end while its call runs, and lasts from its outcome on by the wall clock.
    """

    def __init__(self, database: Database, *, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock

    async def begin(self, owner: Owner, digest: bytes, entry: DetachedEntry, most: int) -> None:
        """Records that a call runs. Synced on return.

        :raises StoreFull: if its owner has `most` entries already, of calls that run and of those that ended.
        :raises StoreUnavailable: if the database cannot store it.
        """
        address, now = stored(owner), self._clock()

        def operation(connection: sqlite3.Connection) -> None:
            connection.execute(_SWEEP, (now, _SWEPT))
            (entries,) = connection.execute(_COUNT, (*address, now)).fetchone()
            if entries >= most:
                raise StoreFull
            connection.execute(
                _BEGIN, (*address, digest, entry.principal, entry.tool, entry.key, entry.effects, entry.started)
            )

        await self._database.write(operation)

    async def finish(self, owner: Owner, digest: bytes, started: bytes, outcome: bytes, lasts: float) -> None:
        """Records how a call ended; its entry lasts so many seconds from now. Synced on return.

        :raises StoreUnavailable: if the database cannot store it.
        """
        values = (started, outcome, self._clock() + lasts, *stored(owner), digest)
        await self._database.write(lambda connection: connection.execute(_FINISH, values).close())

    async def find(self, principal: str, digest: bytes) -> DetachedEntry | None:
        """The entry of a ticket, where this caller principal started the call, and it has not expired.

        :raises StoreUnavailable: if the database cannot answer.
        """
        address = (principal, digest, self._clock())
        row = await self._database.read(lambda connection: connection.execute(_FIND, address).fetchone())
        return None if row is None else _entry(row)

    async def forget(self, owner: Owner, digest: bytes) -> None:
        """Removes an entry.

        :raises StoreUnavailable: if the database cannot store it.
        """
        address = (*stored(owner), digest)
        await self._database.write(lambda connection: connection.execute(_FORGET, address).close())

    async def end_lost(self, outcome_of: Callable[[DetachedEntry], bytes], lasts: float) -> list[DetachedEntry]:
        """Ends all that are said to run, in a sidecar that has just started: none of them does. Synced on return.

        Where the outcome of the same request was recorded under its idempotency key, that is how one ended; else it is
        what `outcome_of` answers, in the database's thread. Each entry lasts so many seconds from now. Answers those
        that were ended by `outcome_of`.

        :raises StoreUnavailable: if the database cannot store it.
        """
        expires_at = self._clock() + lasts

        def operation(connection: sqlite3.Connection) -> list[DetachedEntry]:
            lost = []
            for row in connection.execute(_UNFINISHED).fetchall():
                entry = _entry(row)
                recorded = connection.execute(_OF_THE_SAME_REQUEST, (*row[:2], entry.tool, entry.key)).fetchone()
                if recorded is None:
                    lost.append(entry)
                outcome = outcome_of(entry) if recorded is None else _frame_of(recorded[0])
                connection.execute(_END, (outcome, expires_at, row[-1]))
            return lost

        return await self._database.write(operation)

    async def sweep(self) -> None:
        """Removes what has expired, at most about a thousand entries at once.

        :raises StoreUnavailable: if the database cannot store it.
        """
        values = (self._clock(), _SWEPT_AT_ONCE)
        await self._database.write(lambda connection: connection.execute(_SWEEP, values).close())


def _entry(row: Sequence[Any]) -> DetachedEntry:
    tenant, subject, principal, tool, key, effects, started, outcome, *_ = row
    return DetachedEntry(owner_of(tenant, subject), principal, tool, key, effects, started, outcome)


def _frame_of(outcome: bytes) -> bytes:
    frame = Frame(time_unix_nano=time.time_ns())
    frame.outcome.ParseFromString(outcome)
    return frame.SerializeToString()
