"""The audit log, as the settings have it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from sidecar.audit.calls import CallAudit
from sidecar.audit.chain import Key
from sidecar.audit.events import EventAudit
from sidecar.audit.log import AuditLog, AuditRefused, Places
from sidecar.audit.names import names_by
from sidecar.calls.pipeline import Pipeline
from sidecar.config import ConfigRefused, Settings
from sidecar.private_files import make_key, private_bytes

_KEY_BYTES = 32


def audit_places(settings: Settings) -> Places:
    """Where the log is, or would be."""
    audit = settings.audit
    return Places(audit.directory or settings.state_dir / "audit", audit.head_file or settings.state_dir / "audit.head")


def audit_key(settings: Settings, *, make: bool) -> Key:
    """The key of the log: of its file, or one that is kept in the state directory, and made there if it may be.

    :raises ConfigRefused: if it cannot be had.
    """
    named = settings.audit.key_file
    path = named or settings.state_dir / "audit.key"
    if named is None and make:
        make_key(path, "The audit key")
    key = private_bytes(path, "The audit key").strip()
    if len(key) < _KEY_BYTES:
        raise ConfigRefused(
            f"The audit key, {path}, has {len(key)} bytes, and needs {_KEY_BYTES} that nobody could guess; make one "
            f"with: head -c 32 /dev/urandom | base64 > {path}"
        )
    return Key(key)


@asynccontextmanager
async def auditing(
    settings: Settings, pipeline: Pipeline, events: EventAudit, redact: Callable[[str], str]
) -> AsyncIterator[None]:
    """Keeps the log inside the block, if the settings ask for one: of calls, and of other events.

    :raises ConfigRefused: if it cannot be kept; the text says what to do.
    """
    audit = settings.audit
    if not audit.enabled:
        yield
        return
    key = await asyncio.to_thread(audit_key, settings, make=True)
    log = AuditLog(audit_places(settings), key, segment_bytes=audit.segment_bytes, segments_kept=audit.segments_kept)
    try:
        await asyncio.to_thread(log.open)
    except AuditRefused as refused:
        raise ConfigRefused(str(refused)) from None
    names = names_by(key)
    pipeline.audit = CallAudit(
        log, names, redact, required=audit.required, arguments=audit.arguments, results=audit.results
    )
    events.write_to(log, names, redact)
    syncing = asyncio.get_running_loop().create_task(log.run())
    try:
        yield
    finally:
        syncing.cancel()
        await asyncio.gather(syncing, return_exceptions=True)
        events.write_to(None, names, redact)
        await asyncio.to_thread(log.close)
