"""The registry of live scopes beside a simple model: a cleanup is claimed at most once, and none is forgotten."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from sidecar._gen.pillion.v1.context_pb2 import TeardownScope
from sidecar.scope import UNTIL_THE_STOP, Address, Owner, Registration, Registry, ScopeEnding, ScopeKey

CALL = TeardownScope.TEARDOWN_SCOPE_CALL
RUN = TeardownScope.TEARDOWN_SCOPE_RUN
SESSION = TeardownScope.TEARDOWN_SCOPE_SESSION
LASTING = (RUN, SESSION)
IDLE, LIVE = 10.0, 2

OWNERS = st.sampled_from([Owner(None, "named:a"), Owner("t", "named:a"), Owner("t", "named:b")])
KEYS = st.one_of(
    st.builds(ScopeKey, st.sampled_from([CALL, RUN, SESSION, SESSION, SESSION]), OWNERS, st.sampled_from("abcd")),
    st.just(UNTIL_THE_STOP),
)
INSTANCES = st.sampled_from(["one-1", "one-2", "two-1"])
"""An instance is of the worker set whose name it begins with."""


class Modelled(RuleBasedStateMachine):
    """Steps of calls, tools, callers, time and instances, done to the registry and to lists."""

    entered = Bundle("entered")

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.registry = Registry(idle_after=IDLE, most_live=LIVE, clock=lambda: self.now)
        self.numbers = 0
        self.standing: list[Registration] = []
        """What waits, oldest first."""
        self.claimed: set[str] = set()
        self.busy: dict[ScopeKey, int] = {}
        self.ending: set[ScopeKey] = set()
        self.pins: dict[tuple[ScopeKey, str], str] = {}
        self.touched: dict[ScopeKey, float] = {}
        self.order: list[ScopeKey] = []
        """Scopes by when they were touched, the longest untouched first."""

    # --- parts of the model

    def touch(self, key: ScopeKey) -> None:
        self.touched[key] = self.now
        if key in self.order:
            self.order.remove(key)
        self.order.append(key)

    def keeping(self, key: ScopeKey) -> set[str]:
        workers = {one.worker for one in self.standing if one.key == key}
        return workers | {worker for pinned, worker in self.pins if pinned == key}

    def was_claimed(self, claimed: list[Registration], expected: list[Registration], *, ordered: bool = True) -> None:
        """These and no others were claimed, for the first time."""
        ids = [one.id for one in claimed]
        assert self.claimed.isdisjoint(ids), "a cleanup was claimed twice"
        assert len(ids) == len(set(ids))
        wanted = [one.id for one in reversed(expected)]
        assert ids == wanted if ordered else sorted(ids) == sorted(wanted)
        self.claimed |= set(ids)
        self.standing = [one for one in self.standing if one.id not in self.claimed]

    # --- calls

    @rule(target=entered, key=KEYS)
    def enter(self, key: ScopeKey) -> Any:
        try:
            self.registry.enter(key)
        except ScopeEnding:
            assert key in self.ending
            return None
        assert key not in self.ending
        self.busy[key] = self.busy.get(key, 0) + 1
        return key

    @rule(key=consumes(entered))
    def leave(self, key: ScopeKey | None) -> None:
        if key is not None:
            self.registry.leave(key)
            self.busy[key] -= 1
            if self.keeping(key):
                self.touch(key)

    # --- what is kept

    @rule(key=KEYS, instance=INSTANCES, tool=st.sampled_from("xy"), name=st.sampled_from([None, "", "n"]))
    def register(self, key: ScopeKey, instance: str, tool: str, name: str | None) -> None:
        self.numbers += 1
        new = Registration(f"reg_{self.numbers}", Address(key, instance, tool, name), instance.partition("-")[0])
        try:
            stands, is_reused = self.registry.register(new)
        except ScopeEnding:
            assert key in self.ending
            return
        assert key not in self.ending
        same = [one for one in self.standing if one.address == new.address]
        assert is_reused == bool(same)
        if same:
            assert stands is same[0]
        else:
            assert stands is new
            self.standing.append(new)
        self.touch(key)

    @rule(key=KEYS.filter(lambda key: key.kind in LASTING), instance=INSTANCES)
    def pin(self, key: ScopeKey, instance: str) -> None:
        worker = instance.partition("-")[0]
        self.registry.pin(key, worker, instance)
        self.pins[key, worker] = instance
        self.touch(key)

    @rule(key=KEYS, worker=st.sampled_from(["one", "two"]))
    def unpin(self, key: ScopeKey, worker: str) -> None:
        self.registry.unpin(key, worker)
        self.pins.pop((key, worker), None)

    # --- ends

    @rule(key=KEYS)
    def begin_end(self, key: ScopeKey) -> None:
        try:
            self.registry.begin_end(key)
        except ScopeEnding:
            assert key in self.ending
        else:
            assert key not in self.ending
            self.ending.add(key)

    @precondition(lambda self: self.ending)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.ending, key=str)))
        self.claim(key)
        self.registry.end(key)
        self.ending.discard(key)
        if self.keeping(key):
            self.touch(key)

    @rule(key=KEYS)
    def claim(self, key: ScopeKey) -> None:
        expected = [one for one in self.standing if one.key == key]
        self.was_claimed(self.registry.claim(key), expected)
        self.pins = {(pinned, worker): one for (pinned, worker), one in self.pins.items() if pinned != key}

    @rule(seconds=st.sampled_from([1.0, 4.0, 12.0]))
    def idle(self, seconds: float) -> None:
        self.now += seconds
        cold = [
            key
            for key in self.order
            if key.kind in LASTING and self.keeping(key) and not self.busy.get(key) and key not in self.ending
        ]
        due = self.registry.idle_in()
        assert due == (max(self.touched[cold[0]] + IDLE - self.now, 0.0) if cold else None)
        idle = {key for key in cold if self.touched[key] + IDLE <= self.now}
        expected = [one for one in self.standing if one.key in idle]
        self.was_claimed(self.registry.claim_idle(), expected, ordered=False)
        self.pins = {(key, worker): one for (key, worker), one in self.pins.items() if key not in idle}

    @rule(key=KEYS)
    def evict(self, key: ScopeKey) -> None:
        expected = []
        for worker in self.keeping(key) if key.kind in LASTING else ():
            group = [
                other
                for other in self.order
                if other.kind in LASTING and other.owner.tenant == key.owner.tenant and worker in self.keeping(other)
            ]
            cold = [other for other in group if not self.busy.get(other) and other not in self.ending]
            for other in cold[: max(len(group) - LIVE, 0)]:
                expected += [one for one in self.standing if one.key == other and one.worker == worker]
                self.pins.pop((other, worker), None)
        self.was_claimed(self.registry.claim_surplus(key), expected, ordered=False)

    @rule(instance=INSTANCES)
    def lose(self, instance: str) -> None:
        expected = [one for one in self.standing if one.instance_id == instance]
        self.was_claimed(self.registry.claim_instance(instance), expected)

    @rule(data=st.data())
    @precondition(lambda self: self.numbers)
    def claim_one(self, data: st.DataObject) -> None:
        number = f"reg_{data.draw(st.integers(1, self.numbers))}"
        found = self.registry.find(number)
        expected = [one for one in self.standing if one.id == number]
        assert ([found] if found is not None else []) == expected
        if found is not None:
            assert self.registry.claim_one(found)
            self.was_claimed([found], expected)
            assert not self.registry.claim_one(found)

    @rule()
    def stop(self) -> None:
        self.was_claimed(self.registry.claim_all(), self.standing)
        self.pins.clear()

    # --- what holds in between

    @invariant()
    def nothing_is_forgotten(self) -> None:
        assert self.registry.registrations == len(self.standing)
        for one in self.standing:
            assert self.registry.find(one.id) is one
            assert self.registry.standing(one.address) is one
        for instance in ("one-1", "one-2", "two-1"):
            assert list(self.registry.kept_by(instance)) == [
                one for one in self.standing if one.instance_id == instance
            ]
        for (key, worker), instance in self.pins.items():
            assert self.registry.pinned(key, worker) == instance

    @invariant()
    def nothing_else_is_remembered(self) -> None:
        alive = {one.key for one in self.standing} | {key for key, _ in self.pins} | self.ending
        alive |= {key for key, count in self.busy.items() if count}
        assert len(self.registry) == len(alive)
        for key in alive:
            assert self.registry.is_live(key)
            assert self.registry.busy(key) == self.busy.get(key, 0)


Modelled.TestCase.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
TestRegistry = Modelled.TestCase
