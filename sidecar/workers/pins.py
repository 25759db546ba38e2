"""Which instance each scope is pinned to, and who waits for an instance to hold nothing any more."""

import asyncio

from sidecar.scope import Registry, ScopeKey


class Pins:
    """The pins of all worker sets, as the live scopes have them: a scope that ends or grows cold drops its own."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._awaited: dict[str, asyncio.Future[None]] = {}
        registry.unpinned = self._went

    def of(self, key: ScopeKey, worker: str) -> str | None:
        """The instance that a scope's calls of this worker set go to; `None`: it is not pinned."""
        return self._registry.pinned(key, worker)

    def pin(self, key: ScopeKey, worker: str, instance_id: str) -> None:
        """They go to this one from now on."""
        self._registry.pin(key, worker, instance_id)

    def drop(self, key: ScopeKey, worker: str) -> None:
        """They may go to any, until one is pinned again."""
        self._registry.unpin(key, worker)

    def free(self, instance_id: str) -> "asyncio.Future[None]":
        """To be awaited: no scope is pinned to the instance. May be cancelled."""
        awaited = self._awaited.get(instance_id)
        if awaited is None:
            awaited = asyncio.get_running_loop().create_future()
            if not self._registry.pins_to(instance_id):
                awaited.set_result(None)
                return awaited
            self._awaited[instance_id] = awaited
        return asyncio.shield(awaited)

    def _went(self, _key: ScopeKey, _worker: str, instance_id: str) -> None:
        if self._awaited and not self._registry.pins_to(instance_id):
            awaited = self._awaited.pop(instance_id, None)
            if awaited is not None:
                awaited.set_result(None)
