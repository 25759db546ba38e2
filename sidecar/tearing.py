"""What a sidecar needs to tear scopes down, as the settings have it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from sidecar.audit.events import EventAudit
from sidecar.calls.pipeline import Pipeline
from sidecar.config import ConfigRefused, Settings
from sidecar.private_files import KEY_BYTES, make_key, private_bytes

_WHAT = "The teardown key"


@asynccontextmanager
async def tearing_down(
    settings: Settings, pipeline: Pipeline, events: EventAudit, redact: Callable[[str], str]
) -> AsyncIterator[None]:
    """Tears scopes down inside the block, with digests of their keys that are the same after a restart.

    :raises ConfigRefused: if the key for that cannot be had; the text says what to do.
    """
    teardowns = pipeline.teardowns
    teardowns.secret = await asyncio.to_thread(_secret, settings.state_dir / "teardown.key")
    teardowns.firing.reports = events
    teardowns.firing.redact = redact
    try:
        yield
    finally:
        teardowns.close()
        with anyio.move_on_after(settings.limits.calls.teardown_grace, shield=True):
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
