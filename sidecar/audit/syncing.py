"""The syncs of an audit log, once a second."""

import asyncio
import contextlib

from sidecar.audit.log import AuditLog

_SYNC_SECONDS = 1.0


async def keep_synced(log: AuditLog) -> None:
    """Writes and syncs what was added, until it is cancelled.

    Where nobody is left to be sent an outcome, nobody else has it written.
    """
    while True:
        await asyncio.sleep(_SYNC_SECONDS)
        with contextlib.suppress(OSError):
            if (sync := log.syncing()) is not None:
                await asyncio.to_thread(sync)
