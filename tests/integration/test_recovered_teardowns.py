"""Guarantee 16 for teardowns: what was acknowledged is kept, and what was claimed before a crash runs once at most."""

import asyncio

import pytest

from sidecar._gen.pillion.v1.context_pb2 import TeardownReason, TeardownScope
from sidecar._gen.pillion.v1.execute_pb2 import EndScopeRequest
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind
from sidecar._gen.pillion.v1.worker_pb2 import Reattach, RegisterTeardown
from sidecar.scope import (
    Address,
    CleanupCall,
    Kept,
    KeptInstance,
    KeptPin,
    KeptRegistration,
    Owner,
    Registration,
    ScopeKey,
    digest_of_secret,
)
from tests.support import (
    MemoryHost,
    ScopeLimits,
    StartHost,
    WorkerPeer,
    attach,
    end_scope,
    quiet,
    tool,
)
from tests.support.slow_store import SlowStore

SESSION = TeardownScope.TEARDOWN_SCOPE_SESSION
IDLE = TeardownReason.TEARDOWN_REASON_IDLE
SESSION_END = TeardownReason.TEARDOWN_REASON_SESSION_END
WORKER_LOST = TeardownReason.TEARDOWN_REASON_WORKER_LOST
SESSION_LOST = FailureKind.FAILURE_KIND_SESSION_LOST
WINDOW = 60
S = EndScopeRequest(session_id="s")


class Left:
    """What an earlier sidecar has left of one instance, and the way to come back as that."""

    def __init__(self, host: MemoryHost, *, returns: bool = True) -> None:
        self.host = host
        self.instance = KeptInstance("main", "ins_left", digest_of_secret("secret"), returns)
        self._kept: list[KeptRegistration] = []
        self._pins: list[KeptPin] = []

    def _key(self, session: str) -> ScopeKey:
        return ScopeKey(SESSION, Owner(None, f"caller:{self.host.principal.name}"), session)

    def cleanup(
        self, number: str, reason: "TeardownReason.ValueType | None" = None, *, session: str = "s", named: bool = True
    ) -> str:
        """A cleanup, claimed where there is a reason; answers its id."""
        cleanup = CleanupCall("put", b"{}", self.host.principal) if named else None
        address = Address(self._key(session), self.instance.id, "echo", number)
        registration = Registration(f"reg_{number}", address, self.instance.worker, None, cleanup)
        self._kept.append(KeptRegistration(registration, reason))
        return registration.id

    def pin(self, session: str) -> None:
        """A session that is pinned to the instance."""
        self._pins.append(KeptPin(self._key(session), self.instance.worker, self.instance.id))

    def recover(self) -> None:
        """The sidecar begins with it."""
        self.host.pipeline.teardowns.recover(Kept((self.instance,), tuple(self._kept), tuple(self._pins)))

    async def back(self, *listed: str, holds: bool = False) -> WorkerPeer:
        """The instance is back, and lists these."""
        worker = await self.host.worker()
        again = Reattach(instance_id=self.instance.id, secret="secret", registrations=listed)
        kind = tool("echo", holds=SESSION) if holds else tool("echo")
        assert (await worker.hello(kind, reattach=again)).instance_id == self.instance.id
        return worker


@pytest.fixture
def left(memory_host: MemoryHost) -> Left:
    return Left(memory_host)


async def test_guarantee_16_a_registration_is_acknowledged_once_it_is_synced(memory_host: MemoryHost) -> None:
    memory_host.pipeline.teardowns.firing.store = store = SlowStore()
    worker, caller = await attach(memory_host), await memory_host.caller()
    call = await caller.start("echo", session_id="s")
    run = (await worker.next_invoke()).call
    await worker.send(Frame(call=run, register_teardown=RegisterTeardown(request_id=1, scope=SESSION)))
    await quiet()
    told = worker.bodies(run), caller.bodies(call)
    store.go_on()
    assert told == (["invoke"], []), "what is not synced is not acknowledged"
    assert len(store.kept) == 1
    assert (await worker.next_of("reply", run)).reply.HasField("teardown")
    await worker.result(run)


async def test_guarantee_16_what_may_have_run_before_a_crash_is_run_by_nobody_else(left: Left) -> None:
    left.cleanup("told", SESSION_END)
    stood_in = left.cleanup("stood_in", WORKER_LOST)
    left.recover()
    other = await attach(left.host, tool("put"))
    # Nor by the instance, where its cleanup call may have run.
    worker = await left.back(stood_in)
    assert (await worker.next_of("release")).release.registration_id == stood_in
    await asyncio.sleep(1_000)
    assert worker.teardowns() == []
    assert other.invoked == []
    counts = left.host.counts.snapshot()
    assert (counts["lost_teardowns"], counts["failed_teardowns"]) == (1, 1)


async def test_guarantee_16_what_was_claimed_and_does_not_come_back_is_reported(left: Left) -> None:
    left.cleanup("told", SESSION_END)
    left.cleanup("idle", IDLE)
    left.recover()
    other = await attach(left.host, tool("put"))
    await asyncio.sleep(WINDOW - 1)
    assert "lost_teardowns" not in left.host.counts.snapshot()
    await asyncio.sleep(2)
    assert left.host.counts.snapshot()["lost_teardowns"] == 2
    assert other.invoked == []


async def test_what_was_claimed_and_is_still_there_fires_newest_first(left: Left) -> None:
    ids = [left.cleanup(str(number), SESSION_END) for number in range(3)]
    left.recover()
    worker = await left.back(*ids)
    for registration in ids[::-1]:
        fired = await worker.next_teardown()
        assert (fired.registration_id, fired.reason) == (registration, SESSION_END)
        await worker.torn_down(registration)
    await quiet()
    assert "release" not in worker.bodies()


async def test_what_ends_before_its_instance_is_back_fires_then(left: Left) -> None:
    old, new = left.cleanup("old"), left.cleanup("new", session="t")
    left.recover()
    assert (await end_scope(left.host, S)).failed == 1
    worker = await left.back(old, new)
    assert (await worker.next_teardown()).registration_id == old
    await worker.torn_down(old)
    await quiet()
    assert len(worker.teardowns()) == 1


async def test_what_the_sidecar_had_started_itself_is_not_waited_for(memory_host: MemoryHost) -> None:
    left = Left(memory_host, returns=False)
    left.cleanup("named")
    left.cleanup("unnamed", named=False)
    left.recover()
    other = await attach(memory_host, tool("put"))
    assert (await other.next_invoke()).context.cleanup_reason == WORKER_LOST
    assert memory_host.counts.snapshot()["lost_teardowns"] == 1


async def test_time_without_a_sidecar_is_no_idle_time(start_host: StartHost) -> None:
    host = await start_host(scopes=ScopeLimits(idle=30))
    assert isinstance(host, MemoryHost)
    left = Left(host)
    registration = left.cleanup("one")
    left.recover()
    worker = await left.back(registration)
    await asyncio.sleep(29)
    assert worker.teardowns() == []
    assert (await worker.next_teardown()).reason == IDLE


async def test_a_pin_whose_instance_is_gone_is_told_once(left: Left) -> None:
    left.pin("s")
    left.pin("t")
    left.recover()
    worker, caller = await left.back(holds=True), await left.host.caller()
    call = await caller.start("echo", session_id="s")
    await worker.result((await worker.next_invoke()).call)
    await caller.outcome(call)
    await worker.goodbye()
    await worker.end()
    other = await attach(left.host, tool("echo", holds=SESSION))
    assert (await caller.call("echo", session_id="t")).failure.kind == SESSION_LOST
    await caller.start("echo", session_id="t")
    assert (await other.next_invoke()).context.session_id == "t"
