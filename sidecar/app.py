"""The composition root: the one place that knows every part."""

import contextlib
import logging
import os
import stat
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import anyio

from sidecar._gen.pillion.v1.context_pb2 import CancelReason
from sidecar.calls.pipeline import Pipeline
from sidecar.config import ConfigRefused, Settings, address
from sidecar.doors.address import Address
from sidecar.doors.admin import Admin
from sidecar.doors.callers import CallerHost
from sidecar.doors.listeners import NOT_SERVING, SERVING, Listeners, allowed_principals, principal_of
from sidecar.doors.tool_host import ToolHost
from sidecar.doors.worker_host import worker_host_handler
from sidecar.launches import grant_of, launch_of
from sidecar.locks import FileLock, InUse
from sidecar.policy import LocalPolicy
from sidecar.reporting import reporting
from sidecar.storage import Database, SqliteIdempotencyStore
from sidecar.telemetry import Counters
from sidecar.wire.streams import Streams
from sidecar.workers.catalogue import Catalogue
from sidecar.workers.host import WorkerHost
from sidecar.workers.supervisor import Supervisor

_log = logging.getLogger(__name__)

DRAIN = 30.0
"""How long running calls have when the sidecar stops, in seconds."""
_GOODBYE_GRACE = 1.0
_STOP_GRACE = 0.5
_OTHERS = 0o077


class Sidecar:
    """All parts of one sidecar. `running` is its life: inside the block it serves, and leaving it ends everything."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.callers_at = ""
        """Where callers find it, with the port that was chosen."""
        self.workers_at = ""
        """Where workers find it, likewise."""
        self.stopping = anyio.Event()
        """Set when the sidecar is asked to stop."""
        self.drain_grace = DRAIN
        limits = settings.limits
        self._counters = counters = Counters()
        self._catalogue = Catalogue(map(grant_of, settings.worker), limits.workers, limits.calls, counters)
        self._database = Database(settings.state_dir / "pillion.db")
        insecure = settings.listen.insecure
        self._policy = LocalPolicy(allowed_principals(insecure=insecure))
        store = SqliteIdempotencyStore(self._database)
        self._pipeline = Pipeline(
            self._catalogue,
            self._policy,
            store,
            limits.calls,
            counters,
            max_frame_bytes=limits.wire.max_frame_bytes,
        )
        self._streams = Streams()
        self._callers = CallerHost(self._pipeline, self._streams, limits.wire, counters)
        self._workers = WorkerHost(self._catalogue, self._streams, limits.workers, limits.wire, counters)
        self._listeners = Listeners(counters)
        self._supervisor = Supervisor(self._catalogue, limits.workers, counters)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serves inside the block.

        :raises ConfigRefused: if it cannot, with these settings; the text says what to change.
        :raises StoreRefused: if the database cannot be used.
        """
        settings = self.settings
        callers_at = address(settings.callers, insecure=settings.listen.insecure)
        workers_at = address(settings.workers, insecure=settings.listen.insecure)
        launches = [launch_of(worker) for worker in settings.worker if worker.command is not None]
        with _private_places(settings, callers_at, workers_at):
            await self._database.open()
            try:
                async with (
                    reporting(settings, self._pipeline, self._catalogue, self._streams),
                    anyio.create_task_group() as tasks,
                ):
                    await self._listen(callers_at, workers_at)
                    tasks.start_soon(self._streams.run)
                    tasks.start_soon(self._tell_health)
                    self._supervisor.target = self.workers_at
                    for launch in launches:
                        self._supervisor.keep(launch)
                    try:
                        yield
                    finally:
                        with anyio.CancelScope(shield=True):
                            await self._supervisor.stop()
                            await self._listeners.stop(_STOP_GRACE)
                            with anyio.move_on_after(settings.limits.calls.teardown_grace):
                                await self._pipeline.requests.settled()
                        tasks.cancel_scope.cancel()
            finally:
                self._catalogue.close()
                with anyio.CancelScope(shield=True):
                    await self._database.aclose()

    def stop(self, grace: float | None = None) -> None:
        """Asks the sidecar to stop. Running calls have the grace, in seconds."""
        self.drain_grace = DRAIN if grace is None else grace
        self.stopping.set()

    async def drain(self, hurry: anyio.Event) -> None:
        """Takes no new calls and lets running ones finish; when their time is up, or in a hurry, cancels them."""
        grace = self.drain_grace
        _log.info("stopping: %d running calls have %g s", len(self._pipeline.running), grace)
        await self._listeners.health.set("", NOT_SERVING)
        self._callers.drain(grace)
        pipeline = self._pipeline
        pipeline.draining = True
        async with anyio.create_task_group() as tasks:

            async def give_up() -> None:
                await hurry.wait()
                tasks.cancel_scope.cancel()

            tasks.start_soon(give_up)
            with anyio.move_on_after(grace):
                await pipeline.idle()
            tasks.cancel_scope.cancel()
        for call in tuple(pipeline.running):
            call.cancel(CancelReason.CANCEL_REASON_DRAIN)
        limits = self.settings.limits.calls
        with anyio.move_on_after(limits.cancel_grace + limits.teardown_grace + _STOP_GRACE):
            await pipeline.idle()
        self._supervisor.drain()
        with anyio.move_on_after(_GOODBYE_GRACE):
            await self._catalogue.drain()

    def reload(self, settings: Settings) -> None:
        """Takes over other workers. What they run finishes; calls that wait go to the new ones.

        :raises ConfigRefused: if the settings cannot be used, or differ in what takes a restart; nothing is changed.
        """
        fixed = [
            name
            for name in ("state_dir", "listen", "limits", "log", "metrics", "tracing")
            if getattr(settings, name) != getattr(self.settings, name)
        ]
        if fixed:
            raise ConfigRefused(f"{', '.join(fixed)} cannot change while the sidecar runs; restart it for that.")
        grants = {worker.name: grant_of(worker) for worker in settings.worker}
        launches = {worker.name: launch_of(worker) for worker in settings.worker if worker.command is not None}
        before = {worker.name: worker for worker in self.settings.worker}
        changed = {worker.name for worker in settings.worker if before.get(worker.name) != worker}
        self._catalogue.reconfigure(grants, changed)
        for name in before.keys() - launches.keys() | changed:
            self._supervisor.release(name)
        for name in changed & launches.keys():
            self._supervisor.keep(launches[name])
        self.settings = settings
        self._counters.add("reloads")
        _log.info("reloaded: %d workers, %d of them changed or new", len(grants), len(changed))

    async def _listen(self, callers_at: Address, workers_at: Address) -> None:
        pipeline, catalogue = self._pipeline, self._catalogue
        tool_host = ToolHost(self._callers, pipeline, catalogue, self._policy, self.settings.limits.wire, principal_of)
        admin = Admin(pipeline, self.stop, principal_of)
        try:
            self.callers_at, self.workers_at = await self._listeners.start(
                callers_at,
                workers_at,
                tool_host.handler(),
                admin.handler(),
                worker_host_handler(self._workers.attach),
            )
        except OSError as error:
            raise ConfigRefused(str(error)) from None
        await self._listeners.health.set("", SERVING)
        _log.info("callers at %s, workers at %s", self.callers_at, self.workers_at)

    async def _tell_health(self) -> None:
        """Keeps the health of `worker/<name>` true: whether an instance of it takes calls."""
        told: dict[str, bool] = {}
        while True:
            attached = {name: workers.attached for name, workers in self._catalogue.sets.items()}
            if attached == told:
                await self._catalogue.changed()
                continue
            for name in attached.keys() | told.keys():
                if told.get(name) is not attached.get(name):
                    status = SERVING if attached.get(name) else NOT_SERVING
                    await self._listeners.health.set(f"worker/{name}", status)
            told = attached


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
