"""The schema of the database file, its versions, and the way from one to the next."""

import contextlib
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from sidecar.storage.file import backed_up
from sidecar.storage.refusals import StoreRefused, refusal

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
    (
        """
        CREATE TABLE teardown_instance (
            id INTEGER PRIMARY KEY,
            worker TEXT NOT NULL,
            instance TEXT NOT NULL,
            secret BLOB NOT NULL,
            returns INTEGER NOT NULL,
            UNIQUE (worker, instance)
        )
        """,
        """
        CREATE TABLE teardown_registration (
            id INTEGER PRIMARY KEY,
            registration TEXT NOT NULL UNIQUE,
            instance INTEGER NOT NULL REFERENCES teardown_instance (id),
            scope INTEGER NOT NULL,
            tenant TEXT NOT NULL,
            subject TEXT NOT NULL,
            fact TEXT NOT NULL,
            tool TEXT NOT NULL,
            name TEXT,
            label TEXT,
            cleanup_tool TEXT,
            cleanup_arguments BLOB,
            cleanup_caller TEXT,
            cleanup_caller_authenticated INTEGER,
            reason INTEGER
        )
        """,
        "CREATE INDEX teardown_registration_instance ON teardown_registration (instance)",
        """
        CREATE TABLE teardown_pin (
            id INTEGER PRIMARY KEY,
            instance INTEGER NOT NULL REFERENCES teardown_instance (id),
            scope INTEGER NOT NULL,
            tenant TEXT NOT NULL,
            subject TEXT NOT NULL,
            fact TEXT NOT NULL,
            UNIQUE (scope, tenant, subject, fact, instance)
        )
        """,
        "CREATE INDEX teardown_pin_instance ON teardown_pin (instance)",
        """
        CREATE TRIGGER teardown_instance_done AFTER DELETE ON teardown_registration BEGIN
            DELETE FROM teardown_instance WHERE id = old.instance
                AND NOT EXISTS (SELECT 1 FROM teardown_registration WHERE instance = old.instance)
                AND NOT EXISTS (SELECT 1 FROM teardown_pin WHERE instance = old.instance);
        END
        """,
        """
        CREATE TRIGGER teardown_instance_unpinned AFTER DELETE ON teardown_pin BEGIN
            DELETE FROM teardown_instance WHERE id = old.instance
                AND NOT EXISTS (SELECT 1 FROM teardown_registration WHERE instance = old.instance)
                AND NOT EXISTS (SELECT 1 FROM teardown_pin WHERE instance = old.instance);
        END
        """,
    ),
    (
        """
        CREATE TABLE paused_call (
            id INTEGER PRIMARY KEY,
            ticket_digest BLOB NOT NULL UNIQUE,
            caller TEXT NOT NULL,
            tenant TEXT NOT NULL,
            subject TEXT NOT NULL,
            run_id TEXT,
            session_id TEXT,
            start BLOB NOT NULL,
            pause BLOB NOT NULL,
            expires_at REAL NOT NULL,
            state INTEGER NOT NULL
        )
        """,
        "CREATE INDEX paused_call_owner ON paused_call (tenant, subject, state, expires_at)",
        "CREATE INDEX paused_call_expiry ON paused_call (expires_at)",
    ),
    (
        """
        CREATE TABLE detached_call (
            id INTEGER PRIMARY KEY,
            tenant TEXT NOT NULL,
            subject TEXT NOT NULL,
            digest BLOB NOT NULL UNIQUE,
            principal TEXT NOT NULL,
            tool TEXT NOT NULL,
            key TEXT,
            effects INTEGER NOT NULL,
            started BLOB NOT NULL,
            expires_at REAL,
            outcome BLOB
        )
        """,
        "CREATE INDEX detached_call_owner ON detached_call (tenant, subject)",
        "CREATE INDEX detached_call_expiry ON detached_call (expires_at)",
    ),
)
"""For each version the statements that lead to it from the one before. A released one is never changed."""

# Larger files are only looked through before they are migrated, so that a start stays short.
_CHECKED_BYTES = 32 * 1024 * 1024


def examine(connection: sqlite3.Connection, path: Path, migrations: Sequence[Sequence[str]] = MIGRATIONS) -> int:
    """The version of the database at `path`; as many as there are migrations for one that holds nothing yet.

    :raises StoreRefused: if it is another program's, was written by a newer Pillion, or is damaged.
    :raises sqlite3.Error: if it cannot be read.
    """
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    newest = len(migrations)
    if application == 0 and version == 0 and tables == 0:
        return newest
    if application != APPLICATION_ID:
        raise StoreRefused(f"{path} belongs to another program: move it away, or name another state_dir.")
    if version > newest:
        raise StoreRefused(
            f"{path} was written by a newer Pillion (its version {version}, this one's {newest}): run that one, put a "
            "backup of its whole directory in place, or name another state_dir."
        )
    if version < newest or path.stat().st_size <= _CHECKED_BYTES:
        (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise refusal(sqlite3.SQLITE_CORRUPT, path)
    return int(version)


def migrate(connection: sqlite3.Connection, path: Path, migrations: Sequence[Sequence[str]] = MIGRATIONS) -> None:
    """Brings the database at `path` to the newest version, all or nothing, and proves that it can be written.

    It was examined. One that holds something is copied first.

    :raises OSError: if it cannot be copied.
    :raises sqlite3.Error: if it cannot be written.
    """
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    with contextlib.ExitStack() as stack:
        if 0 < version < len(migrations):
            stack.enter_context(backed_up(connection, path, version))
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
