"""What a sidecar needs to tear scopes down, as the settings have it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio

from sidecar.audit.events import EventAudit
from sidecar.calls.pipeline import Pipeline
from sidecar.config import Settings
from sidecar.private_files import own_key


@asynccontextmanager
async def tearing_down(
    settings: Settings, pipeline: Pipeline, events: EventAudit, redact: Callable[[str], str]
) -> AsyncIterator[None]:
    """Tears scopes down inside the block, with digests of their keys that are the same after a restart.

    :raises ConfigRefused: if the key for that cannot be had; the text says what to do.
    """
    teardowns = pipeline.teardowns
    teardowns.secret = await asyncio.to_thread(own_key, settings.state_dir / "teardown.key", "The teardown key")
    teardowns.firing.reports = events
    teardowns.firing.redact = redact
    try:
        yield
    finally:
        teardowns.close()
        with anyio.CancelScope(shield=True):
            await teardowns.settled()
