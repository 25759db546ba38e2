"""The records of artifacts in SQLite. Each function is one operation on the database's connection.

What is sought is sought within its whole scope: tenant, subject and place. No tenant is another text than every tenant.
"""

import sqlite3
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from sidecar.artifacts.drafts import Draft
from sidecar.artifacts.limits import ArtifactLimits
from sidecar.artifacts.paging import cursor_after
from sidecar.artifacts.port import ArtifactMeta, ArtifactShape, Eviction, EvictionReason, Origin, Page, Stored
from sidecar.artifacts.references import mint
from sidecar.artifacts.room import Held, Totals, make_room
from sidecar.scope import Scope

_LAST = 2**63 - 1
_SWEPT = 256

_FIELDS = """
    reference, kind, media_type, size, shape, created_at, label, digest, expires_at, parents,
    run_id, tool_call_id, tool, execution_id
"""
_IN_SCOPE = """
    scope = (
        SELECT artifact_scope.id FROM artifact_scope
        JOIN artifact_owner ON artifact_owner.id = artifact_scope.owner
        JOIN artifact_tenant ON artifact_tenant.id = artifact_owner.tenant
        WHERE artifact_tenant.name = ? AND artifact_owner.subject = ? AND artifact_scope.place = ?
    )
"""
_FIND = f"SELECT id, file, {_FIELDS} FROM artifact WHERE reference = ? AND expires_at > ? AND {_IN_SCOPE}"  # noqa: S608  # all of it is above
_FIND_ANY = f"SELECT id, file FROM artifact WHERE reference = ? AND {_IN_SCOPE}"  # noqa: S608  # the same
_PAGE = f"""
    SELECT sequence, file, {_FIELDS} FROM artifact WHERE sequence < ? AND expires_at > ? AND {_IN_SCOPE}
    ORDER BY sequence DESC LIMIT ?
"""  # noqa: S608  # the same
_TOTALS = """
    SELECT artifact_tenant.bytes, artifact_owner.id, artifact_owner.bytes, artifact_scope.id, artifact_scope.artifacts,
        artifact_scope.bytes
    FROM artifact_tenant
    LEFT JOIN artifact_owner ON artifact_owner.tenant = artifact_tenant.id AND artifact_owner.subject = ?
    LEFT JOIN artifact_scope ON artifact_scope.owner = artifact_owner.id AND artifact_scope.place = ?
    WHERE artifact_tenant.name = ?
"""
_EXPIRED = """
    SELECT artifact_scope.id, artifact_owner.id, artifact.size FROM artifact
    JOIN artifact_scope ON artifact_scope.id = artifact.scope
    JOIN artifact_owner ON artifact_owner.id = artifact_scope.owner
    JOIN artifact_tenant ON artifact_tenant.id = artifact_owner.tenant
    WHERE artifact.expires_at <= ? AND artifact_tenant.name = ?
"""
_COLDEST = """
    SELECT reference, kind, size FROM artifact WHERE scope = ? AND expires_at > ? ORDER BY read_at, reference
"""
_EXPIRED_IN = """
    SELECT id, file, reference, kind, size FROM artifact WHERE scope = ? AND expires_at <= ? ORDER BY sequence
"""
_EXPIRED_ANYWHERE = """
    SELECT id, file, reference, kind, size FROM artifact WHERE expires_at <= ? ORDER BY expires_at LIMIT ?
"""
_FILE_OF = "SELECT id, file FROM artifact WHERE reference = ?"
_DELETE = "DELETE FROM artifact WHERE id = ?"
_ADD_TENANT = "INSERT INTO artifact_tenant (name) VALUES (?) ON CONFLICT DO NOTHING"
_ADD_OWNER = """
    INSERT INTO artifact_owner (tenant, subject) SELECT id, ? FROM artifact_tenant WHERE name = ?
    ON CONFLICT DO NOTHING
"""
_ADD_SCOPE = """
    INSERT INTO artifact_scope (owner, place, newest)
    SELECT artifact_owner.id, ?, 1 FROM artifact_owner
    JOIN artifact_tenant ON artifact_tenant.id = artifact_owner.tenant
    WHERE artifact_owner.subject = ? AND artifact_tenant.name = ?
    ON CONFLICT (owner, place) DO UPDATE SET newest = newest + 1
"""
_SCOPE = """
    SELECT artifact_scope.id, artifact_scope.newest FROM artifact_scope
    JOIN artifact_owner ON artifact_owner.id = artifact_scope.owner
    JOIN artifact_tenant ON artifact_tenant.id = artifact_owner.tenant
    WHERE artifact_tenant.name = ? AND artifact_owner.subject = ? AND artifact_scope.place = ?
"""
_ADD = f"""
    INSERT INTO artifact (scope, sequence, read_at, file, {_FIELDS})
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""  # noqa: S608  # the same
_READ = "UPDATE artifact SET read_at = max(read_at, ?) WHERE id = ?"
_HAS_FILE = "SELECT 1 FROM artifact WHERE file = ?"


class Record(NamedTuple):
    """An artifact as it is recorded."""

    id: int
    file: str
    meta: ArtifactMeta


class Added(NamedTuple):
    """What adding an artifact did."""

    stored: Stored
    files: list[str]
    """The payloads of those that gave way."""


def find(connection: sqlite3.Connection, scope: Scope, reference: str, now: int) -> Record | None:
    """An artifact of the scope that has not expired."""
    row = connection.execute(_FIND, (reference, now, *_texts(scope))).fetchone()
    return None if row is None else Record(row[0], row[1], _meta(row[2:]))


def delete(connection: sqlite3.Connection, scope: Scope, reference: str) -> list[str]:
    """Removes an artifact of the scope, if it is there; answers its payload."""
    return _removed(connection, connection.execute(_FIND_ANY, (reference, *_texts(scope))).fetchall())


def page(connection: sqlite3.Connection, scope: Scope, before: int | None, now: int, size: int) -> Page:
    """A page of the scope's artifacts, newest first."""
    place = (_LAST if before is None else before, now, *_texts(scope), size + 1)
    rows = connection.execute(_PAGE, place).fetchall()
    shown = rows[:size]
    return Page(tuple(_meta(row[2:]) for row in shown), cursor_after(shown[-1][0]) if len(rows) > size else None)


def totals(connection: sqlite3.Connection, scope: Scope, now: int) -> Totals:
    """What is stored, without what has expired."""
    return _standing(connection, scope, now)[1]


def add(
    connection: sqlite3.Connection, scope: Scope, file: str, draft: Draft, now: int, limits: ArtifactLimits
) -> Added:
    """Records an artifact, and removes those that give way to it.

    :raises ArtifactsFull: if there is no room for it.
    """
    scope_id, standing = _standing(connection, scope, now)
    coldest = connection.execute(_COLDEST, (scope_id, now))
    gone = make_room(draft.size, standing, map(Held._make, coldest), limits)
    coldest.close()
    expired = connection.execute(_EXPIRED_IN, (scope_id, now)).fetchall()
    files = _removed(connection, expired)
    for eviction in gone:
        files += _removed(connection, connection.execute(_FILE_OF, (eviction.reference,)).fetchall())
    tenant, subject, place = _texts(scope)
    connection.execute(_ADD_TENANT, (tenant,))
    connection.execute(_ADD_OWNER, (subject, tenant))
    connection.execute(_ADD_SCOPE, (place, subject, tenant))
    (scope_id, sequence) = connection.execute(_SCOPE, (tenant, subject, place)).fetchone()
    meta = draft.meta(mint(), now, limits)
    connection.execute(_ADD, (scope_id, sequence, now, file, *_row(meta)))
    return Added(Stored(meta, (*_expirations(expired), *gone)), files)


def expire(connection: sqlite3.Connection, now: int) -> tuple[list[Eviction], list[str]]:
    """Removes some of those that have expired, in all scopes; answers them and their payloads."""
    rows = connection.execute(_EXPIRED_ANYWHERE, (now, _SWEPT)).fetchall()
    return _expirations(rows), _removed(connection, rows)


def note_reads(connection: sqlite3.Connection, reads: Mapping[int, int]) -> None:
    """Notes when artifacts were looked at."""
    connection.executemany(_READ, [(when, artifact) for artifact, when in reads.items()])


def recorded(connection: sqlite3.Connection, files: Collection[str]) -> set[str]:
    """Those of the files that are an artifact's payload."""
    return {file for file in files if connection.execute(_HAS_FILE, (file,)).fetchone() is not None}


def _removed(connection: sqlite3.Connection, rows: Sequence[tuple[Any, ...]]) -> list[str]:
    """Removes the artifacts whose rows begin with their id and payload; answers the payloads."""
    connection.executemany(_DELETE, [row[:1] for row in rows])
    return [row[1] for row in rows]


def _expirations(rows: Sequence[tuple[Any, ...]]) -> list[Eviction]:
    return [Eviction(reference, EvictionReason.EXPIRED, kind, size) for _, _, reference, kind, size in rows]


def _standing(connection: sqlite3.Connection, scope: Scope, now: int) -> tuple[int | None, Totals]:
    tenant, subject, place = _texts(scope)
    row = connection.execute(_TOTALS, (subject, place, tenant)).fetchone()
    if row is None:
        return None, Totals()
    tenant_bytes, owner, owner_bytes, scope_id, count, scope_bytes = (value or 0 for value in row)
    # They are swept often, so there are few.
    for expired_scope, expired_owner, size in connection.execute(_EXPIRED, (now, tenant)):
        tenant_bytes -= size
        owner_bytes -= size if expired_owner == owner else 0
        if expired_scope == scope_id:
            scope_bytes -= size
            count -= 1
    return row[3], Totals(count, scope_bytes, owner_bytes, tenant_bytes)


def _texts(scope: Scope) -> tuple[str, str, str]:
    """Tenant, subject and place as they are stored."""
    return "none" if scope.tenant is None else "tenant:" + scope.tenant, scope.subject, scope.place


def _row(meta: ArtifactMeta) -> tuple[object, ...]:
    origin = meta.origin
    return (
        meta.reference,
        meta.kind,
        meta.media_type,
        meta.size,
        meta.shape.value,
        meta.created_at,
        meta.label,
        meta.digest,
        meta.expires_at,
        " ".join(meta.parents),
        *((None,) * 4 if origin is None else (origin.run_id, origin.tool_call_id, origin.tool, origin.execution_id)),
    )


def _meta(row: tuple[Any, ...]) -> ArtifactMeta:
    reference, kind, media_type, size, shape, created_at, label, digest, expires_at, parents = row[:-4]
    run_id, tool_call_id, tool, execution_id = row[-4:]
    return ArtifactMeta(
        reference,
        kind,
        media_type,
        size,
        ArtifactShape(shape),
        created_at,
        expires_at,
        label,
        digest,
        None if tool_call_id is None else Origin(tool_call_id, run_id, tool, execution_id),
        tuple(parents.split()),
    )
