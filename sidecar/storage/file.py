"""The file of a database, before SQLite may change it: made, looked into, and copied."""

import contextlib
import os
import sqlite3
import stat
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from urllib.parse import quote

from sidecar.storage.refusals import StoreRefused, refusal

_MAGIC = b"SQLite format 3\0"
_HEADER_BYTES = 100
_PAGE_SIZE = slice(16, 18)
_LARGEST_PAGE = 65_536
_COMMITTED = "-wal"
_UNDONE = "-journal"
_INDEX = "-shm"
_PRIVATE = 0o600

Examine = Callable[[sqlite3.Connection], object]


def make(path: Path, records_of: Path | None = None) -> None:
    """Makes the file, empty and for this user alone, if there is none.

    `records_of` is a directory whose files the database has the records of. Where some are there, so was a database,
    and none is made in its place.

    :raises StoreRefused: if there is one that is no whole database, or one was there. SQLite itself would write over
        a very short one, and over all that was committed and is still beside an empty one.
    :raises OSError: if it can be neither made nor opened to be written.
    """
    is_new = not path.exists()
    if is_new or (path.is_file() and not path.stat().st_size):
        if _has(path, _COMMITTED):
            raise refusal(sqlite3.SQLITE_CORRUPT, path)
        _refuse_lost(path, records_of)
    # SQLite would let others read it; the files that it makes beside it get their mode from it.
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, _PRIVATE)
    try:
        state = os.fstat(descriptor)
        head = os.read(descriptor, _HEADER_BYTES) if stat.S_ISREG(state.st_mode) else b"-"
    finally:
        os.close(descriptor)
    if head and not head.startswith(_MAGIC):
        raise refusal(sqlite3.SQLITE_NOTADB, path)
    is_cut = 0 < len(head) < _HEADER_BYTES or state.st_size % _page_size(head)
    if is_cut and not _has(path, _COMMITTED, _UNDONE):
        # A crash may leave a part of a page, and then what the page is to be is in a log beside it.
        raise refusal(sqlite3.SQLITE_CORRUPT, path)
    if is_new:
        sync_directory(path.parent)


def look(path: Path, examine: Examine) -> bool:
    """Has the database looked into by a connection that can change nothing, neither the file nor what is beside it.

    Answers whether that could be done: where a transaction was cut off, SQLite has to undo it first.

    :raises StoreRefused: as `examine` does.
    :raises sqlite3.Error: if it cannot be read.
    """
    index = path.with_name(path.name + _INDEX)
    had_index = index.exists()
    # A log is read as well where there is one. Where there is none, SQLite is kept from making one.
    mode = "mode=ro" if _has(path, _COMMITTED, _UNDONE) else "immutable=1"
    place = f"file:{quote(os.fsencode(path.absolute()))}?{mode}"
    try:
        with contextlib.closing(sqlite3.connect(place, uri=True, timeout=0, isolation_level=None)) as connection:
            examine(connection)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_READONLY_ROLLBACK:
            raise
        return False
    finally:
        if not had_index:
            index.unlink(missing_ok=True)
    return True


@contextlib.contextmanager
def backed_up(connection: sqlite3.Connection, path: Path, version: int) -> Iterator[None]:
    """Copies the database beside itself, as `<name>.v<version>.<n>.bak`, which replaces no file.

    The copy is whole or not there, and stays, unless the block raises: then what it is a copy of is as it was.

    :raises OSError: if it cannot be made.
    :raises sqlite3.Error: likewise.
    """
    part = path.with_name(f"{path.name}.bak.part")
    for left in (part, part.with_name(part.name + _UNDONE)):
        left.unlink(missing_ok=True)
    try:
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, _PRIVATE))
        with contextlib.closing(sqlite3.connect(part)) as copy:
            connection.backup(copy)
        copies = (path.with_name(f"{path.name}.v{version}.{number}.bak") for number in count(1))
        # Nobody else makes one: the state directory is this process's alone while it runs.
        target = part.rename(next(copy for copy in copies if not copy.exists()))
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)
    try:
        yield
    except BaseException:
        target.unlink()
        raise


def sync_directory(directory: Path) -> None:
    """Makes the names of new files in it survive a loss of power."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _refuse_lost(path: Path, records_of: Path | None) -> None:
    if records_of is not None and any(file.is_file() for file in records_of.rglob("*")):
        raise StoreRefused(
            f"{path} is gone or empty, and {records_of} has the files that it had the records of: put a backup of the "
            "whole directory in place, or name another state_dir."
        )


def _has(path: Path, *suffixes: str) -> bool:
    """Whether there is something in one of the files beside it."""
    files = (path.with_name(path.name + suffix) for suffix in suffixes)
    return any(file.exists() and file.stat().st_size for file in files)


def _page_size(head: bytes) -> int:
    # 65,536 does not fit and is written as 1; where it is none, SQLite says so.
    size = int.from_bytes(head[_PAGE_SIZE], "big")
    return _LARGEST_PAGE if size == 1 else size or 1
