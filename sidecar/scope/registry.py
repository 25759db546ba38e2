"""The live scopes: which calls are in them, which cleanups wait for their end, which instances they are pinned to."""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import NamedTuple

from sidecar._gen.pillion.v1.context_pb2 import TeardownScope
from sidecar.scope.keys import LASTING, ScopeKey
from sidecar.scope.registrations import Address, Registration
from sidecar.scope.scope import Owner

_RUN = TeardownScope.TEARDOWN_SCOPE_RUN
_MOST_ALIASES = 16


class ScopeEnding(Exception):
    """The scope is just being ended: it takes no new calls until it has, and nothing is kept for it any more."""


class Group(NamedTuple):
    """Whose live scopes are counted together."""

    worker: str
    tenant: str | None


class LiveScope:
    """One scope, while a call is in it or anything is kept for it."""

    __slots__ = ("aliases", "busy", "ending", "keeping", "key", "pins", "registrations", "touched_at")

    def __init__(self, key: ScopeKey, now: float) -> None:
        self.key = key
        self.busy = 0
        """How many calls are in it, running, parked or paused ones: it is neither idle nor evicted meanwhile."""
        self.ending = False
        self.aliases: list[ScopeKey] = []
        """By what else it is known, oldest first."""
        self.touched_at = now
        self.registrations: dict[Address, Registration] = {}
        """Oldest first."""
        self.pins: dict[str, str] = {}
        """Worker set to the instance that keeps what its tools hold for the scope."""
        self.keeping: dict[str, int] = {}
        """How many registrations and pins each worker set has here; none has 0."""


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
        self._aliases: dict[ScopeKey, ScopeKey] = {}
        """Runs by the other ids that they are known by."""
        """Oldest first, as are those of each instance."""
        self._by_instance: dict[str, dict[str, Registration]] = {}
        self._pinned: dict[str, int] = {}
        """How many pins there are to each instance."""
        self.repinned: Callable[[ScopeKey, str, str | None, str | None], object] | None = None
        """Is told of each pin that comes or goes: the scope, the worker set, the instance before and the one now."""

    def __len__(self) -> int:
        return len(self._scopes)

    @property
    def registrations(self) -> int:
        """How many cleanups wait."""
        return len(self._by_id)

    def find(self, registration_id: str) -> Registration | None:
        """A registration that was not claimed."""
        return self._by_id.get(registration_id)

    def standing(self, address: Address) -> Registration | None:
        """The registration of an address, likewise."""
        scope = self._scopes.get(address.key)
        return scope.registrations.get(address) if scope is not None else None

    def kept_by(self, instance_id: str) -> tuple[Registration, ...]:
        """What an instance keeps, oldest first."""
        return tuple(self._by_instance.get(instance_id, {}).values())

    def kept_for(self, key: ScopeKey) -> tuple[Registration, ...]:
        """What is kept for a scope, oldest first."""
        scope = self._scopes.get(key)
        return tuple(scope.registrations.values()) if scope is not None else ()

    def busy(self, key: ScopeKey) -> int:
        """How many calls are in a scope."""
        scope = self._scopes.get(key)
        return scope.busy if scope is not None else 0

    def scopes(self) -> tuple[ScopeKey, ...]:
        """All live scopes."""
        return tuple(self._scopes)

    # --- runs that are known by other ids

    def alias(self, key: ScopeKey, run_id: str) -> None:
        """A run that is live is known by this id as well, as long as it is."""
        other, scope = key._replace(fact=run_id), self._scopes.get(key)
        if scope is None or other == key or other in self._scopes or other in self._aliases:
            return
        if len(scope.aliases) >= _MOST_ALIASES:
            del self._aliases[scope.aliases.pop(0)]
        self._aliases[other] = key
        scope.aliases.append(other)

    def resolved(self, key: ScopeKey) -> ScopeKey:
        """The scope that is known by this key."""
        return self._aliases.get(key, key)

    def run_of(self, owner: Owner, run_id: str) -> str | None:
        """The id of the run that is known by this one as well; `None`: none is."""
        if not self._aliases:
            return None
        found = self._aliases.get(ScopeKey(_RUN, owner, run_id))
        return found.fact if found is not None else None

    def is_live(self, key: ScopeKey) -> bool:
        """Whether a call is in a scope, or anything is kept for it."""
        return key in self._scopes

    # --- calls

    def enter(self, key: ScopeKey) -> None:
        """A call is in the scope from now on, until `leave`.

        :raises ScopeEnding: if the scope is being ended.
        """
        scope = self._scope(key)
        if scope.ending:
            raise ScopeEnding
        scope.busy += 1
        self._cold.pop(key, None)

    def leave(self, key: ScopeKey) -> None:
        """A call that was in the scope is over."""
        scope = self._scopes[key]
        scope.busy -= 1
        if scope.keeping:
            self._touch(scope)
        else:
            self._forget_if_empty(scope)

    # --- what is kept

    def register(self, registration: Registration) -> tuple[Registration, bool]:
        """Keeps a registration; answers the one that stands, and whether it stood already and was only touched.

        :raises ScopeEnding: if the scope is being ended.
        """
        scope = self._scope(registration.key)
        if scope.ending:
            raise ScopeEnding
        standing = scope.registrations.get(registration.address)
        if standing is not None:
            standing.count += 1
            self._touch(scope)
            return standing, True
        scope.registrations[registration.address] = registration
        self._by_id[registration.id] = registration
        self._by_instance.setdefault(registration.instance_id, {})[registration.id] = registration
        self._keep(scope, registration.worker)
        return registration, False

    def pin(self, key: ScopeKey, worker: str, instance_id: str) -> None:
        """The scope's calls of a worker set's tools that hold something go to this instance from now on."""
        scope = self._scope(key)
        if worker not in scope.pins:
            self._keep(scope, worker)
        before = scope.pins.get(worker)
        scope.pins[worker] = instance_id
        self._touch(scope)
        self._repin(key, worker, before, instance_id)

    def pinned(self, key: ScopeKey, worker: str) -> str | None:
        """The instance that the scope is pinned to."""
        scope = self._scopes.get(key)
        return scope.pins.get(worker) if scope is not None else None

    def unpin(self, key: ScopeKey, worker: str) -> None:
        """What was held is gone."""
        scope = self._scopes.get(key)
        before = scope.pins.pop(worker, None) if scope is not None else None
        if scope is not None and before is not None:
            self._drop(scope, worker)
            self._forget_if_empty(scope)
            self._repin(key, worker, before, None)

    def pins_to(self, instance_id: str) -> int:
        """How many scopes are pinned to an instance."""
        return self._pinned.get(instance_id, 0)

    # --- ends: each claims, newest first, what is to fire now

    def begin_end(self, key: ScopeKey) -> None:
        """The scope takes no new calls and registrations until `end`.

        :raises ScopeEnding: if it is being ended already.
        """
        scope = self._scope(key)
        if scope.ending:
            raise ScopeEnding
        scope.ending = True
        self._cold.pop(key, None)

    def end(self, key: ScopeKey) -> None:
        """The scope has ended; a new call of it begins another."""
        scope = self._scopes.get(key)
        if scope is not None:
            scope.ending = False
            if scope.keeping:
                self._touch(scope)
            else:
                self._forget_if_empty(scope)

    def claim(self, key: ScopeKey) -> list[Registration]:
        """All that is kept for a scope; its pins are gone."""
        scope = self._scopes.get(key)
        if scope is None:
            return []
        for worker in tuple(scope.pins):
            self.unpin(key, worker)
        return self._claim(scope.registrations.values())

    def claim_idle(self) -> list[Registration]:
        """What is kept for the scopes that are idle by now."""
        now = self._clock()
        claimed: list[Registration] = []
        while self._cold:
            key, scope = next(iter(self._cold.items()))
            # As `idle_in` reckons, down to the last bit: else who waits for that comes again and again.
            if scope.touched_at + self._idle_after - now > 0:
                break
            claimed += self.claim(key)
        return claimed

    def idle_in(self) -> float | None:
        """Seconds until a scope may be idle; `None`: none can be."""
        for scope in self._cold.values():
            return max(scope.touched_at + self._idle_after - self._clock(), 0.0)
        return None

    def claim_surplus(self, key: ScopeKey) -> list[Registration]:
        """What is kept for the coldest scopes where one that was just touched or left makes them too many.

        It is what the crowded worker sets keep for them; their pins go too.
        """
        scope = self._scopes.get(key)
        claimed: list[Registration] = []
        for worker in tuple(scope.keeping) if scope is not None and key.kind in LASTING else ():
            group = self._groups[Group(worker, key.owner.tenant)]
            surplus = len(group) - self._most_live
            if surplus > 0:
                cold = (one for one in group.values() if not one.busy and not one.ending)
                for coldest in [one for one, _ in zip(cold, range(surplus), strict=False)]:
                    self.unpin(coldest.key, worker)
                    claimed += self._claim(one for one in coldest.registrations.values() if one.worker == worker)
        return claimed

    def claim_instance(self, instance_id: str) -> list[Registration]:
        """All that an instance keeps. Scopes stay pinned to it, so that their next call learns what was lost."""
        return self._claim(self.kept_by(instance_id))

    def claim_all(self) -> list[Registration]:
        """Everything."""
        for scope in tuple(self._scopes.values()):
            for worker in tuple(scope.pins):
                self.unpin(scope.key, worker)
        return self._claim(self._by_id.values())

    def claim_one(self, registration: Registration) -> bool:
        """One registration; False: it was claimed before."""
        return registration.id in self._by_id and bool(self._claim((registration,)))

    # --- parts of the above

    def _repin(self, key: ScopeKey, worker: str, before: str | None, after: str | None) -> None:
        for instance_id, change in ((before, -1), (after, 1)):
            if instance_id is not None:
                pins = self._pinned[instance_id] = self._pinned.get(instance_id, 0) + change
                if not pins:
                    del self._pinned[instance_id]
        if self.repinned is not None:
            self.repinned(key, worker, before, after)

    def _scope(self, key: ScopeKey) -> LiveScope:
        scope = self._scopes.get(key)
        if scope is None:
            scope = self._scopes[key] = LiveScope(key, self._clock())
        return scope

    def _claim(self, registrations: Iterable[Registration]) -> list[Registration]:
        claimed = list(registrations)
        for registration in claimed:
            scope = self._scopes[registration.key]
            del scope.registrations[registration.address]
            del self._by_id[registration.id]
            of_instance = self._by_instance[registration.instance_id]
            del of_instance[registration.id]
            if not of_instance:
                del self._by_instance[registration.instance_id]
            self._drop(scope, registration.worker)
            self._forget_if_empty(scope)
        claimed.reverse()
        return claimed

    def _touch(self, scope: LiveScope) -> None:
        """Somebody was in the scope, or kept something for it: it is the warmest from now on."""
        scope.touched_at = self._clock()
        key = scope.key
        if key.kind not in LASTING:
            return
        self._cold.pop(key, None)
        if not scope.busy and not scope.ending:
            self._cold[key] = scope
        for worker in scope.keeping:
            self._groups[Group(worker, key.owner.tenant)].move_to_end(key)

    def _keep(self, scope: LiveScope, worker: str) -> None:
        """A worker set keeps one thing more for a scope."""
        kept = scope.keeping.get(worker, 0)
        scope.keeping[worker] = kept + 1
        key = scope.key
        if not kept and key.kind in LASTING:
            self._groups.setdefault(Group(worker, key.owner.tenant), OrderedDict())[key] = scope
        self._touch(scope)

    def _drop(self, scope: LiveScope, worker: str) -> None:
        """A worker set keeps one thing less for a scope."""
        scope.keeping[worker] -= 1
        if scope.keeping[worker]:
            return
        del scope.keeping[worker]
        key = scope.key
        if key.kind in LASTING:
            group = Group(worker, key.owner.tenant)
            scopes = self._groups[group]
            del scopes[key]
            if not scopes:
                del self._groups[group]
        if not scope.keeping:
            self._cold.pop(key, None)

    def _forget_if_empty(self, scope: LiveScope) -> None:
        if not scope.busy and not scope.ending and not scope.keeping:
            self._scopes.pop(scope.key, None)
            for other in scope.aliases:
                self._aliases.pop(other, None)
            scope.aliases.clear()
