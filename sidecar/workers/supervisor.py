"""Keeps the worker processes of the configuration running."""

import asyncio
import contextlib
import logging
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace

from sidecar.telemetry import Counters
from sidecar.telemetry.redaction import Redaction
from sidecar.workers.catalogue import Catalogue
from sidecar.workers.guardian import become_reaper
from sidecar.workers.limits import WorkerLimits
from sidecar.workers.output import Output
from sidecar.workers.processes import CannotStart, Command, Guardian, WorkerProcess
from sidecar.workers.worker_set import WorkerSet

_log = logging.getLogger(__name__)

# More would take hours to come to, and in the end be no number any more.
_MOST_DOUBLINGS = 64


@dataclass(frozen=True, slots=True)
class Launch:
    """One worker set whose processes the sidecar starts itself."""

    name: str
    command: Command
    instances: int


class Supervisor:
    """Starts the processes of each launch, starts them again when they end, and ends their whole trees at the stop."""

    def __init__(self, catalogue: Catalogue, limits: WorkerLimits, counters: Counters, redaction: Redaction) -> None:
        self.target = ""
        """Where workers find the sidecar."""
        self._catalogue = catalogue
        self._limits = limits
        self._counters = counters
        self._redaction = redaction
        self._guardian: Guardian | None = None
        self._slots: dict[str, list[asyncio.Task[None]]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._draining = asyncio.Event()

    def keep(self, launch: Launch) -> None:
        """Starts a launch's processes, and keeps as many of them."""
        loop = asyncio.get_running_loop()
        self._slots[launch.name] = [loop.create_task(self._keep(launch, number)) for number in range(launch.instances)]

    def release(self, name: str) -> None:
        """Ends a launch's processes, each in its own time: what it runs finishes first. Others may be started."""
        for slot in self._slots.pop(name, ()):
            slot.cancel()
            self._ending.add(slot)
            slot.add_done_callback(self._ending.discard)

    def drain(self) -> None:
        """Starts nothing again: what ends from now on is meant to."""
        self._draining.set()

    async def stop(self) -> None:
        """Ends everything that was started, and the guardian with it."""
        for name in tuple(self._slots):
            self.release(name)
        await asyncio.gather(*self._ending, return_exceptions=True)
        if self._guardian is not None:
            await self._guardian.end()
            self._guardian = None

    async def _keep(self, launch: Launch, number: int) -> None:
        """One process after another, with pauses that grow while they do not last."""
        failures = 0
        loop = asyncio.get_running_loop()
        limits = self._limits
        while True:
            began = loop.time()
            try:
                why = await self._run_once(launch)
            except CannotStart as error:
                why = f"could not be started: {error}; look at its command in the settings"
            except Exception:
                _log.exception("keeping worker %s failed", launch.name)
                why = "was lost sight of"
            if self._draining.is_set():
                return
            lasted = loop.time() - began
            failures = 1 if lasted >= limits.steady_after else failures + 1
            longest = min(limits.restart_at_most, limits.restart_first * 2.0 ** min(failures, _MOST_DOUBLINGS))
            pause = random.uniform(0, longest)  # noqa: S311  # no secret
            self._counters.add("restarts")
            self._counters.add(f"restarts.{launch.name}")
            _log.warning("worker %s (%d): %s; next try in %.1f s", launch.name, number + 1, why, pause)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._draining.wait(), pause)
                return

    async def _run_once(self, launch: Launch) -> str:
        """Runs one process to its end; answers how it ended."""
        workers = self._catalogue.sets[launch.name]
        guardian = self._guardian
        if guardian is not None and guardian.lost:
            await asyncio.shield(guardian.gone)
            guardian = self._guardian
        if guardian is None or guardian.lost:
            # What a lost guardian leaves behind comes to this process, which ends it.
            become_reaper()
            guardian = self._guardian = Guardian()
        holder = f"{launch.name}-{random.getrandbits(64):016x}"  # a label, not a secret
        token = workers.grant.issue(holder)
        environment = {
            **launch.command.environment,
            "PILLION_WORKER_TARGET": self.target,
            "PILLION_WORKER_NAME": launch.name,
        }
        command = replace(launch.command, environment=environment)
        try:
            process = await guardian.start(command, token)
        except BaseException:
            workers.grant.revoke(holder)
            raise
        budget = _Budget(self._limits.log_lines_per_second, self._counters)
        facts = _Facts(workers, holder)
        outputs = (
            Output(process.stdout, logging.INFO, facts, budget.spend, self._redaction.stream()),
            Output(process.stderr, logging.INFO, facts, budget.spend, self._redaction.stream()),
        )
        try:
            return await self._watch(workers, holder, process)
        finally:
            await self._end(workers, holder, process)
            workers.ended(holder)
            workers.grant.revoke(holder)
            for output in outputs:
                output.close()

    async def _watch(self, workers: WorkerSet, holder: str, process: WorkerProcess) -> str:
        """Waits until the process ends, or is of no use any more; answers which."""
        loop = asyncio.get_running_loop()
        unattached_since: float | None = loop.time()
        while True:
            instance = workers.of_holder(holder)
            if instance is not None:
                unattached_since = None
            elif unattached_since is None:
                unattached_since = loop.time()
            timeout = None
            if unattached_since is not None:
                timeout = unattached_since + self._limits.attach_within - loop.time()
                if timeout <= 0:
                    return f"did not attach within {self._limits.attach_within:g} s and was ended"
            # Asked for before anything else can happen, so that nothing that does is missed.
            changed = self._catalogue.changed()
            try:
                done, _ = await asyncio.wait(
                    (changed, process.exited), timeout=timeout, return_when=asyncio.FIRST_COMPLETED
                )
            finally:
                changed.cancel()
            if process.exited in done:
                return _how(process.exited.result())
            if workers.was_quarantined(holder):
                return "was given up as hung, and ended"

    async def _end(self, workers: WorkerSet, holder: str, process: WorkerProcess) -> None:
        """Lets a process finish what it runs, asks it to end, and kills it and all that came of it if it does not."""
        instance = workers.of_holder(holder)
        # At the stop all calls have ended: what a tool still does, nobody waits for.
        if instance is not None and not process.exited.done() and not self._draining.is_set():
            workers.drain(instance)
            idle = instance.until_idle()
            # Its drain comes to an end by itself; until it has, what it keeps and holds is seen to.
            patience = self._limits.drain + (workers.last_grace if workers.is_needed(instance) else 0.0)
            await asyncio.wait((idle, process.exited), timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            idle.cancel()
        if not process.exited.done():
            process.terminate()
            await asyncio.wait((process.exited,), timeout=self._limits.stop_grace)
        process.kill()
        if not process.exited.done():
            await asyncio.wait((process.exited,), timeout=self._limits.stop_grace)


class _Budget:
    """How many lines may be logged in this second."""

    def __init__(self, most: int, counters: Counters) -> None:
        self._most = most
        self._counters = counters
        self._second = 0
        self._spent = 0

    def spend(self) -> bool:
        second = int(asyncio.get_running_loop().time())
        if second != self._second:
            self._second, self._spent = second, 0
        self._spent += 1
        if self._spent > self._most:
            self._counters.add("dropped_log_lines")
            return False
        return True


class _Facts:
    """What a line that a worker prints belongs to."""

    def __init__(self, workers: WorkerSet, holder: str) -> None:
        self._workers = workers
        self._holder = holder

    def __call__(self) -> Mapping[str, str]:
        instance = self._workers.of_holder(self._holder)
        facts = {"worker": self._workers.name}
        if instance is not None:
            facts["instance"] = instance.id
            calls = [assignment.assigned for assignment in instance.running.values() if assignment.assigned is not None]
            if len(calls) == 1:
                # With several at once a printed line cannot be told apart; `Log` frames can.
                facts["execution_id"] = calls[0].execution_id
        return facts


def _how(status: int) -> str:
    return f"ended by signal {-status}" if status < 0 else f"exited with status {status}"
