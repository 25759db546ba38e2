"""The schema of the database file, its versions, and the way from one to the next."""

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

APPLICATION_ID = 0x50494C4C
"""`PILL`: marks a SQLite file as one of Pillion's."""

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """
        CREATE TABLE idempotency_owner (
            id INTEGER PRIMARY KEY,
            tenant TEXT NOT NULL,
            subject TEXT NOT NULL,
            records INTEGER NOT NULL DEFAULT 0,
            UNIQUE (tenant, subject)
        )
        """,
        """
        CREATE TABLE idempotency_record (
            id INTEGER PRIMARY KEY,
            owner INTEGER NOT NULL REFERENCES idempotency_owner (id),
            tool TEXT NOT NULL,
            key TEXT NOT NULL,
            digest BLOB NOT NULL,
            execution_id TEXT NOT NULL,
            expires_at REAL NOT NULL,
            finished_at REAL,
            outcome BLOB,
            UNIQUE (owner, tool, key)
        )
        """,
        "CREATE INDEX idempotency_record_expiry ON idempotency_record (expires_at)",
        """
        CREATE INDEX idempotency_record_age ON idempotency_record (owner, finished_at) WHERE finished_at IS NOT NULL
        """,
        """
        CREATE TRIGGER idempotency_record_counted AFTER INSERT ON idempotency_record BEGIN
            UPDATE idempotency_owner SET records = records + 1 WHERE id = new.owner;
        END
        """,
        """
        CREATE TRIGGER idempotency_record_uncounted AFTER DELETE ON idempotency_record BEGIN
            UPDATE idempotency_owner SET records = records - 1 WHERE id = old.owner;
            DELETE FROM idempotency_owner WHERE id = old.owner AND records = 0;
        END
        """,
    ),
    (
        """
        CREATE TABLE artifact_tenant (
            id INTEGER PRIMARY KEY,
            name TEXT NOT NULL UNIQUE,
            bytes INTEGER NOT NULL DEFAULT 0
        )
        """,
        """
        CREATE TABLE artifact_owner (
            id INTEGER PRIMARY KEY,
            tenant INTEGER NOT NULL REFERENCES artifact_tenant (id),
            subject TEXT NOT NULL,
            bytes INTEGER NOT NULL DEFAULT 0,
            UNIQUE (tenant, subject)
        )
        """,
        """
        CREATE TABLE artifact_scope (
            id INTEGER PRIMARY KEY,
            owner INTEGER NOT NULL REFERENCES artifact_owner (id),
            place TEXT NOT NULL,
            bytes INTEGER NOT NULL DEFAULT 0,
            artifacts INTEGER NOT NULL DEFAULT 0,
            newest INTEGER NOT NULL,
            UNIQUE (owner, place)
        )
        """,
        """
        CREATE TABLE artifact (
            id INTEGER PRIMARY KEY,
            scope INTEGER NOT NULL REFERENCES artifact_scope (id),
            sequence INTEGER NOT NULL,
            reference TEXT NOT NULL UNIQUE,
            file TEXT NOT NULL UNIQUE,
            kind TEXT NOT NULL,
            media_type TEXT NOT NULL,
            size INTEGER NOT NULL,
            shape INTEGER NOT NULL,
            created_at INTEGER NOT NULL,
            expires_at INTEGER NOT NULL,
            read_at INTEGER NOT NULL,
            label TEXT,
            digest TEXT,
            run_id TEXT,
            tool_call_id TEXT,
            parents TEXT NOT NULL,
            UNIQUE (scope, sequence)
        )
        """,
        "CREATE INDEX artifact_expiry ON artifact (expires_at)",
        "CREATE INDEX artifact_coldest ON artifact (scope, read_at, reference)",
        """
        CREATE TRIGGER artifact_counted AFTER INSERT ON artifact BEGIN
            UPDATE artifact_scope SET bytes = bytes + new.size, artifacts = artifacts + 1 WHERE id = new.scope;
            UPDATE artifact_owner SET bytes = bytes + new.size
                WHERE id = (SELECT owner FROM artifact_scope WHERE id = new.scope);
            UPDATE artifact_tenant SET bytes = bytes + new.size
                WHERE id = (
                    SELECT tenant FROM artifact_owner
                    WHERE id = (SELECT owner FROM artifact_scope WHERE id = new.scope)
                );
        END
        """,
        """
        CREATE TRIGGER artifact_uncounted AFTER DELETE ON artifact BEGIN
            UPDATE artifact_tenant SET bytes = bytes - old.size
                WHERE id = (
                    SELECT tenant FROM artifact_owner
                    WHERE id = (SELECT owner FROM artifact_scope WHERE id = old.scope)
                );
            UPDATE artifact_owner SET bytes = bytes - old.size
                WHERE id = (SELECT owner FROM artifact_scope WHERE id = old.scope);
            UPDATE artifact_scope SET bytes = bytes - old.size, artifacts = artifacts - 1 WHERE id = old.scope;
            DELETE FROM artifact_scope WHERE id = old.scope AND artifacts = 0;
        END
        """,
        """
        CREATE TRIGGER artifact_scope_emptied AFTER DELETE ON artifact_scope BEGIN
            DELETE FROM artifact_owner WHERE id = old.owner
                AND NOT EXISTS (SELECT 1 FROM artifact_scope WHERE owner = old.owner);
        END
        """,
        """
        CREATE TRIGGER artifact_owner_emptied AFTER DELETE ON artifact_owner BEGIN
            DELETE FROM artifact_tenant WHERE id = old.tenant
                AND NOT EXISTS (SELECT 1 FROM artifact_owner WHERE tenant = old.tenant);
        END
        """,
    ),
    (
        "ALTER TABLE artifact ADD COLUMN tool TEXT",
        "ALTER TABLE artifact ADD COLUMN execution_id TEXT",
    ),
)
"""For each version the statements that lead to it from the one before. A released one is never changed."""

# Larger files are only looked into before they are migrated, so that a start stays short.
_CHECKED_BYTES = 32 * 1024 * 1024
_MAGIC = b"SQLite format 3\0"
_PRIMARY = 0xFF
_SENTENCES = {
    sqlite3.SQLITE_CANTOPEN: "{path} cannot be opened: let this user read and write there, or name another state_dir.",
    sqlite3.SQLITE_PERM: "{path} cannot be opened: let this user read and write there, or name another state_dir.",
    sqlite3.SQLITE_READONLY: "{path} cannot be written: make it and its directory writable for this user.",
    sqlite3.SQLITE_FULL: "There is no room to write {path}: free some space on its disk.",
    sqlite3.SQLITE_BUSY: "{path} is in use by another process: stop that one, or name another state_dir.",
    sqlite3.SQLITE_LOCKED: "{path} is in use by another process: stop that one, or name another state_dir.",
    sqlite3.SQLITE_NOTADB: "{path} is not a database: move it away, or put a backup in its place.",
    sqlite3.SQLITE_CORRUPT: "{path} is damaged: move it away, or put a backup in its place.",
}
_OTHERWISE = "{path} cannot be read or written: look after its disk, or name another state_dir."


class StoreRefused(Exception):
    """A store cannot be opened. The text is a sentence that says what to do. Nothing that was stored is changed."""


@contextlib.contextmanager
def refusing(path: Path) -> Iterator[None]:
    """Turns the errors of SQLite and of the system about the file at `path` into refusals."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & _PRIMARY
        raise StoreRefused(_SENTENCES.get(code, _OTHERWISE).format(path=path)) from error
    except OSError as error:
        raise StoreRefused(f"{path} cannot be used, {error.strerror}: see to it, or name another state_dir.") from error


def make(path: Path) -> None:
    """Makes the file, empty and for this user alone, if there is none.

    :raises StoreRefused: if there is one that is no database. SQLite itself would write over a very short one.
    :raises OSError: if it can be neither made nor opened to be written.
    """
    is_new = not path.exists()
    # SQLite would let others read it; the files that it makes beside it get their mode from it.
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        head = os.read(descriptor, len(_MAGIC))
    finally:
        os.close(descriptor)
    if head not in (b"", _MAGIC):
        raise StoreRefused(_SENTENCES[sqlite3.SQLITE_NOTADB].format(path=path))
    if is_new:
        _sync_directory(path.parent)


def migrate(connection: sqlite3.Connection, path: Path, migrations: Sequence[Sequence[str]] = MIGRATIONS) -> None:
    """Brings the database at `path` to the newest version, all or nothing, and proves that it can be written.

    One that holds something is copied beside itself first, as `<name>.v<version>.<n>.bak`, which replaces no file.

    :raises StoreRefused: if it is another program's, was written by a newer Pillion, or is damaged.
    :raises sqlite3.Error: if it cannot be read or written.
    """
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    is_new = application == 0 and version == 0 and tables == 0
    if not is_new and application != APPLICATION_ID:
        raise StoreRefused(f"{path} belongs to another program: move it away, or name another state_dir.")
    if version > len(migrations):
        raise StoreRefused(
            f"{path} was written by a newer Pillion (its version {version}, this one's {len(migrations)}): "
            "run that one, put a backup in its place, or name another state_dir."
        )
    is_older = not is_new and version < len(migrations)
    if is_older or path.stat().st_size <= _CHECKED_BYTES:
        _check(connection, path)
    if is_older:
        _back_up(connection, path, version)
    connection.execute("BEGIN IMMEDIATE")
    try:
        for statements in migrations[version:]:
            for statement in statements:
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {len(migrations)}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _check(connection: sqlite3.Connection, path: Path) -> None:
    (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise StoreRefused(_SENTENCES[sqlite3.SQLITE_CORRUPT].format(path=path))


def _back_up(connection: sqlite3.Connection, path: Path, version: int) -> None:
    for number in count(1):
        target = path.with_name(f"{path.name}.v{version}.{number}.bak")
        try:
            os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            continue
        with contextlib.closing(sqlite3.connect(target)) as copy:
            connection.backup(copy)
        _sync_directory(path.parent)
        return


def _sync_directory(directory: Path) -> None:
    """Makes the names of new files in it survive a loss of power."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
