"""The one SQLite connection, in a thread of its own, with group commit."""

import asyncio
import sqlite3
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

from sidecar.calls.stores import StoreUnavailable
from sidecar.storage.file import look, make
from sidecar.storage.migrations import MIGRATIONS, examine, migrate
from sidecar.storage.refusals import refusing

T = TypeVar("T")

_MOST_QUEUED = 1_024
_WAL_BYTES = 64 * 1024 * 1024


class StoreBusy(StoreUnavailable):
    """Too much is waiting to be read or written already. Nothing was stored; the same may work in a moment."""


class DatabaseStatistics(NamedTuple):
    """What a database has done and has to do."""

    waiting: int
    """Operations that have not begun."""
    writes: int
    """Writes that were committed, failed ones among them."""
    commits: int
    """Transactions that it took."""


class _Waiting(NamedTuple):
    operation: Callable[[sqlite3.Connection], Any]
    waiter: asyncio.Future[Any]


class _Ended(NamedTuple):
    """How one operation ended: a value, or an error."""

    value: Any = None
    error: Exception | None = None


class Database:
    """A SQLite database for the coroutines of one event loop. Opened once, closed once; `async with` does both.

    Operations are functions that are called with the connection in the database's own thread. They run to their end,
    one at a time, whether or not whoever waits for them is cancelled. They must neither begin nor end transactions, and
    not keep the connection.
    """

    def __init__(
        self,
        path: Path,
        *,
        records_of: Path | None = None,
        migrations: Sequence[Sequence[str]] = MIGRATIONS,
        most_queued: int = _MOST_QUEUED,
    ) -> None:
        """`records_of`: a directory whose files it has the records of; where some are there it is not made anew."""
        self._path = path
        self._records_of = records_of
        self._migrations = migrations
        self._most_queued = most_queued
        self._reads: deque[_Waiting] = deque()
        self._writes: deque[_Waiting] = deque()
        self._thread: ThreadPoolExecutor | None = None
        self._connection: sqlite3.Connection | None = None
        self._job: asyncio.Future[Any] | None = None
        self._is_read_next = True
        self._is_open = False
        self._write_count = 0
        self._commit_count = 0

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def open(self) -> None:
        """Opens the file, which is made if there is none, and brings it to this version.

        :raises StoreRefused: if it cannot be used as it is. It is then left as it was, and nothing needs closing.
        """
        self._thread = ThreadPoolExecutor(1, "pillion-database")
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._connect)
        except BaseException:
            # Where only the waiting was cancelled, the thread opens the file all the same, and then closes it.
            self._thread.submit(self._disconnect)
            self._thread.shutdown(wait=False)
            raise
        self._is_open = True

    async def aclose(self) -> None:
        """Refuses what comes from now on, does what is waiting, and closes the file. Closing again does nothing."""
        self._is_open = False
        while self._job is not None:
            await asyncio.wait({self._job})
        if self._thread is not None:
            thread, self._thread = self._thread, None
            closing = asyncio.get_running_loop().run_in_executor(thread, self._disconnect)
            thread.shutdown(wait=False)
            await asyncio.wait({closing})

    def statistics(self) -> DatabaseStatistics:
        """What it has done so far, and has to do."""
        return DatabaseStatistics(len(self._reads) + len(self._writes), self._write_count, self._commit_count)

    async def read(self, operation: Callable[[sqlite3.Connection], T]) -> T:
        """What the operation answers, which sees every write that was waited for, and must not write.

        :raises StoreBusy: if too much is waiting; it was not called then.
        :raises StoreUnavailable: if SQLite failed, or the database is closed.
        """
        return await self._enqueue(self._reads, operation)

    async def write(self, operation: Callable[[sqlite3.Connection], T]) -> T:
        """What the operation answers, once all it wrote is synced.

        Writes that wait while others are committed share the next commit. Each takes effect as a whole or not at all,
        in the order in which they came. One that raises takes no effect, and its error is raised here.

        :raises StoreBusy: if too much is waiting; it was not called then.
        :raises StoreUnavailable: if SQLite failed, or the database is closed; nothing is known to have been stored.
        """
        return await self._enqueue(self._writes, operation)

    def _enqueue(self, queue: deque[_Waiting], operation: Callable[[sqlite3.Connection], T]) -> asyncio.Future[T]:
        if not self._is_open:
            raise StoreUnavailable("The database is closed.")
        if len(queue) >= self._most_queued:
            raise StoreBusy("Too much is waiting for the database; try again in a moment.")
        waiter: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        queue.append(_Waiting(operation, waiter))
        if self._job is None:
            self._begin()
        return waiter

    def _begin(self) -> None:
        """Has the thread do all that waits to be read, or all that waits to be written, in turns."""
        is_read = bool(self._reads) and (self._is_read_next or not self._writes)
        queue = self._reads if is_read else self._writes
        if not queue or self._thread is None or self._connection is None:
            self._job = None
            return
        batch = tuple(queue)
        queue.clear()
        self._is_read_next = not is_read
        operations = [waiting.operation for waiting in batch]
        run = _read_all if is_read else self._commit
        self._job = asyncio.get_running_loop().run_in_executor(self._thread, run, self._connection, operations)
        self._job.add_done_callback(lambda job: self._end(batch, job))

    def _end(self, batch: Sequence[_Waiting], job: asyncio.Future[list[_Ended]]) -> None:
        failure = asyncio.CancelledError() if job.cancelled() else job.exception()
        outcomes = job.result() if failure is None else [_Ended(error=_unavailable(failure)) for _ in batch]
        for waiting, ended in zip(batch, outcomes, strict=True):
            if waiting.waiter.done():
                continue
            if ended.error is not None:
                waiting.waiter.set_exception(ended.error)
            else:
                waiting.waiter.set_result(ended.value)
        self._begin()

    # What follows runs in the database's thread.

    def _connect(self) -> None:
        path = self._path

        def examined(connection: sqlite3.Connection) -> int:
            return examine(connection, path, self._migrations)

        with refusing(path):
            make(path, self._records_of)
            # SQLite writes as it opens and closes a file: so one that is refused is refused before it may.
            is_examined = look(path, examined)
            connection = sqlite3.connect(path, timeout=0, isolation_level=None)
            try:
                for setting in ("locking_mode = EXCLUSIVE", "synchronous = FULL", "foreign_keys = ON"):
                    connection.execute(f"PRAGMA {setting}")
                if not is_examined:
                    examined(connection)
                migrate(connection, path, self._migrations)
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
            except BaseException:
                connection.close()
                raise
        self._connection = connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _commit(
        self, connection: sqlite3.Connection, operations: Sequence[Callable[[sqlite3.Connection], Any]]
    ) -> list[_Ended]:
        self._commit_count += 1
        self._write_count += len(operations)
        try:
            connection.execute("BEGIN IMMEDIATE")
            ended = [_run_apart(connection, operation) for operation in operations]
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            return [_Ended(error=_unavailable(error)) for _ in operations]
        return ended


def _read_all(
    connection: sqlite3.Connection, operations: Sequence[Callable[[sqlite3.Connection], Any]]
) -> list[_Ended]:
    ended = []
    for operation in operations:
        try:
            ended.append(_Ended(operation(connection)))
        except Exception as error:  # noqa: BLE001  # it is raised where the operation is waited for
            ended.append(_Ended(error=_translated(error)))
    return ended


def _run_apart(connection: sqlite3.Connection, operation: Callable[[sqlite3.Connection], Any]) -> _Ended:
    """Runs a write so that its failure undoes what it did, and no more."""
    connection.execute("SAVEPOINT operation")
    try:
        ended = _Ended(operation(connection))
    except Exception as error:
        if not connection.in_transaction:
            # SQLite has undone everything, as it does when the disk is full.
            raise sqlite3.OperationalError("The transaction was lost.") from error
        connection.execute("ROLLBACK TO operation")
        ended = _Ended(error=_translated(error))
    connection.execute("RELEASE operation")
    return ended


def _translated(error: Exception) -> Exception:
    return _unavailable(error) if isinstance(error, sqlite3.Error) else error


def _unavailable(cause: BaseException) -> StoreUnavailable:
    unavailable = StoreUnavailable("The database could not be read or written; look after its disk.")
    unavailable.__cause__ = cause
    return unavailable
