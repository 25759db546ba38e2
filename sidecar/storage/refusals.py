"""Why a store cannot be opened, in a sentence that says what to do."""

import contextlib
import errno
import sqlite3
from collections.abc import Iterator
from pathlib import Path


class StoreRefused(Exception):
    """A store cannot be opened. The text is a sentence that says what to do. Nothing that was stored is changed."""


_OTHERWISE = "{path} cannot be read or written: look after its disk, or name another state_dir."
_NOT_WRITTEN = "{path} cannot be written: make it and its directory writable for this user, or name another state_dir."
_FULL = "There is no room to write {path}: free some space on its disk."
_IN_USE = "{path} is in use by another process: stop that one, or name another state_dir."
_DAMAGED = "{path} is damaged: put a backup of its whole directory in place, or name another state_dir."

_OF_SQLITE = {
    sqlite3.SQLITE_CANTOPEN: "{path} cannot be opened: let this user read and write all that is there of it, or name "
    "another state_dir.",
    sqlite3.SQLITE_PERM: _NOT_WRITTEN,
    sqlite3.SQLITE_READONLY: _NOT_WRITTEN,
    sqlite3.SQLITE_FULL: _FULL,
    sqlite3.SQLITE_BUSY: _IN_USE,
    sqlite3.SQLITE_LOCKED: _IN_USE,
    sqlite3.SQLITE_NOTADB: "{path} is not a database: put a backup of its whole directory in place, or name another "
    "state_dir.",
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
}
_PRIMARY = 0xFF
_OF_SYSTEM = {
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), _NOT_WRITTEN),
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), _FULL),
}
_IN_ITS_PLACE = frozenset((errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENOENT, errno.ELOOP))


def refusal(code: int, path: Path) -> StoreRefused:
    """The refusal of the file at `path` for a result code of SQLite."""
    return StoreRefused(_OF_SQLITE.get(code & _PRIMARY, _OTHERWISE).format(path=path))


@contextlib.contextmanager
def refusing(path: Path) -> Iterator[None]:
    """Turns the errors of SQLite and of the system about the file at `path` into refusals."""
    try:
        yield
    except sqlite3.Error as error:
        raise refusal(getattr(error, "sqlite_errorcode", 0), path) from error
    except OSError as error:
        if error.errno in _IN_ITS_PLACE:
            raise StoreRefused(
                f"{path} cannot be used, {error.strerror}: move away what is in its place, or name another state_dir."
            ) from error
        raise StoreRefused(_OF_SYSTEM.get(error.errno or 0, _OTHERWISE).format(path=path)) from error
