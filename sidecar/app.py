"""The composition root: the one place that knows every part."""

import contextlib
import logging
import os
import signal
import stat
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import anyio
from anyio.abc import TaskStatus

from sidecar._gen.pillion.v1.context_pb2 import CancelReason
from sidecar.calls.pipeline import Pipeline
from sidecar.config import ConfigRefused, Settings, address
from sidecar.doors.address import Address
from sidecar.doors.callers import CallerHost
from sidecar.doors.listeners import NOT_SERVING, SERVING, Listeners, allowed_principals, principal_of
from sidecar.doors.tool_host import ToolHost
from sidecar.doors.worker_host import worker_host_handler
from sidecar.launches import grant_of, launch_of
from sidecar.locks import FileLock, InUse
from sidecar.policy import LocalPolicy
from sidecar.storage import Database, SqliteIdempotencyStore
from sidecar.telemetry import Counters
from sidecar.wire.streams import Streams
from sidecar.workers.catalogue import Catalogue
from sidecar.workers.host import WorkerHost
from sidecar.workers.supervisor import Supervisor

_log = logging.getLogger(__name__)

_DRAIN = 30.0
_GOODBYE_GRACE = 1.0
_STOP_GRACE = 0.5
_OTHERS = 0o077


async def serve(settings: Settings, *, task_status: TaskStatus[tuple[str, str]] = anyio.TASK_STATUS_IGNORED) -> None:
    """Runs a sidecar until SIGINT or SIGTERM, then drains it; a second signal ends the drain.

    The task status is told the addresses that callers and workers find it at.

    :raises ConfigRefused: if it cannot start with these settings; the text says what to change.
    """
    callers_at = address(settings.callers, insecure=settings.listen.insecure)
    workers_at = address(settings.workers, insecure=settings.listen.insecure)
    grants = [grant_of(worker) for worker in settings.worker]
    launches = [launch_of(worker) for worker in settings.worker if worker.command is not None]
    counters = Counters()
    with _private_places(settings, callers_at, workers_at):
        database = Database(settings.state_dir / "pillion.db")
        await database.open()
        try:
            catalogue = Catalogue(grants, settings.limits.workers, settings.limits.calls, counters)
            policy = LocalPolicy(allowed_principals(insecure=settings.listen.insecure))
            pipeline = Pipeline(
                catalogue,
                policy,
                SqliteIdempotencyStore(database),
                settings.limits.calls,
                counters,
                max_frame_bytes=settings.limits.wire.max_frame_bytes,
            )
            streams = Streams()
            wire_limits = settings.limits.wire
            callers = CallerHost(pipeline, streams, wire_limits, counters)
            workers = WorkerHost(catalogue, streams, settings.limits.workers, wire_limits, counters)
            listeners = Listeners(counters)
            tool_host = ToolHost(callers, pipeline, catalogue, policy, wire_limits, principal_of)
            async with anyio.create_task_group() as tasks:
                with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
                    addresses = await _listen(listeners, callers_at, workers_at, tool_host, workers)
                    tasks.start_soon(streams.run)
                    tasks.start_soon(_tell_health, listeners, catalogue)
                    _log.info("callers at %s, workers at %s", *addresses)
                    supervisor = Supervisor(catalogue, addresses[1], settings.limits.workers, counters)
                    for launch in launches:
                        supervisor.keep(launch)
                    task_status.started(addresses)
                    await anext(signals)
                    _log.info("stopping: running calls have %g s", _DRAIN)
                    await listeners.health.set("", NOT_SERVING)
                    callers.drain(_DRAIN)
                    limits = settings.limits.calls
                    await _drain(pipeline, signals, limits.cancel_grace + limits.teardown_grace)
                    with anyio.move_on_after(_GOODBYE_GRACE):
                        await catalogue.drain()
                    await supervisor.stop()
                    await listeners.stop(_STOP_GRACE)
                    with anyio.move_on_after(limits.teardown_grace):
                        await pipeline.requests.settled()
                tasks.cancel_scope.cancel()
            catalogue.close()
        finally:
            await database.aclose()


async def _listen(
    listeners: Listeners, callers_at: Address, workers_at: Address, tool_host: ToolHost, workers: WorkerHost
) -> tuple[str, str]:
    try:
        addresses = await listeners.start(
            callers_at, workers_at, tool_host.handler(), worker_host_handler(workers.attach)
        )
    except OSError as error:
        raise ConfigRefused(str(error)) from None
    await listeners.health.set("", SERVING)
    return addresses


async def _tell_health(listeners: Listeners, catalogue: Catalogue) -> None:
    """Keeps the health of `worker/<name>` true: whether an instance of it takes calls."""
    told: dict[str, bool] = {}
    while True:
        attached = {name: workers.attached for name, workers in catalogue.sets.items()}
        if attached == told:
            await catalogue.changed()
            continue
        for name in [name for name in attached if told.get(name) is not attached[name]]:
            await listeners.health.set(f"worker/{name}", SERVING if attached[name] else NOT_SERVING)
        told = attached


async def _drain(pipeline: Pipeline, signals: AsyncIterator[signal.Signals], end_grace: float) -> None:
    """Takes no new calls and lets running ones finish; when the time is up, or at a signal, cancels them."""
    pipeline.draining = True

    async with anyio.create_task_group() as tasks:

        async def hurry() -> None:
            await anext(signals)
            tasks.cancel_scope.cancel()

        tasks.start_soon(hurry)
        with anyio.move_on_after(_DRAIN):
            await pipeline.idle()
        tasks.cancel_scope.cancel()
    for call in tuple(pipeline.running):
        call.cancel(CancelReason.CANCEL_REASON_DRAIN)
    with anyio.move_on_after(end_grace + _STOP_GRACE):
        await pipeline.idle()


@contextlib.contextmanager
def _private_places(settings: Settings, *addresses: Address) -> Iterator[None]:
    """Makes the directories for this user alone, and holds them and the sockets against a second sidecar."""
    places = [settings.state_dir / "lock"]
    sockets = [place.socket for place in addresses if place.socket is not None]
    places.extend(socket.with_name(socket.name + ".lock") for socket in sockets)
    if len(set(places)) < len(places):
        raise ConfigRefused("Callers and workers need a socket each; name two paths.")
    with contextlib.ExitStack() as held:
        for place in places:
            try:
                place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                held.callback(FileLock(place).release)
            except InUse:
                raise ConfigRefused(f"Another sidecar is running at {place.parent}; stop it or use another.") from None
            except OSError as error:
                raise ConfigRefused(f"{place} cannot be made: {error.strerror}; may this user write there?") from None
        _check_private(settings.state_dir)
        for socket in sockets:
            _remove_left_socket(socket)
        yield


def _check_private(directory: Path) -> None:
    """Sees to it that nobody else may look into the state directory."""
    state = directory.stat()
    if state.st_uid != os.getuid():
        raise ConfigRefused(f"{directory} belongs to another user; name a state_dir of this one's.")
    if state.st_mode & _OTHERS:
        raise ConfigRefused(f"{directory} is open to other users; close it with: chmod 700 {directory}")


def _remove_left_socket(path: Path) -> None:
    """Removes the socket of a sidecar that is gone, which it is since its lock was free. Nothing else is removed."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigRefused(f"{path} is there and is not a socket; name another path to listen at.")
    path.unlink()
