"""The tools there are: one immutable snapshot after another."""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from functools import partial

from sidecar.calls.limits import CallLimits
from sidecar.calls.ports import Snapshot
from sidecar.calls.ports import WorkerSet as WorkerSetPort
from sidecar.calls.tool import Tool
from sidecar.scope import Registry
from sidecar.telemetry import Counters
from sidecar.workers.grant import Grant
from sidecar.workers.limits import WorkerLimits
from sidecar.workers.pins import Pins
from sidecar.workers.worker_set import WorkerSet


class Catalogue:
    """The worker sets and the snapshot of their tools, swapped whole whenever it differs."""

    def __init__(
        self,
        grants: Iterable[Grant],
        limits: WorkerLimits,
        call_limits: CallLimits,
        counters: Counters,
        registry: Registry,
    ) -> None:
        """`registry`: of the live scopes, which are pinned to instances."""
        self.snapshot = Snapshot(0, {})
        self._new_set = partial(
            WorkerSet,
            limits=limits,
            call_limits=call_limits,
            counters=counters,
            pins=Pins(registry),
            on_change=self._rebuild,
        )
        self.sets: dict[str, WorkerSet] = {grant.name: self._new_set(grant) for grant in grants}
        self._drain = limits.drain
        self._tools: Mapping[str, Tool] = {}
        self._changed: asyncio.Future[None] | None = None

    @property
    def generation(self) -> int:
        """Grows with every change of the tools."""
        return self.snapshot.generation

    def expected(self, name: str) -> WorkerSetPort | None:
        """The worker set that is configured to bring a tool of this name, which is not there yet."""
        return next((workers for workers in self.sets.values() if name in workers.grant.tools), None)

    def owners(self) -> dict[str, WorkerSet]:
        """Which set each listed tool is of."""
        return {name: workers for workers in self.sets.values() for name in workers.tools}

    def changed(self) -> "asyncio.Future[None]":
        """The next change of tools or of instances: done once there is one, from this moment on. May be cancelled."""
        if self._changed is None:
            self._changed = asyncio.get_running_loop().create_future()
        return asyncio.shield(self._changed)

    def reconfigure(self, grants: Mapping[str, Grant], changed: Collection[str]) -> None:
        """Takes over other worker sets. The instances of sets that changed or went drain; others notice nothing."""
        retired = [self.sets.pop(name) for name in tuple(self.sets.keys() - grants.keys())]
        for name, grant in grants.items():
            workers = self.sets.get(name)
            if workers is None:
                self.sets[name] = self._new_set(grant)
            elif name in changed:
                workers.regrant(grant)
        self._rebuild()
        for workers in retired:
            workers.retire()

    async def drain(self) -> None:
        """Asks every instance to finish and say goodbye, and waits until they have."""
        for workers in self.sets.values():
            for instance in tuple(workers.instances.values()):
                workers.drain(instance)
                workers.dismiss(instance, self._drain)
        while any(workers.instances for workers in self.sets.values()):
            await self.changed()

    def close(self) -> None:
        """Drops all timers, at the end of the sidecar."""
        for workers in self.sets.values():
            workers.close()

    def _rebuild(self) -> None:
        tools = {name: tool for workers in self.sets.values() for name, tool in workers.tools.items()}
        if tools != self._tools:
            self._tools = dict(sorted(tools.items()))
            self.snapshot = Snapshot(self.snapshot.generation + 1, self._tools)
        changed, self._changed = self._changed, None
        if changed is not None and not changed.done():
            changed.set_result(None)
