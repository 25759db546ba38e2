"""Paused calls in SQLite, by the digests of their tickets."""

import sqlite3
from collections.abc import Iterable
from typing import Any

from sidecar.calls.paused import Pause, PausedCall
from sidecar.calls.stores import PausesFull
from sidecar.scope import Owner
from sidecar.storage.database import Database
from sidecar.storage.owners import owner_of, stored

_MOST_PAUSED = 1_024
_OPEN, _CLAIMED, _CLAIMED_BY_KEY, _USED = range(4)
"""Where a row stands. One that is claimed by a call with an idempotency key is remembered as a used one."""
# Used ones give way to others, so that they keep nobody from pausing.
_SWEPT = 16

_COLUMNS = "ticket_digest, caller, tenant, subject, run_id, session_id, start, pause, expires_at, state"
_ADD = f"INSERT INTO paused_call ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608  # names alone
_FIND = f"SELECT {_COLUMNS} FROM paused_call WHERE ticket_digest = ?"  # noqa: S608  # names alone
_COUNT = "SELECT count(*) FROM paused_call WHERE tenant = ? AND subject = ?"
_EVICT = f"""
    DELETE FROM paused_call WHERE id IN (
        SELECT id FROM paused_call WHERE tenant = ? AND subject = ? AND state = {_USED} ORDER BY expires_at, id LIMIT ?
    )
"""  # noqa: S608  # a number of this file
_CLAIM = f"UPDATE paused_call SET state = ? WHERE ticket_digest = ? AND state = {_OPEN}"  # noqa: S608  # likewise
_RELEASE = f"UPDATE paused_call SET state = {_OPEN} WHERE ticket_digest = ?"  # noqa: S608  # likewise
_USE = f"""
    UPDATE paused_call SET state = {_USED} WHERE ticket_digest = ? AND state = {_CLAIMED_BY_KEY}
"""  # noqa: S608  # likewise
_FORGET = f"DELETE FROM paused_call WHERE ticket_digest = ? AND state <> {_USED}"  # noqa: S608  # likewise
_EXPIRE = f"""
    SELECT {_COLUMNS} FROM paused_call WHERE expires_at <= ? AND state IN ({_OPEN}, {_USED})
    ORDER BY expires_at LIMIT ?
"""  # noqa: S608  # likewise
_DELETE = "DELETE FROM paused_call WHERE ticket_digest = ?"
_NEXT = f"SELECT min(expires_at) FROM paused_call WHERE state IN ({_OPEN}, {_USED})"  # noqa: S608  # likewise
_OF_SCOPE = f"SELECT {_COLUMNS} FROM paused_call WHERE tenant = ? AND subject = ? AND "  # noqa: S608  # likewise
_LOST = f"""
    SELECT {_COLUMNS} FROM paused_call WHERE state IN ({_CLAIMED}, {_CLAIMED_BY_KEY}) ORDER BY id
"""  # noqa: S608  # likewise
_PAUSES = f"SELECT pause FROM paused_call WHERE state = {_OPEN}"  # noqa: S608  # likewise
_BUSY = f"""
    SELECT ticket_digest, tenant, subject, run_id, session_id FROM paused_call
    WHERE state = {_OPEN} AND (run_id IS NOT NULL OR session_id IS NOT NULL)
"""  # noqa: S608  # likewise


class SqlitePauseStore:
    """Keeps paused calls. A tenant's subject has at most `most_paused` of them.

    No ticket is in it, only digests, by which nobody can tell a ticket.
    """

    def __init__(self, database: Database, *, most_paused: int = _MOST_PAUSED) -> None:
        self._database = database
        self._most_paused = most_paused

    async def keep(self, paused: PausedCall, instead_of: bytes | None = None, *, is_claimed: bool = False) -> bool:
        """Keeps a call, in place of the one that it went on from. False: that one is not there to be used.

        :raises PausesFull: if its subject has too many.
        :raises StoreUnavailable: if the database cannot store it.
        """
        owner = stored(paused.owner)
        row = (
            paused.ticket_digest,
            paused.caller,
            *owner,
            paused.run_id,
            paused.session_id,
            paused.start,
            paused.pause.to_bytes(),
            paused.expires_at,
            _OPEN,
        )

        def operation(connection: sqlite3.Connection) -> bool:
            if instead_of is not None:
                if not is_claimed and connection.execute(_CLAIM, (_CLAIMED, instead_of)).rowcount != 1:
                    return False
                _finish(connection, instead_of)
            (number,) = connection.execute(_COUNT, owner).fetchone()
            excess = number + 1 - self._most_paused
            if excess > 0 and connection.execute(_EVICT, (*owner, max(excess, _SWEPT))).rowcount < excess:
                raise PausesFull
            connection.execute(_ADD, row)
            return True

        return await self._database.write(operation)

    async def find(self, ticket_digest: bytes) -> PausedCall | None:
        """The call of a ticket, a used one too.

        :raises StoreUnavailable: if the database cannot answer.
        """

        def operation(connection: sqlite3.Connection) -> Any:
            return connection.execute(_FIND, (ticket_digest,)).fetchone()

        row = await self._database.read(operation)
        return None if row is None else _read(row)

    async def claim(self, ticket_digest: bytes, *, remember: bool) -> bool:
        """Claims a call. False: it is not there any more, or claimed. Synced on return.

        :raises StoreUnavailable: if the database cannot store it.
        """
        state = _CLAIMED_BY_KEY if remember else _CLAIMED

        def operation(connection: sqlite3.Connection) -> bool:
            return connection.execute(_CLAIM, (state, ticket_digest)).rowcount == 1

        return await self._database.write(operation)

    async def release(self, ticket_digest: bytes) -> bool:
        """Lets a call be claimed again. False: it is not there any more.

        :raises StoreUnavailable: if the database cannot store it.
        """

        def operation(connection: sqlite3.Connection) -> bool:
            return connection.execute(_RELEASE, (ticket_digest,)).rowcount == 1

        return await self._database.write(operation)

    async def finish(self, ticket_digest: bytes) -> None:
        """Forgets a call, unless it is to be remembered as a used one.

        :raises StoreUnavailable: if the database cannot store it.
        """
        await self._database.write(lambda connection: _finish(connection, ticket_digest))

    async def expire(self, now: float, most: int) -> list[PausedCall]:
        """Takes away those whose time is up, at most so many; answers all of them, used ones too.

        :raises StoreUnavailable: if the database cannot store it.
        """

        def operation(connection: sqlite3.Connection) -> list[Any]:
            rows = connection.execute(_EXPIRE, (now, most)).fetchall()
            connection.executemany(_DELETE, [(row[0],) for row in rows])
            return rows

        return [_read(row) for row in await self._database.write(operation)]

    async def next_expiry(self) -> float | None:
        """When the next one's time is up; `None`: there is none.

        :raises StoreUnavailable: if the database cannot answer.
        """

        def operation(connection: sqlite3.Connection) -> float | None:
            (when,) = connection.execute(_NEXT).fetchone()
            return None if when is None else float(when)

        return await self._database.read(operation)

    async def end(self, owner: Owner, *, run_id: str | None = None, session_id: str | None = None) -> list[PausedCall]:
        """Takes away those of a run or a session; answers those that were not claimed.

        :raises StoreUnavailable: if the database cannot store it.
        """
        name, fact = ("run_id", run_id) if run_id is not None else ("session_id", session_id)

        def operation(connection: sqlite3.Connection) -> list[Any]:
            rows = connection.execute(f"{_OF_SCOPE}{name} = ?", (*stored(owner), fact)).fetchall()
            connection.executemany(_DELETE, [(row[0],) for row in rows])
            return [row for row in rows if row[-1] == _OPEN]

        return [_read(row) for row in await self._database.write(operation)]

    async def recover(self) -> list[PausedCall]:
        """Takes away those that were claimed when the sidecar stopped; answers them.

        :raises StoreUnavailable: if the database cannot store it.
        """

        def operation(connection: sqlite3.Connection) -> list[Any]:
            rows = connection.execute(_LOST).fetchall()
            for row in rows:
                _finish(connection, row[0])
            return rows

        return [_read(row) for row in await self._database.write(operation)]

    async def executions(self) -> frozenset[str]:
        """The executions that something may be kept under for those that can be resumed, and their inner calls.

        :raises StoreUnavailable: if the database cannot answer.
        """

        def operation(connection: sqlite3.Connection) -> frozenset[str]:
            return frozenset(
                execution_id
                for (pause,) in connection.execute(_PAUSES)
                for execution_id in Pause.from_bytes(pause).execution_ids()
            )

        return await self._database.read(operation)

    async def busy(self) -> list[tuple[bytes, Owner, str | None, str | None]]:
        """Those of runs and sessions that can be resumed: ticket digest, owner, run and session.

        :raises StoreUnavailable: if the database cannot answer.
        """

        def operation(connection: sqlite3.Connection) -> Iterable[Any]:
            return connection.execute(_BUSY).fetchall()

        return [
            (digest, owner_of(tenant, subject), run_id, session_id)
            for digest, tenant, subject, run_id, session_id in await self._database.read(operation)
        ]


def _finish(connection: sqlite3.Connection, ticket_digest: bytes) -> None:
    connection.execute(_USE, (ticket_digest,))
    connection.execute(_FORGET, (ticket_digest,))


def _read(row: Any) -> PausedCall:
    digest, caller, tenant, subject, run_id, session_id, start, pause, expires_at, state = row
    return PausedCall(
        digest,
        caller,
        owner_of(tenant, subject),
        run_id,
        session_id,
        start,
        Pause.from_bytes(pause),
        expires_at,
        is_used=state != _OPEN,
    )
