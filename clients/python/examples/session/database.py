"""What a session's database can do: SQLite in memory, with SQL from outside and files of nobody's."""

import csv
import re
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

ROWS_A_REPORT = 10_000
STEPS_A_LOOK = 10_000
_PAGES = 65_536
"""How large it may get: 256 MiB."""

_READS = frozenset((sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE))
_CHANGES = _READS | {sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")

Value = str | int | float | bytes | None


class Refused(Exception):
    """The database does not do this; the text says why, and may be shown to whoever asked."""


class Database:
    """Tables that live as long as their session. For several threads, one at a time."""

    def __init__(self) -> None:
        self._connection = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        self._connection.execute(f"PRAGMA max_page_count = {_PAGES}")
        self._one = threading.RLock()

    def close(self) -> None:
        """Gives all of it back."""
        with self._one:
            self._connection.close()

    def tables(self) -> list[str]:
        """The names of its tables."""
        with self._one:
            found = self._connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
            return [str(name) for (name,) in found]

    def size(self, table: str) -> int:
        """How many rows a table has.

        :raises Refused: if there is no such table.
        """
        self._known(table)
        with self._one:
            ((rows,),) = self._connection.execute(f'SELECT count(*) FROM "{table}"')  # noqa: S608  # a known name
            return int(rows)

    def load(self, table: str, source: Path, report: Callable[[int], None]) -> int:
        """Makes a table of a CSV file, in place of one of the same name. Answers its rows; `report` is told on the way.

        :raises Refused: if the table cannot be called so, or the file has no header.
        """
        if not _NAME.fullmatch(table):
            raise Refused("A table's name has 1 to 63 letters, digits and underscores, and begins with no digit.")
        with self._one, source.open(encoding="utf-8", newline="") as lines, self._whole():
            rows = csv.reader(lines)
            header = next(rows, None)
            if not header:
                raise Refused("The file has no header.")
            columns = ", ".join(f'"{_quoted(name)}" NUMERIC' for name in header)
            self._connection.execute(f'DROP TABLE IF EXISTS "{table}"')
            self._connection.execute(f'CREATE TABLE "{table}" ({columns})')
            marks = ", ".join("?" for _ in header)
            insert = f'INSERT INTO "{table}" VALUES ({marks})'  # noqa: S608  # a name as above
            number = 0
            for number, row in enumerate(rows, 1):
                padded = [*row, *([""] * len(header))][: len(header)]
                self._connection.execute(insert, [value or None for value in padded])
                if number % ROWS_A_REPORT == 0:
                    report(number)
            return number

    def query(self, sql: str, most: int, is_cancelled: Callable[[], bool]) -> tuple[list[str], list[list[Value]], bool]:
        """The columns and at most so many rows of a query, and whether there are more.

        :raises Refused: if it is no query, or fails.
        """
        with self._one, self._permitting(_READS, is_cancelled):
            found = self._connection.execute(sql)
            rows = [list(row) for row in found.fetchmany(most + 1)]
            return [column[0] for column in found.description or ()], rows[:most], len(rows) > most

    def change(self, sql: str, expected: int | None, is_cancelled: Callable[[], bool]) -> int:
        """Changes rows and answers how many; without an expected number it is only tried, and changes nothing.

        :raises Refused: if it changes no rows of a table, changes more or less than is expected, or fails.
        """
        with self._one:
            with self._whole(keeps=expected is not None):
                with self._permitting(_CHANGES, is_cancelled):
                    changed = self._connection.execute(sql).rowcount
                if changed < 0:
                    raise Refused("This is no change: name an INSERT, UPDATE or DELETE.")
                if expected not in (None, changed):
                    raise Refused("The tables have changed meanwhile.")
            return changed

    def save(self, table: str, target: IO[str]) -> None:
        """Writes a table as CSV.

        :raises Refused: if there is no such table.
        """
        self._known(table)
        with self._one:
            found = self._connection.execute(f'SELECT * FROM "{table}"')  # noqa: S608  # a known name
            writer = csv.writer(target)
            writer.writerow(column[0] for column in found.description)
            writer.writerows(found)

    def _known(self, table: str) -> None:
        tables = self.tables()
        if table not in tables:
            there = ", ".join(tables) or "none: open a CSV file first"
            raise Refused(f"There is no such table; there is {there}.")

    @contextmanager
    def _whole(self, *, keeps: bool = True) -> Iterator[None]:
        """What is done within is done as a whole or, after a failure, not at all; it is tried only, unless it keeps."""
        self._connection.execute("BEGIN")
        try:
            yield
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT" if keeps else "ROLLBACK")

    @contextmanager
    def _permitting(self, permitted: frozenset[int], is_cancelled: Callable[[], bool]) -> Iterator[None]:
        """What is run within may do so much and no more: no file is opened, and no setting made."""
        connection = self._connection
        connection.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in permitted else sqlite3.SQLITE_DENY)
        connection.set_progress_handler(lambda: int(is_cancelled()), STEPS_A_LOOK)
        try:
            yield
        except (sqlite3.Error, sqlite3.Warning) as error:
            raise Refused(f"SQLite says: {error}.") from None
        finally:
            connection.set_authorizer(None)
            connection.set_progress_handler(None, 0)


def _quoted(name: str) -> str:
    return name.replace('"', '""')
