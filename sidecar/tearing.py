"""What a sidecar needs to tear scopes down, as the settings have it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio

from sidecar.audit.events import EventAudit
from sidecar.calls.pinning import PinRecord
from sidecar.calls.pipeline import Pipeline
from sidecar.config import ConfigRefused, Settings
from sidecar.private_files import own_key
from sidecar.storage import SqliteTeardownStore, StoreUnavailable


@asynccontextmanager
async def tearing_down(
    settings: Settings,
    pipeline: Pipeline,
    store: SqliteTeardownStore,
    events: EventAudit,
    redact: Callable[[str], str],
) -> AsyncIterator[None]:
    """Tears scopes down inside the block, also those that an earlier sidecar has left.

    Digests of their keys are the same after a restart.

    :raises ConfigRefused: if the key for that cannot be had; the text says what to do.
    """
    teardowns = pipeline.teardowns
    teardowns.secret = await asyncio.to_thread(own_key, settings.state_dir / "teardown.key", "The teardown key")
    teardowns.firing.reports = events
    teardowns.firing.redact = redact
    teardowns.firing.store = store
    try:
        teardowns.recover(await store.load())
    except StoreUnavailable:
        raise ConfigRefused(
            "What is kept for the ends of runs and sessions cannot be read; look after the disk."
        ) from None
    teardowns.pins = PinRecord(store, pipeline.counters)
    try:
        yield
    finally:
        teardowns.close()
        with anyio.move_on_after(settings.limits.calls.teardown_grace, shield=True):
            await teardowns.settled()
