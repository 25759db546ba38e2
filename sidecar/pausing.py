"""Paused calls of a sidecar, as the settings have them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from sidecar.audit.events import EventAudit
from sidecar.calls.pauses import Pauses
from sidecar.calls.pipeline import Pipeline
from sidecar.config import Settings
from sidecar.private_files import own_key
from sidecar.storage import Database, SqlitePauseStore


@asynccontextmanager
async def pausing(
    settings: Settings, pipeline: Pipeline, database: Database, events: EventAudit
) -> AsyncIterator[None]:
    """Lets calls pause and be resumed inside the block, with tickets that are good after a restart.

    :raises ConfigRefused: if the key that tickets are made with cannot be had; the text says what to do.
    :raises StoreUnavailable: if the database cannot be read.
    """
    secret = await asyncio.to_thread(own_key, settings.state_dir / "ticket.key", "The ticket key")
    store = SqlitePauseStore(database, most_paused=settings.limits.calls.paused_per_subject)
    pauses = Pauses(pipeline, store, secret)
    pauses.told = events.pause_ended
    await pauses.open()
    tidying = asyncio.get_running_loop().create_task(pauses.keep_tidy())
    try:
        yield
    finally:
        tidying.cancel()
        await asyncio.gather(tidying, return_exceptions=True)
        with anyio.CancelScope(shield=True):
            await pauses.settled()
