"""The composition root: the one place that knows every part."""

import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import anyio

from sidecar._gen.pillion.v1.context_pb2 import CancelReason
from sidecar.audit.events import EventAudit
from sidecar.auditing import auditing
from sidecar.calls.detached import Detached
from sidecar.calls.pipeline import Pipeline
from sidecar.calls.waiting import until_idle
from sidecar.config import ConfigRefused, Settings
from sidecar.credentials.facade import CredentialEvent
from sidecar.credentials.redactor import Redactor
from sidecar.doors.access import NOBODY, Context
from sidecar.doors.address import reachable
from sidecar.doors.admin import Admin
from sidecar.doors.callers import CallerHost
from sidecar.doors.listeners import NOT_SERVING, SERVING, Listeners
from sidecar.doors.tool_host import ToolHost
from sidecar.doors.worker_host import worker_host_handler
from sidecar.issuing import Issuing, credential_grants, issuing
from sidecar.keeping import Keeping, artifacts_in
from sidecar.launches import grant_of, launch_of
from sidecar.listening import callers_listener, files_read, fixed_parts, policy_of, rules_of, workers_listener
from sidecar.pausing import pausing
from sidecar.places import private_places
from sidecar.reporting import reporting
from sidecar.scope import Principal
from sidecar.storage import Database, SqliteDetachedStore, SqliteIdempotencyStore, SqliteTeardownStore
from sidecar.tearing import tearing_down
from sidecar.telemetry import Counters
from sidecar.telemetry.logs import redacting
from sidecar.wire.streams import Streams
from sidecar.workers.catalogue import Catalogue
from sidecar.workers.host import WorkerHost
from sidecar.workers.supervisor import Supervisor

_log = logging.getLogger(__name__)

DRAIN = 30.0
"""How long running calls have when the sidecar stops, in seconds."""
_COUNTED = {
    "issued": "issued_credentials",
    "authorized": "authorized_credentials",
    "authorization_required": "unauthorized_credentials",
    "denied": "denied_credentials",
    "failed": "failed_credentials",
}
_GOODBYE_GRACE = 1.0
_STOP_GRACE = 0.5


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
        self._catalogue = Catalogue(
            (grant_of(worker, settings) for worker in settings.worker),
            limits.workers,
            limits.calls,
            counters,
        )
        self._database = Database(settings.state_dir / "pillion.db", records_of=artifacts_in(settings))
        self._policy = policy_of(settings)
        store = SqliteIdempotencyStore(self._database)
        self._pipeline = Pipeline(
            self._catalogue,
            self._policy,
            store,
            limits.calls,
            counters,
            max_frame_bytes=limits.wire.max_frame_bytes,
            scopes=limits.scopes,
        )
        self._events = EventAudit()
        self._detached = Detached(self._pipeline, SqliteDetachedStore(self._database), self._events)
        self._pipeline.detached = self._detached
        self._keeping = Keeping(settings, self._database, self._pipeline, counters)
        self._redactor = Redactor()
        self._issuing: Issuing | None = None
        self._streams = Streams()
        self._callers = CallerHost(self._pipeline, self._streams, limits.wire, counters)
        self._workers = WorkerHost(
            self._catalogue,
            self._streams,
            limits.workers,
            limits.wire,
            counters,
            redaction=self._redactor,
            refusals=self._events,
        )
        self._listeners = Listeners(callers_listener(settings), workers_listener(settings), counters)
        self._supervisor = Supervisor(self._catalogue, limits.workers, counters, self._redactor)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serves inside the block.

        :raises ConfigRefused: if it cannot, with these settings; the text says what to change.
        :raises StoreRefused: if the database cannot be used.
        """
        settings = self.settings
        launches = [launch_of(worker, settings) for worker in settings.worker if worker.command is not None]
        listeners = self._listeners
        redact = self._redactor.redact
        teardowns = SqliteTeardownStore(self._database, self._catalogue.kept)
        with (
            private_places(settings.state_dir, listeners.callers.address, listeners.workers.address),
            redacting(redact),
        ):
            await self._database.open()
            try:
                async with (
                    self._keeping.running(),
                    auditing(settings, self._pipeline, self._events, redact),
                    issuing(settings, self._pipeline, self._redactor, self._tell_credential) as self._issuing,
                    tearing_down(settings, self._pipeline, teardowns, self._events, redact),
                    pausing(settings, self._pipeline, self._database, self._events),
                    reporting(settings, self._pipeline, self._catalogue, self._streams),
                    anyio.create_task_group() as tasks,
                ):
                    await self._detached.recover()
                    await self._listen(self._issuing)
                    tasks.start_soon(self._streams.run)
                    tasks.start_soon(self._keeping.keep_tidy)
                    tasks.start_soon(self._tell_health)
                    tasks.start_soon(listeners.callers.access.run, self._counters)
                    self._supervisor.target = reachable(self.workers_at)
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
                                await self._detached.settled()
                        tasks.cancel_scope.cancel()
            finally:
                self._catalogue.close()
                with anyio.CancelScope(shield=True):
                    await self._database.aclose()

    def files(self) -> tuple[Path, ...]:
        """The files, beside the settings themselves, whose change is reason to reload."""
        return tuple(files_read(self.settings))

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
                await until_idle(pipeline)
            tasks.cancel_scope.cancel()
        for call in tuple(pipeline.running):
            call.cancel(CancelReason.CANCEL_REASON_DRAIN)
        limits = self.settings.limits.calls
        with anyio.move_on_after(limits.cancel_grace + limits.teardown_grace + _STOP_GRACE):
            await until_idle(pipeline)
            # What has ended is told once it is recorded.
            await self._detached.settled()
        # A scope that is being ended has these in turn; a store that hangs has no more.
        with anyio.move_on_after(limits.cancel_grace + 2 * limits.teardown_grace):
            await pipeline.teardowns.end_all()
        self._supervisor.drain()
        with anyio.move_on_after(_GOODBYE_GRACE):
            await self._catalogue.drain()

    def reload(self, settings: Settings) -> None:
        """Takes over other workers, rules, tokens and certificates.

        What workers run finishes; calls that wait go to the new ones. Streams that are open stay so.

        :raises ConfigRefused: if the settings cannot be used, or differ in what takes a restart; nothing is changed.
        """
        fixed = [
            name
            for name in (
                "state_dir",
                "listen",
                "limits",
                "artifacts",
                "credentials",
                "credential",
                "audit",
                "log",
                "metrics",
                "tracing",
            )
            if _fixed(settings, name) != _fixed(self.settings, name)
        ]
        if fixed:
            raise ConfigRefused(f"{', '.join(fixed)} cannot change while the sidecar runs; restart it for that.")
        callers, workers = callers_listener(settings), workers_listener(settings)
        grants = {worker.name: grant_of(worker, settings) for worker in settings.worker}
        launches = {
            worker.name: launch_of(worker, settings) for worker in settings.worker if worker.command is not None
        }
        before = {worker.name: worker for worker in self.settings.worker}
        changed = {worker.name for worker in settings.worker if before.get(worker.name) != worker}
        self._listeners.callers.renew(callers)
        self._listeners.workers.renew(workers)
        self._policy.replace(rules_of(settings))
        if self._issuing is not None:
            self._issuing.renew(credential_grants(settings))
        for name in grants.keys() - changed:
            self._catalogue.sets[name].grant.renew(grants[name])
        self._catalogue.reconfigure(grants, changed)
        for name in before.keys() - launches.keys() | changed:
            self._supervisor.release(name)
        for name in changed & launches.keys():
            self._supervisor.keep(launches[name])
        self.settings = settings
        self._counters.add("reloads")
        self._events.reloaded(len(grants), changed)
        _log.info("reloaded: %d workers, %d of them changed or new", len(grants), len(changed))

    async def _listen(self, issuing_: Issuing) -> None:
        pipeline, catalogue, listen = self._pipeline, self._catalogue, self.settings.listen
        access = self._listeners.callers.access

        def principal_of(context: Context) -> Principal:
            return access.principal_of(context) or NOBODY

        def is_operator(principal: Principal) -> bool:
            return principal.is_local or principal.name in self.settings.listen.operators

        wire_limits = self.settings.limits.wire
        tool_host = ToolHost(
            self._callers,
            pipeline,
            catalogue,
            self._policy,
            issuing_.credentials,
            wire_limits,
            principal_of,
            access.expiry_of,
        )
        admin = Admin(pipeline, self.stop, principal_of, access.expiry_of, is_operator, self._events)
        try:
            self.callers_at, self.workers_at = await self._listeners.start(
                tool_host.handler(),
                admin.handler(),
                worker_host_handler(self._workers.attach),
                self._keeping.for_callers(self._policy, principal_of),
                self._keeping.for_workers(),
                reflection_by_tcp=listen.reflection,
            )
        except OSError as error:
            raise ConfigRefused(str(error)) from None
        await self._listeners.health.set("", SERVING)
        _log.info("callers at %s, workers at %s", self.callers_at, self.workers_at)

    def _tell_credential(self, event: CredentialEvent) -> None:
        self._counters.add(_COUNTED[event.what])
        self._events.credential(event)

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


def _fixed(settings: Settings, section: str) -> object:
    """What of a section cannot change while the sidecar runs."""
    return fixed_parts(settings.listen) if section == "listen" else getattr(settings, section)
