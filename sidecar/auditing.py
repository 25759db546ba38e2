"""The audit log, as the settings have it."""

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from sidecar.audit.calls import CallAudit
from sidecar.audit.chain import Key
from sidecar.audit.events import EventAudit
from sidecar.audit.log import AuditLog, AuditRefused, Places
from sidecar.audit.names import names_by
from sidecar.calls.pipeline import Pipeline
from sidecar.config import ConfigRefused, Settings
from sidecar.private_files import private_bytes

_KEY_BYTES = 32
_PRIVATE = 0o600


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
        _make_key(path)
    key = private_bytes(path, "The audit key").strip()
    if len(key) < _KEY_BYTES:
        raise ConfigRefused(
            f"The audit key, {path}, has {len(key)} bytes, and needs {_KEY_BYTES} that nobody could guess; make one "
            f"with: head -c 32 /dev/urandom | base64 > {path}"
        )
    return Key(key)


def _make_key(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _PRIVATE)
    except FileExistsError:
        return
    except OSError as error:
        raise ConfigRefused(f"The audit key, {path}, cannot be made: {error.strerror}.") from None
    try:
        os.write(descriptor, secrets.token_hex(_KEY_BYTES).encode() + b"\n")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
