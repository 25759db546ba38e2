"""What a sidecar needs to tear scopes down, as the settings have it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from sidecar.audit.events import EventAudit
from sidecar.calls.pinning import PinRecord
from sidecar.calls.pipeline import Pipeline
from sidecar.config import ConfigRefused, Settings
from sidecar.private_files import KEY_BYTES, make_key, private_bytes
from sidecar.storage import SqliteTeardownStore, StoreUnavailable

_WHAT = "The teardown key"


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
    teardowns.secret = await asyncio.to_thread(_secret, settings.state_dir / "teardown.key")
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
        with anyio.CancelScope(shield=True):
            await teardowns.settled()


def _secret(path: Path) -> bytes:
    make_key(path, _WHAT)
    try:
        secret = bytes.fromhex(private_bytes(path, _WHAT).decode())
    except ValueError:
        secret = b""
    if len(secret) != KEY_BYTES:
        raise ConfigRefused(f"{_WHAT}, {path}, is not what the sidecar made; remove it, and another one is made.")
    return secret
