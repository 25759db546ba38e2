"""The tools there are: one immutable snapshot after another."""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from functools import partial

from sidecar.calls.limits import CallLimits
from sidecar.calls.ports import Keeper, Snapshot
from sidecar.calls.ports import WorkerSet as WorkerSetPort
from sidecar.calls.teardowns import Teardowns
from sidecar.calls.tool import Tool
from sidecar.scope import KeptInstance
from sidecar.telemetry import Counters
from sidecar.workers.grant import Grant
from sidecar.workers.limits import WorkerLimits
from sidecar.workers.worker_set import WorkerSet


class Catalogue:
    """The worker sets and the snapshot of their tools, swapped whole whenever it differs."""

    teardowns: Teardowns
    """Who is told of instances that keep cleanups. Set by the pipeline, before any instance is there."""

    def __init__(
        self, grants: Iterable[Grant], limits: WorkerLimits, call_limits: CallLimits, counters: Counters
    ) -> None:
        self.snapshot = Snapshot(0, {})
        self._new_set = partial(
            WorkerSet,
            limits=limits,
            call_limits=call_limits,
            counters=counters,
            on_change=self._rebuild,
            teardowns=lambda: self.teardowns,
        )
        self._retired: list[WorkerSet] = []
        """Sets that are configured no more, while an instance of them is there, or may come back."""
        self.sets: dict[str, WorkerSet] = {grant.name: self._new_set(grant) for grant in grants}
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
        self._retired = [workers for workers in (*self._retired, *retired) if not workers.is_empty]

    def keeper(self, worker: str, instance_id: str) -> Keeper | None:
        """The instance of this id, if its stream is open."""
        return next(
            (found for one in self._sets_of(worker) if (found := one.instances.get(instance_id)) is not None), None
        )

    def may_return(self, worker: str, instance_id: str) -> bool:
        """Whether an instance whose stream is not open may still come back."""
        return any(workers.may_return(instance_id) for workers in self._sets_of(worker))

    def expect(self, instance: KeptInstance) -> bool:
        """Waits for an instance of an earlier sidecar. False: it cannot come back."""
        workers = self.sets.get(instance.worker)
        if workers is None or not instance.returns:
            return False
        workers.away.add(instance, "")
        return True

    def kept(self, worker: str, instance_id: str) -> KeptInstance:
        """What is to be stored of an instance. One that is not known any more will not come back."""
        for workers in self._sets_of(worker):
            if (kept := workers.kept(instance_id)) is not None:
                return kept
        return KeptInstance(worker, instance_id, b"", returns=False)

    def relieved(self, worker: str, instance_id: str) -> None:
        """An instance keeps less than it did, and has run what it was to."""
        for workers in self._sets_of(worker):
            workers.relieved(instance_id)

    async def drain(self) -> None:
        """Asks every instance to finish and say goodbye, and waits until they have."""
        sets = (*self.sets.values(), *self._retired)
        for workers in sets:
            for instance in tuple(workers.instances.values()):
                workers.drain(instance)
        while any(workers.instances for workers in sets):
            await self.changed()

    def close(self) -> None:
        """Drops all timers, at the end of the sidecar."""
        for workers in (*self.sets.values(), *self._retired):
            workers.close()

    def _sets_of(self, name: str) -> list[WorkerSet]:
        """The set of a name, and those that had it and are configured no more."""
        workers = self.sets.get(name)
        return [*([workers] if workers is not None else []), *(one for one in self._retired if one.name == name)]

    def _rebuild(self) -> None:
        tools = {name: tool for workers in self.sets.values() for name, tool in workers.tools.items()}
        if tools != self._tools:
            self._tools = dict(sorted(tools.items()))
            self.snapshot = Snapshot(self.snapshot.generation + 1, self._tools)
        changed, self._changed = self._changed, None
        if changed is not None and not changed.done():
            changed.set_result(None)
