"""What is kept on disk: the one SQLite connection, and the stores on it."""

from sidecar.calls.ports import StoreUnavailable
from sidecar.storage.database import Database, DatabaseStatistics, StoreBusy
from sidecar.storage.detached import SqliteDetachedStore
from sidecar.storage.idempotency import SqliteIdempotencyStore
from sidecar.storage.refusals import StoreRefused

__all__ = (
    "Database",
    "DatabaseStatistics",
    "SqliteDetachedStore",
    "SqliteIdempotencyStore",
    "StoreBusy",
    "StoreRefused",
    "StoreUnavailable",
)
