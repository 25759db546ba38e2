"""The live scopes: which calls are in them, which cleanups wait for their end, which instances they are pinned to."""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import NamedTuple

from sidecar._gen.pillion.v1.context_pb2 import TeardownScope
from sidecar.scope.keys import ScopeKey
from sidecar.scope.registrations import Address, Registration

_LASTING = (TeardownScope.TEARDOWN_SCOPE_RUN, TeardownScope.TEARDOWN_SCOPE_SESSION)
"""Scopes that end when the caller says so, and grow cold."""


class ScopeEnding(Exception):
    """The scope is just being ended, and takes no new calls until it has."""


class Group(NamedTuple):
    """Whose live scopes are counted together."""

    worker: str
    tenant: str | None


class LiveScope:
    """One scope, while a call is in it or anything is kept for it."""

    __slots__ = ("busy", "counted", "ending", "key", "pins", "registrations", "touched_at")

    def __init__(self, key: ScopeKey, now: float) -> None:
        self.key = key
        self.busy = 0
        """How many calls are in it, running, parked or paused ones: it is neither idle nor evicted meanwhile."""
        self.ending = False
        self.counted: set[str] = set()
        """The worker sets among whose live scopes it is counted."""
        self.touched_at = now
        self.registrations: dict[Address, Registration] = {}
        """Oldest first."""
        self.pins: dict[str, str] = {}
        """Worker set to the instance that keeps what its tools hold for the scope."""

    @property
    def holds(self) -> bool:
        """Whether anything is kept for it."""
        return bool(self.registrations or self.pins)

    def workers(self) -> set[str]:
        """The worker sets that keep something for it."""
        return {registration.worker for registration in self.registrations.values()} | self.pins.keys()


class Registry:
    """All live scopes. Nothing here waits, and a registration that is answered by a claim is never answered again.

    A scope that nobody is in and that nothing is kept for is not remembered.
    """

    def __init__(self, *, idle_after: float, most_live: int, clock: Callable[[], float]) -> None:
        """Limits of lasting scopes, of runs and sessions.

        One is idle after `idle_after` seconds by the clock without a call or a registration. Of each worker set's
        tenant at most `most_live` are kept, beside those that calls are in.
        """
        self._idle_after = idle_after
        self._most_live = most_live
        self._clock = clock
        self._scopes: dict[ScopeKey, LiveScope] = {}
        self._cold: OrderedDict[ScopeKey, LiveScope] = OrderedDict()
        """Lasting scopes that something is kept for and no call is in, longest untouched first."""
        self._groups: dict[Group, OrderedDict[ScopeKey, LiveScope]] = {}
        """The same and those that calls are in, by what counts together, longest untouched first."""
        self._by_id: dict[str, Registration] = {}
        self._pinned: dict[str, int] = {}
        """How many pins there are to each instance."""
        self.unpinned: Callable[[ScopeKey, str, str], object] | None = None
        """Is told of each pin that goes: the scope, the worker set, the instance. `None`: nobody is."""

    def __len__(self) -> int:
        return len(self._scopes)

    @property
    def registrations(self) -> int:
        """How many cleanups wait."""
        return len(self._by_id)

    def find(self, registration_id: str) -> Registration | None:
        """A registration that was not claimed."""
        return self._by_id.get(registration_id)

    # --- calls

    def enter(self, key: ScopeKey) -> None:
        """A call is in the scope from now on, until `leave`.

        :raises ScopeEnding: if the scope is being ended.
        """
        scope = self._scopes.get(key)
        if scope is None:
            scope = self._scopes[key] = LiveScope(key, self._clock())
        elif scope.ending:
            raise ScopeEnding
        if scope.counted and not scope.busy:
            self._cold.pop(key, None)
        scope.busy += 1

    def leave(self, key: ScopeKey) -> None:
        """A call that was in the scope is over."""
        scope = self._scopes[key]
        scope.busy -= 1
        if scope.counted:
            self._touch(scope)
        else:
            self._forget_if_empty(scope)

    # --- what is kept

    def register(self, registration: Registration) -> tuple[Registration, bool]:
        """Keeps a registration; answers the one that stands, and whether it stood already and was only touched."""
        scope = self._scopes.get(registration.key)
        if scope is None:
            scope = self._scopes[registration.key] = LiveScope(registration.key, self._clock())
        standing = scope.registrations.get(registration.address)
        if standing is not None:
            standing.count += 1
            self._touch(scope)
            return standing, True
        scope.registrations[registration.address] = registration
        self._by_id[registration.id] = registration
        self._touch(scope)
        return registration, False

    def pin(self, key: ScopeKey, worker: str, instance_id: str) -> None:
        """The scope's calls of a worker set's tools that hold something go to this instance from now on."""
        scope = self._scopes.get(key)
        if scope is None:
            scope = self._scopes[key] = LiveScope(key, self._clock())
        self._drop_pin(scope, worker)
        scope.pins[worker] = instance_id
        self._pinned[instance_id] = self._pinned.get(instance_id, 0) + 1
        self._touch(scope)

    def pinned(self, key: ScopeKey, worker: str) -> str | None:
        """The instance that the scope is pinned to."""
        scope = self._scopes.get(key)
        return scope.pins.get(worker) if scope is not None else None

    def pins_to(self, instance_id: str) -> int:
        """How many scopes are pinned to an instance."""
        return self._pinned.get(instance_id, 0)

    def unpin(self, key: ScopeKey, worker: str) -> None:
        """What was held is gone."""
        scope = self._scopes.get(key)
        if scope is not None and worker in scope.pins:
            self._drop_pin(scope, worker)
            self._recount(scope)

    # --- ends: each claims, newest first, what is to fire now

    def begin_end(self, key: ScopeKey) -> None:
        """The scope takes no new calls until `end`.

        :raises ScopeEnding: if it is being ended already.
        """
        scope = self._scopes.get(key)
        if scope is None:
            scope = self._scopes[key] = LiveScope(key, self._clock())
        elif scope.ending:
            raise ScopeEnding
        scope.ending = True

    def claim(self, key: ScopeKey) -> list[Registration]:
        """All that is kept for a scope; its pins are gone."""
        scope = self._scopes.get(key)
        if scope is None:
            return []
        self._drop_pins(scope)
        return self._claim(scope, tuple(scope.registrations.values()))

    def end(self, key: ScopeKey) -> None:
        """The scope has ended; a new call of it begins another."""
        scope = self._scopes.get(key)
        if scope is not None:
            scope.ending = False
            self._forget_if_empty(scope)

    def claim_idle(self) -> list[Registration]:
        """What is kept for the scopes that are idle by now."""
        latest = self._clock() - self._idle_after
        claimed: list[Registration] = []
        while self._cold:
            key, scope = next(iter(self._cold.items()))
            if scope.touched_at > latest:
                break
            claimed += self.claim(key)
        return claimed

    def idle_in(self) -> float | None:
        """Seconds until a scope may be idle; `None`: none can be."""
        for scope in self._cold.values():
            return max(scope.touched_at + self._idle_after - self._clock(), 0.0)
        return None

    def claim_surplus(self, worker: str, tenant: str | None) -> list[Registration]:
        """What a worker set keeps for the coldest of a tenant's scopes, where they are too many. Its pins go too."""
        group = self._groups.get(Group(worker, tenant))
        surplus = len(group) - self._most_live if group is not None else 0
        if group is None or surplus <= 0:
            return []
        coldest = [scope for scope in group.values() if not scope.busy][:surplus]
        claimed: list[Registration] = []
        for scope in coldest:
            self._drop_pin(scope, worker)
            its = tuple(one for one in scope.registrations.values() if one.worker == worker)
            claimed += self._claim(scope, its)
        return claimed

    def claim_instance(self, instance_id: str) -> list[Registration]:
        """All that an instance keeps. Scopes stay pinned to it, so that their next call learns what was lost."""
        return self._claim_each(one for one in self._by_id.values() if one.instance_id == instance_id)

    def claim_all(self) -> list[Registration]:
        """Everything."""
        for scope in tuple(self._scopes.values()):
            self._drop_pins(scope)
            self._recount(scope)
        return self._claim_each(self._by_id.values())

    def claim_one(self, registration: Registration) -> bool:
        """One registration; False: it was claimed before."""
        return bool(self._claim_each(() if registration.id not in self._by_id else (registration,)))

    # --- parts of the above

    def _drop_pins(self, scope: LiveScope) -> None:
        for worker in tuple(scope.pins):
            self._drop_pin(scope, worker)

    def _drop_pin(self, scope: LiveScope, worker: str) -> None:
        instance_id = scope.pins.pop(worker, None)
        if instance_id is None:
            return
        left = self._pinned[instance_id] - 1
        if left:
            self._pinned[instance_id] = left
        else:
            del self._pinned[instance_id]
        if self.unpinned is not None:
            self.unpinned(scope.key, worker, instance_id)

    def _claim_each(self, registrations: Iterable[Registration]) -> list[Registration]:
        claimed = list(registrations)
        for registration in claimed:
            self._claim(self._scopes[registration.key], (registration,))
        claimed.reverse()
        return claimed

    def _claim(self, scope: LiveScope, registrations: Iterable[Registration]) -> list[Registration]:
        claimed = list(registrations)
        for registration in claimed:
            del scope.registrations[registration.address]
            del self._by_id[registration.id]
        self._recount(scope)
        claimed.reverse()
        return claimed

    def _touch(self, scope: LiveScope) -> None:
        """Somebody was in the scope, or kept something for it: it is the warmest from now on."""
        scope.touched_at = self._clock()
        self._recount(scope)
        if not scope.counted:
            return
        key = scope.key
        self._cold.pop(key, None)
        if not scope.busy:
            self._cold[key] = scope
        for worker in scope.counted:
            self._groups[Group(worker, key.owner.tenant)].move_to_end(key)

    def _recount(self, scope: LiveScope) -> None:
        """Counts a lasting scope where something is kept for it, and forgets one that is empty."""
        key = scope.key
        workers = scope.workers() if key.kind in _LASTING else set()
        for worker in workers - scope.counted:
            self._groups.setdefault(Group(worker, key.owner.tenant), OrderedDict())[key] = scope
        for worker in scope.counted - workers:
            group = Group(worker, key.owner.tenant)
            scopes = self._groups[group]
            del scopes[key]
            if not scopes:
                del self._groups[group]
        scope.counted = workers
        if not workers:
            self._cold.pop(key, None)
        self._forget_if_empty(scope)

    def _forget_if_empty(self, scope: LiveScope) -> None:
        if not scope.busy and not scope.ending and not scope.holds:
            self._scopes.pop(scope.key, None)
