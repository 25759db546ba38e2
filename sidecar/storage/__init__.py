"""What is kept on disk: the one SQLite connection, and the stores on it."""

from sidecar.calls.stores import StoreUnavailable
from sidecar.storage.database import Database, DatabaseStatistics, StoreBusy
from sidecar.storage.detached import SqliteDetachedStore
from sidecar.storage.idempotency import SqliteIdempotencyStore
from sidecar.storage.pauses import SqlitePauseStore
from sidecar.storage.refusals import StoreRefused
from sidecar.storage.teardowns import SqliteTeardownStore

__all__ = (
    "Database",
    "DatabaseStatistics",
    "SqliteDetachedStore",
    "SqliteIdempotencyStore",
    "SqlitePauseStore",
    "SqliteTeardownStore",
    "StoreBusy",
    "StoreRefused",
    "StoreUnavailable",
)
