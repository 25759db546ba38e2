"""Whatever tools keep, and whatever ends, is lost, comes back or is killed: each cleanup runs once at most.

And none is forgotten: what did not run, or is not known to have, is reported.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from sidecar._gen.pillion.v1.context_pb2 import TeardownReason, TeardownScope
from sidecar._gen.pillion.v1.execute_pb2 import EndScopeRequest
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.worker_pb2 import CleanupCall, Reattach, RegisterTeardown, TeardownDone, Welcome
from sidecar.calls.pinning import PinRecord
from sidecar.calls.ports import EndedScope
from sidecar.calls.stores import Pin, StoreUnavailable
from sidecar.scope import (
    Kept,
    KeptInstance,
    KeptPin,
    KeptRegistration,
    Principal,
    Registration,
    ScopeKey,
    ScopeLimits,
)
from sidecar.wire.transport import StreamLost
from tests.support import CallerPeer, MemoryHost, MemoryLink, Setup, VirtualTimeLoop, WorkerPeer, quiet, tool

SESSION = TeardownScope.TEARDOWN_SCOPE_SESSION
KEEPERS = ("one", "two")
HELPER = "helper"
SETUP = Setup(
    sets={**{name: frozenset((name,)) for name in KEEPERS}, HELPER: frozenset(("put",))},
    scopes=ScopeLimits(idle=100, live=2, cleanup_patience=30),
)
ENOUGH = 1_000.0


class Disk:
    """A store that outlives sidecars. One that is killed writes no more."""

    def __init__(self, kept: Kept, instance: Callable[[str, str], KeptInstance]) -> None:
        self.is_dead = False
        self._rows: dict[str, KeptRegistration] = {one.registration.id: one for one in kept.registrations}
        self._pins: dict[Pin, KeptPin] = {(pin.key, pin.worker): pin for pin in kept.pins}
        self._instances = {(one.worker, one.id): one for one in kept.instances}
        self._instance = instance

    @property
    def kept(self) -> Kept:
        """What another sidecar finds."""
        used = {(one.registration.worker, one.registration.instance_id) for one in self._rows.values()}
        used |= {(pin.worker, pin.instance_id) for pin in self._pins.values()}
        instances = tuple(one for place, one in self._instances.items() if place in used)
        return Kept(instances, tuple(self._rows.values()), tuple(self._pins.values()))

    async def add(self, registration: Registration) -> None:
        await self._write()
        self._rows[registration.id] = KeptRegistration(registration, None)
        self._know(registration.worker, registration.instance_id)

    async def claim(self, registrations: Sequence[Registration], reason: "TeardownReason.ValueType | None") -> None:
        await self._write()
        for one in registrations:
            if one.id in self._rows:
                self._rows[one.id] = KeptRegistration(one, reason)

    async def unclaim(self, registrations: Sequence[Registration]) -> None:
        await self.claim(registrations, None)

    async def remove(self, registrations: Sequence[Registration]) -> None:
        await self._write()
        for one in registrations:
            self._rows.pop(one.id, None)

    async def pin(self, pins: Mapping[Pin, str | None]) -> None:
        await self._write()
        for (key, worker), instance_id in pins.items():
            self._pins.pop((key, worker), None)
            if instance_id is not None:
                self._pins[key, worker] = KeptPin(key, worker, instance_id)
                self._know(worker, instance_id)

    def _know(self, worker: str, instance_id: str) -> None:
        self._instances.setdefault((worker, instance_id), self._instance(worker, instance_id))

    async def _write(self) -> None:
        await asyncio.sleep(0)
        if self.is_dead:
            raise StoreUnavailable("The sidecar was killed.")


class Ran:
    """What became of cleanups: where they ran, and what was reported of them."""

    def __init__(self) -> None:
        self.acknowledged: set[str] = set()
        self.ran: Counter[str] = Counter()
        self.reported: set[str] = set()

    def fired(self, registration: Registration, reason: "TeardownReason.ValueType") -> None:
        self.reported.add(registration.id)

    def failed(self, registration: Registration, reason: "TeardownReason.ValueType", how: str) -> None:
        self.reported.add(registration.id)

    def lost(self, registration: Registration) -> None:
        self.reported.add(registration.id)

    def scope_ended(self, key: ScopeKey, by: Principal, ended: EndedScope) -> None:
        pass


class Actor(WorkerPeer):
    """A worker on one stream, which runs what it is told to at once; a slow one dies before it has said so."""

    def __init__(self, host: MemoryHost, ran: Ran, has: set[str]) -> None:
        super().__init__(MemoryLink(host._workers.attach), virtual=True)
        host._peers.append(self)
        self.ran, self.has, self.is_slow = ran, has, False
        self.saying: set[asyncio.Task[None]] = set()

    def received(self, frame: Frame) -> None:
        super().received(frame)
        if frame.HasField("run_teardown"):
            number = frame.run_teardown.registration_id
            self.ran.ran[number] += 1
            assert number in self.has, "it was told of what it does not have"
            self.has.discard(number)
            self._say(Frame(teardown_done=TeardownDone(registration_id=number)))
        elif frame.HasField("release"):
            self.has.discard(frame.release.registration_id)
        elif frame.HasField("invoke") and frame.invoke.context.HasField("cleanup_reason"):
            self.ran.ran[frame.invoke.context.tool_call_id] += 1
            outcome = Frame(call=frame.call)
            outcome.outcome.result.SetInParent()
            self._say(outcome)

    def _say(self, frame: Frame) -> None:
        async def say() -> None:
            try:
                await self.send(frame)
            except StreamLost:
                return

        if not self.is_slow:
            task = asyncio.ensure_future(say())
            self.saying.add(task)
            task.add_done_callback(self.saying.discard)


class Keeper:
    """A worker set of one instance at a time, and what that keeps."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.kept: set[str] = set()
        self.actor: Actor | None = None
        self.welcome: Welcome | None = None


class Story:
    """Sidecars one after another, and what happens to them and their workers."""

    def __init__(self) -> None:
        self.ran = Ran()
        self.keepers = {name: Keeper(name) for name in KEEPERS}
        self.helper: Actor | None = None
        self.numbers = 0
        self.over: list[asyncio.Future[object]] = []

    async def open(self, kept: Kept | None = None) -> None:
        """Another sidecar begins."""
        kept = kept or Kept()
        self.host = host = MemoryHost(SETUP)
        self.disk = Disk(kept, host.catalogue.kept)
        teardowns = host.pipeline.teardowns
        teardowns.firing.reports = self.ran
        teardowns.firing.store = self.disk
        teardowns.recover(kept)
        teardowns.pins = PinRecord(self.disk, host.counts)
        self.caller: CallerPeer = await host.caller()

    async def close(self) -> None:
        """The sidecar is killed: nothing of it is written any more, and nobody hears of it."""
        self.disk.is_dead = True
        self.host.pipeline.teardowns.firing.reports = None
        await self.host.aclose()
        for keeper in self.keepers.values():
            keeper.actor = None
        self.helper = None

    # --- steps

    async def restart(self) -> None:
        """The sidecar is killed; those that were attached to it come to the next one."""
        kept, helps = self.disk.kept, self.helper is not None
        attached = [name for name, keeper in self.keepers.items() if keeper.actor is not None]
        await self.close()
        await self.open(kept)
        for name in attached:
            await self.back(name)
        if helps:
            await self.help()

    async def attach(self, name: str) -> None:
        """A new process."""
        keeper = self.keepers[name]
        await self.lose(name)
        keeper.kept, keeper.welcome = set(), None
        await self.back(name)

    async def back(self, name: str) -> None:
        """The same process comes back, if it is away."""
        keeper = self.keepers[name]
        if keeper.actor is not None:
            return
        again = None
        if keeper.welcome is not None:
            again = Reattach(
                instance_id=keeper.welcome.instance_id,
                secret=keeper.welcome.reattach_secret,
                registrations=sorted(keeper.kept),
            )
        keeper.actor = Actor(self.host, self.ran, keeper.kept)
        keeper.welcome = await keeper.actor.hello(tool(name, holds=SESSION), worker=name, reattach=again)

    async def lose(self, name: str) -> None:
        keeper = self.keepers[name]
        if keeper.actor is not None:
            keeper.actor.cut()
            keeper.actor = None

    async def leave(self, name: str) -> None:
        keeper = self.keepers[name]
        if keeper.actor is not None:
            await keeper.actor.goodbye()
            await quiet()
            keeper.actor.cut()
            keeper.actor, keeper.kept, keeper.welcome = None, set(), None

    async def slow(self, name: str) -> None:
        actor = self.helper if name == HELPER else self.keepers[name].actor
        if actor is not None:
            actor.is_slow = not actor.is_slow

    async def die(self, name: str, session: str) -> None:
        """A worker is lost in the middle of the cleanups of a session."""
        actor = self.keepers[name].actor
        if actor is not None:
            actor.is_slow = True
            await self.end(session)
            await self.lose(name)

    async def overtake(self, name: str) -> None:
        """A worker is away for so long that others clean up, and comes back to another sidecar."""
        await self.lose(name)
        await self.wait(62.0)
        await self.restart()
        await self.back(name)

    async def help(self) -> None:
        """The worker of cleanup calls comes, or goes."""
        if self.helper is not None:
            self.helper.cut()
            self.helper = None
            return
        self.helper = Actor(self.host, self.ran, set())
        await self.helper.hello(tool("put"), worker=HELPER)

    async def keep(self, name: str, session: str, number: int, named: bool) -> None:  # drawn
        """A call of a session registers a cleanup, which may stand already."""
        await self.back(name)
        keeper, actor = self.keepers[name], self.keepers[name].actor
        assert actor is not None
        call = await self.caller.start(name, session_id=session)
        await quiet()
        if self.caller.outcomes(call):
            # What was held is lost, which is told once, or away with another instance.
            call = await self.caller.start(name, session_id=session)
            await quiet()
            if self.caller.outcomes(call):
                return
        run = (await actor.next_invoke()).call
        cleanup = CleanupCall(tool="put") if named else None
        reply = await actor.register(
            run, RegisterTeardown(request_id=1, scope=SESSION, name=f"{number}{named}", cleanup_call=cleanup)
        )
        self.ran.acknowledged.add(reply.teardown.registration_id)
        keeper.kept.add(reply.teardown.registration_id)
        await actor.result(run)
        await self.caller.outcome(call)

    async def end(self, session: str) -> None:
        request = EndScopeRequest(session_id=session)
        teardowns = self.host.pipeline.teardowns
        for key in [key for key in teardowns.registry._scopes if key.fact == request.session_id]:
            self.over.append(asyncio.ensure_future(teardowns.end(key, self.host.principal)))
        await quiet()

    async def wait(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def finish(self) -> None:
        """Everybody leaves, and there is time for all that follows."""
        if self.helper is None:
            await self.help()
        for name in KEEPERS:
            await self.lose(name)
        await self.wait(ENOUGH)
        kept = self.disk.kept
        await self.close()
        await asyncio.gather(*self.over, return_exceptions=True)
        assert not kept.registrations, "something waits for ever"
        assert not kept.pins
        twice = {number for number, times in self.ran.ran.items() if times > 1}
        assert not twice, "something ran twice"
        assert self.ran.acknowledged <= self.ran.reported, "something was forgotten"


STEPS: Mapping[str, tuple[int, Sequence[Sequence[object]]]] = {
    "keep": (9, (KEEPERS, "abc", range(3), (True, False))),
    "end": (2, ("abc",)),
    "lose": (1, (KEEPERS,)),
    "back": (2, (KEEPERS,)),
    "attach": (1, (KEEPERS,)),
    "leave": (1, (KEEPERS,)),
    "slow": (2, ((*KEEPERS, HELPER),)),
    "die": (2, (KEEPERS, "abc")),
    "overtake": (1, (KEEPERS,)),
    "help": (1, ()),
    "restart": (2, ()),
    "wait": (2, ((0.0, 1.0, 6.0, 30.0, 61.0, 101.0),)),
}
"""How often each comes, beside the others, and with what."""


def drawn(seed: int) -> list[tuple[str, list[object]]]:
    """The steps of one story. Each is as likely wherever it stands, which drawing them one by one would not give."""
    draw = random.Random(seed)  # noqa: S311  # no secret
    names = draw.choices(list(STEPS), [weight for weight, _ in STEPS.values()], k=draw.randint(10, 40))
    return [(name, [draw.choice(choices) for choices in STEPS[name][1]]) for name in names]


@given(st.integers(0, 2**32))
@settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
def check(seed: int) -> None:
    steps = drawn(seed)

    async def run() -> None:
        story = Story()
        await story.open()
        for name in KEEPERS:
            await story.attach(name)
        await story.help()
        for what, arguments in steps:
            act: Callable[..., Awaitable[None]] = getattr(story, what)
            await act(*arguments)
            await quiet()
        await story.finish()

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(run())


def test_every_cleanup_runs_once_at_most_and_none_is_forgotten() -> None:
    check()
