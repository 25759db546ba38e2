"""A sidecar as a program: signals, reloads, and the end."""

import logging
import signal
from collections.abc import Callable
from pathlib import Path

import anyio
from anyio.abc import TaskStatus

from sidecar.app import Sidecar
from sidecar.config import ConfigRefused, Settings

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0

_State = tuple[int, int, int]


async def serve(
    source: Callable[[], Settings],
    file: Path | None = None,
    *,
    task_status: TaskStatus[Sidecar] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Runs a sidecar until SIGINT or SIGTERM, then drains it; a second signal ends the drain.

    SIGHUP, and a change of the file or of one it names, read the settings again from their source. Settings that cannot
    be used change nothing, and the log says why.

    :raises ConfigRefused: if it cannot start with these settings; the text says what to change.
    """
    sidecar = Sidecar(source())
    hurry = anyio.Event()
    # From before it starts: what comes while it does would end it without its own end.
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
        async with sidecar.running(), anyio.create_task_group() as tasks:

            async def listen() -> None:
                async for received in signals:
                    if received == signal.SIGHUP:
                        _reload(sidecar, source)
                    elif sidecar.stopping.is_set():
                        hurry.set()
                    else:
                        sidecar.stop()

            tasks.start_soon(listen)
            tasks.start_soon(_watch, sidecar, source, file)
            task_status.started(sidecar)
            await sidecar.stopping.wait()
            await sidecar.drain(hurry)
            tasks.cancel_scope.cancel()


async def _watch(sidecar: Sidecar, source: Callable[[], Settings], file: Path | None) -> None:
    """Reads the settings again whenever their file changes, or one that they name: a token's, or a certificate's."""
    seen: dict[Path, _State | None] = {}
    while True:
        files = (*((file,) if file is not None else ()), *sidecar.files())
        now = {path: _state_of(path) for path in files}
        # One that is away stays as it was, and one that is new was read when it was named.
        news = [path for path in files if now[path] is not None and now[path] != seen.get(path, now[path])]
        seen = {path: now[path] or seen.get(path) for path in files}
        if news:
            _reload(sidecar, source)
        await anyio.sleep(_LOOK_SECONDS)


def _state_of(file: Path) -> _State | None:
    try:
        state = file.stat()
    except OSError:
        # An editor may have it away for a moment.
        return None
    return state.st_mtime_ns, state.st_size, state.st_ino


def _reload(sidecar: Sidecar, source: Callable[[], Settings]) -> None:
    if sidecar.stopping.is_set():
        # What would be started would only be stopped again.
        return
    try:
        sidecar.reload(source())
    except ConfigRefused as refused:
        _log.error("the settings were not reloaded, and those before stay: %s", refused)
    except Exception:  # noqa: BLE001  # what runs goes on, whatever it was
        _log.exception("the settings were not reloaded, and those before stay")
