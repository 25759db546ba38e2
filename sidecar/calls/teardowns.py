"""What running tools keep for the ends of scopes, and those ends."""

import asyncio
import logging
import secrets
from collections.abc import Callable, Container, Coroutine, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from sidecar._gen.pillion.v1.context_pb2 import CancelReason, TeardownReason, TeardownScope
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outbound_pb2 import ReplyErrorCode
from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind
from sidecar._gen.pillion.v1.worker_pb2 import RegisterTeardown
from sidecar.calls.cleanup import CleanupCalls
from sidecar.calls.firing import Claimed, Firing, scope_name
from sidecar.calls.outbound import refused
from sidecar.calls.outcome import Refusal
from sidecar.calls.paused import Pause
from sidecar.calls.pinning import PinRecord
from sidecar.calls.ports import EndedScope, Keepers
from sidecar.calls.registrations import registration_of, scope_ending, too_many
from sidecar.calls.stores import StoreUnavailable
from sidecar.calls.tasks import Tasks
from sidecar.scope import (
    LASTING,
    Kept,
    Owner,
    Principal,
    Registration,
    Registry,
    ScopeEnding,
    ScopeKey,
    ScopeLimits,
    call_scope,
)

if TYPE_CHECKING:
    from sidecar.calls.call import Call
    from sidecar.calls.pipeline import Pipeline

_log = logging.getLogger(__name__)

_CALL = TeardownScope.TEARDOWN_SCOPE_CALL
_RUN = TeardownScope.TEARDOWN_SCOPE_RUN
_SESSION = TeardownScope.TEARDOWN_SCOPE_SESSION
_WORKER_LOST = TeardownReason.TEARDOWN_REASON_WORKER_LOST
_ENDS = {_RUN: TeardownReason.TEARDOWN_REASON_RUN_END, _SESSION: TeardownReason.TEARDOWN_REASON_SESSION_END}
_RETRY_AFTER = 1.0
_SLACK = 1.0
_LEAST_WAIT = 0.01
_SECRET_BYTES = 32

ScopeHook: TypeAlias = Callable[[ScopeKey], Coroutine[Any, Any, int]]


class Teardowns:
    """Registers cleanups, and has each fire at most once: when its scope ends, grows cold, or has to give way."""

    def __init__(self, pipeline: "Pipeline", keepers: Keepers, limits: ScopeLimits) -> None:
        self.secret = secrets.token_bytes(_SECRET_BYTES)
        """What digests of keys are made with; another one makes other digests."""
        self.registry = Registry(idle_after=limits.idle, most_live=limits.live, clock=pipeline.loop.time)
        self.firing = Firing(keepers, pipeline.limits.teardown_grace, pipeline.counters)
        self.at_scope_end: list[ScopeHook] = []
        """Who ends what of a scope is not running, such as calls that are paused; each answers how many it ended."""
        self.registry.repinned = self._repinned
        self.firing.stand_in = self._stand_in
        self.pins: PinRecord | None = None
        """Who has the store know of pins; `None`: nobody."""
        self.cleanups = CleanupCalls(pipeline, self.firing, limits.cleanup_patience)
        self._pipeline = pipeline
        self._keepers = keepers
        self._limits = limits
        self._adding: dict[str, asyncio.Future[None]] = {}
        """By id, the registrations that are not acknowledged yet: nothing of them fires."""
        self._of_calls: set[ScopeKey] = set()
        """The calls that are to fire something when they end."""
        self._endings: dict[ScopeKey, asyncio.Task[EndedScope]] = {}
        self._emptied: dict[ScopeKey, asyncio.Future[None]] = {}
        """Scopes that are being ended, while they wait for their calls."""
        self._idle_timer: asyncio.TimerHandle | None = None
        self._tasks = Tasks(pipeline.counters)

    # --- calls

    def enter(self, call: "Call") -> None:
        """A call with a run or a session is in them until it ends.

        :raises Refusal: if one of them is being ended.
        """
        if call.run_id and call.scope is not None:
            call.run_of = self.registry.run_of(call.scope.owner, call.run_id)
        entered = call.lasting_scopes()
        try:
            self.hold(entered)
        except ScopeEnding:
            raise Refusal(
                FailureKind.FAILURE_KIND_UNAVAILABLE,
                "The run or session of this call is being ended; one of the same id begins when it has.",
                retryable=True,
                retry_after=_RETRY_AFTER,
            ) from None
        call.at_end(partial(self.leave, entered))

    def leave(self, keys: Iterable[ScopeKey]) -> None:
        """Whatever was in these scopes is over."""
        for key in keys:
            self.registry.leave(key)
            emptied = self._emptied.get(key)
            if emptied is not None and not emptied.done() and not self.registry.busy(key):
                emptied.set_result(None)
            self._evict_surplus(key)
        self._watch_idle()

    def end_call(self, call: "Call") -> "asyncio.Task[int] | None":
        """Fires what is kept for a call's end; done when all of it has run or its time is up. `None`: nothing is."""
        claimed = []
        if call.kept_for is not None:
            self._of_calls.discard(call.kept_for)
            claimed += self.registry.claim(call.kept_for)
        if call.paused_inner and call.scope is not None:
            claimed += self._claim_paused(call.scope.owner, call.paused_inner)
        return (
            self._tasks.start(self.firing.fire(claimed, TeardownReason.TEARDOWN_REASON_CALL_END)) if claimed else None
        )

    def pause_call(self, call: "Call") -> None:
        """A call has paused: what is kept for its end stays, though it does not run."""
        if call.kept_for is not None:
            self._of_calls.discard(call.kept_for)

    def resume_call(self, call: "Call") -> None:
        """A call goes on that had paused."""
        if call.kept_for is not None and self.registry.kept_for(call.kept_for):
            self._of_calls.add(call.kept_for)

    async def store_paused(self, owner: Owner, pause: Pause) -> None:
        """Has what is kept for the end of a call that pauses outlast the sidecar. Synced on return.

        :raises StoreUnavailable: if it cannot be stored.
        """
        for execution_id in pause.execution_ids():
            for registration in self.registry.kept_for(call_scope(owner, execution_id)):
                if not registration.is_stored:
                    registration.is_stored = True
                    await self.firing.store.add(registration)

    def kept_for_paused(self) -> bool:
        """Whether anything is kept for the end of a call that an earlier sidecar ran."""
        return any(key.kind == _CALL for key in self.registry.scopes())

    def end_others(self, paused: Container[str]) -> None:
        """Fires what is kept for the ends of calls that an earlier sidecar ran, but for those that are paused still."""
        for key in self.registry.scopes():
            if key.kind == _CALL and key.fact not in paused:
                self._fire(self.registry.claim(key), TeardownReason.TEARDOWN_REASON_CALL_END)

    def end_paused(self, owner: Owner, pause: Pause) -> None:
        """Fires what was kept for the end of a call that had paused, which nobody resumes any more."""
        self._fire(self._claim_paused(owner, (pause,)), TeardownReason.TEARDOWN_REASON_CALL_END)

    def hold(self, keys: Iterable[ScopeKey]) -> None:
        """A paused call is in these scopes until `leave`.

        :raises ScopeEnding: if one of them is being ended; it is in none of them then.
        """
        entered: list[ScopeKey] = []
        try:
            for key in keys:
                self.registry.enter(key)
                entered.append(key)
        except ScopeEnding:
            self.leave(entered)
            raise

    def _claim_paused(self, owner: Owner, pauses: Iterable[Pause]) -> list[Registration]:
        claimed: list[Registration] = []
        for pause in pauses:
            for execution_id in pause.execution_ids():
                claimed += self.registry.claim(call_scope(owner, execution_id))
        return claimed

    # --- registrations

    def register(self, call: "Call", asked: RegisterTeardown) -> Frame | Coroutine[Any, Any, Frame]:
        """Answers a running tool's registration."""
        number = asked.request_id
        registration = registration_of(call, asked, self._limits)
        if isinstance(registration, Frame):
            return registration
        if registration.key.kind != _CALL:
            return self._keep(call, number, registration)
        # Not stored: it is over before the call is.
        answer = self._stand(number, registration)
        if isinstance(answer, Frame):
            return answer
        call.kept_for = registration.key
        self._of_calls.add(registration.key)
        return self._accept(call, number, *answer)

    async def _keep(self, call: "Call", number: int, registration: Registration) -> Frame:
        """Registers what outlasts its call: stored before it is acknowledged."""
        while (standing := self.registry.standing(registration.address)) is not None and standing.id in self._adding:
            # Whether that one comes to stand decides whether this one is the first.
            await asyncio.wait((self._adding[standing.id],))
        answer = self._stand(number, registration)
        if isinstance(answer, Frame):
            return answer
        stands, is_reused = answer
        if is_reused:
            return self._accept(call, number, stands, is_reused)
        added = self._adding[registration.id] = self._pipeline.loop.create_future()
        try:
            await self.firing.store.add(registration)
        except StoreUnavailable:
            _log.exception("a registration could not be stored")
            self.registry.claim_one(registration)
            return refused(
                number,
                ReplyErrorCode.REPLY_ERROR_CODE_OVERLOADED,
                "What is kept for a later end cannot be stored just now; try again, or register for the call.",
                retry_after=_RETRY_AFTER,
            )
        except BaseException:
            # Its call is over, so nobody will learn its id.
            self.registry.claim_one(registration)
            self._tasks.begin(self.firing.forget((registration,)))
            raise
        finally:
            del self._adding[registration.id]
            added.set_result(None)
        if self.registry.find(registration.id) is None:
            # Its scope ended meanwhile, when the tool had no answer yet and so had nothing to run.
            self._tasks.begin(self.firing.forget((registration,)))
            return scope_ending(number)
        return self._accept(call, number, registration, is_reused=False)

    def _stand(self, number: int, registration: Registration) -> Frame | tuple[Registration, bool]:
        """Has a registration stand, or the one that stands already; or says why it cannot."""
        registry, limits = self.registry, self._limits
        key = registration.key
        if registry.standing(registration.address) is None:
            if len(registry.kept_by(registration.instance_id)) >= limits.registrations_per_instance:
                return too_many(number, limits.registrations_per_instance, "of this instance")
            if len(registry.kept_for(key)) >= limits.registrations_per_scope:
                return too_many(number, limits.registrations_per_scope, f"for the scope {scope_name(key.kind)}")
        try:
            return registry.register(registration)
        except ScopeEnding:
            return scope_ending(number)

    def _accept(self, call: "Call", number: int, registration: Registration, is_reused: bool) -> Frame:  # noqa: FBT001  # as the registry answers it
        self._pipeline.counters.add("reused_registrations" if is_reused else "registrations")
        told = Frame()
        registered = told.teardown_registered
        registered.scope = registration.key.kind
        registered.key_digest = registration.key.digest(self.secret)
        if registration.label is not None:
            registered.label = registration.label
        registered.reused = is_reused
        call.registered(told)
        if not is_reused:
            self._evict_surplus(registration.key)
        answer = Frame()
        answer.reply.request_id = number
        accepted = answer.reply.teardown
        accepted.registration_id = registration.id
        accepted.reused = is_reused
        accepted.count = registration.count
        return answer

    # --- ends

    async def end(self, key: ScopeKey, by: Principal) -> EndedScope:
        """Ends a run or session: cancels its calls and waits for them, then fires what is kept for it.

        While it ends it takes no new calls; afterwards one of the same id is a new one. Ends once, also where several
        ask at once, and also where who asked goes away.
        """
        key = self.registry.resolved(key)
        ending = self._endings.get(key)
        if ending is not None:
            await asyncio.wait((ending,))
            return EndedScope()
        if not self.registry.is_live(key):
            return EndedScope()
        self.registry.begin_end(key)
        task = self._endings[key] = self._tasks.start(self._end(key, by))
        return await asyncio.shield(task)

    async def _end(self, key: ScopeKey, by: Principal) -> EndedScope:
        pipeline, registry = self._pipeline, self.registry
        try:
            cancelled = 0
            if registry.busy(key):
                for call in tuple(pipeline.running):
                    if call.parent is None and key in call.lasting_scopes():
                        call.cancel(CancelReason.CANCEL_REASON_SCOPE_ENDED)
                        cancelled += 1
            for hook in self.at_scope_end:
                cancelled += await hook(key)
            if registry.busy(key):
                emptied = self._emptied[key] = pipeline.loop.create_future()
                limits = pipeline.limits
                # Each of them is decided by then.
                await asyncio.wait((emptied,), timeout=limits.cancel_grace + limits.teardown_grace + _SLACK)
                del self._emptied[key]
            claimed = self._claimed(registry.claim(key))
            failed = await self.firing.fire(claimed, _ENDS[key.kind])
        finally:
            registry.end(key)
            del self._endings[key]
        pipeline.counters.add("ended_scopes")
        ended = EndedScope(len(claimed), failed, cancelled)
        if self.firing.reports is not None:
            self.firing.reports.scope_ended(key, by, ended)
        return ended

    async def end_all(self) -> None:
        """Fires everything, because the sidecar stops; returns when all of it, and what fired before, is over.

        What is owed by instances that are away is lost if it is in no store.
        """
        self._fire(self.registry.claim_all(), TeardownReason.TEARDOWN_REASON_SHUTDOWN)
        await self.settled()
        for claimed in self.firing.take_unstored():
            self.firing.lost(claimed.registration)

    async def settled(self) -> None:
        """Returns when nothing fires any more."""
        await self._tasks.settled()
        if self.pins is not None:
            await self.pins.settled()

    def close(self) -> None:
        """Drops the timer, and begins nothing any more, at the end of the sidecar."""
        self.cleanups.is_stopping = True
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None

    def _evict_surplus(self, key: ScopeKey) -> None:
        claimed = self.registry.claim_surplus(key)
        if claimed:
            self._pipeline.counters.add("evicted_scopes", len({one.key for one in claimed}))
            self._fire(claimed, TeardownReason.TEARDOWN_REASON_EVICTED)

    def _watch_idle(self) -> None:
        """Has the timer come when a scope may be idle; there is none while none can be."""
        if self._idle_timer is None and (idle_in := self.registry.idle_in()) is not None:
            # A timer that came a hair too early would else come again at once, and again.
            self._idle_timer = self._pipeline.loop.call_later(max(idle_in, _LEAST_WAIT), self._sweep)

    def _sweep(self) -> None:
        self._idle_timer = None
        claimed = self.registry.claim_idle()
        if claimed:
            self._pipeline.counters.add("idle_scopes", len({one.key for one in claimed}))
            self._fire(claimed, TeardownReason.TEARDOWN_REASON_IDLE)
        self._watch_idle()

    # --- instances

    def keeps(self, instance_id: str) -> bool:
        """Whether an instance keeps any cleanup, or is to run one."""
        return self.firing.is_open(instance_id) or bool(self.registry.kept_by(instance_id))

    def holds(self, instance_id: str) -> bool:
        """Whether a scope is pinned to an instance."""
        return bool(self.registry.pins_to(instance_id))

    def outlasts(self, instance_id: str) -> bool:
        """Whether an instance keeps or holds something for a run, a session or a paused call."""
        return self.holds(instance_id) or any(
            one.key.kind in LASTING or (one.key.kind == _CALL and one.key not in self._of_calls)
            for one in self.registry.kept_by(instance_id)
        )

    def evict(self, instance_id: str) -> bool:
        """Fires what an instance keeps that is about to leave, but for what its running calls do when they end.

        Answers whether there was anything.
        """
        claimed = [one for one in reversed(self.registry.kept_by(instance_id)) if one.key not in self._of_calls]
        claimed = [one for one in claimed if self.registry.claim_one(one)]
        if claimed:
            self._fire(claimed, TeardownReason.TEARDOWN_REASON_EVICTED)
        return bool(claimed)

    def returned(self, instance_id: str, listed: Sequence[str]) -> list[str]:
        """An instance is back, and still has these registrations. Answers those that are not wanted any more.

        What ended while it was away fires now. What it does not list is gone there, which is reported.
        """
        still = set(listed)
        owed = self.firing.take_open(instance_id)
        kept = {one.id: one for one in self.registry.kept_by(instance_id) if one.id not in self._adding}
        by_reason: dict[TeardownReason.ValueType, list[Registration]] = {}
        for one in owed:
            if one.registration.id in still:
                by_reason.setdefault(one.reason, []).append(one.registration)
            else:
                self.firing.failed(one.registration, one.reason, "unknown", "its instance came back without it")
        for reason, claimed in by_reason.items():
            self._tasks.begin(self.firing.fire(claimed, reason))
        gone = [one.registration for one in owed if one.registration.id not in still]
        self._lose(
            Claimed(one, _WORKER_LOST)
            for number, one in kept.items()
            if number not in still and self.registry.claim_one(one)
        )
        self._tasks.begin(self.firing.forget(gone))
        known = kept.keys() | {one.registration.id for one in owed}
        return [number for number in listed if number not in known]

    def lost(self, instance_id: str) -> None:
        """An instance is gone for good. Cleanup calls stand in for what it kept, and the rest is reported."""
        self._lose(self.firing.take_open(instance_id))
        self._lose(Claimed(one, _WORKER_LOST) for one in self._claimed(self.registry.claim_instance(instance_id)))

    def recover(self, kept: Kept) -> None:
        """Takes over what an earlier sidecar has left, before anything else is kept."""
        gone = [instance.id for instance in kept.instances if not self._keepers.expect(instance)]
        for pin in kept.pins:
            self.registry.pin(*pin)
        stood_in: list[Registration] = []
        for registration, reason in kept.registrations:
            if reason is None:
                self.registry.register(registration)
        for registration, reason in reversed(kept.registrations):
            if reason == _WORKER_LOST:
                # Its cleanup call was made, or was about to be, and is not made twice.
                stood_in.append(registration)
                self.firing.lost(registration)
            elif reason is not None:
                self.firing.reopen(Claimed(registration, reason))
        self._tasks.begin(self.firing.forget(stood_in))
        for instance_id in gone:
            self.lost(instance_id)
        self._watch_idle()

    def _lose(self, claimed: Iterable[Claimed]) -> None:
        over = [one.registration for one in claimed if self.firing.give_up(one)]
        if over:
            self._tasks.begin(self.firing.forget(over))

    def _stand_in(self, registration: Registration, reason: "TeardownReason.ValueType") -> None:
        self._tasks.begin(self.cleanups.stand_in(registration, reason))

    def _repinned(self, key: ScopeKey, worker: str, before: str | None, after: str | None) -> None:
        if before is not None and not self.registry.pins_to(before):
            # Later: what is claimed right now is not to be claimed for another reason.
            self._pipeline.loop.call_soon(self._keepers.relieved, worker, before)
        if self.pins is not None:
            self.pins.changed(key, worker, after)

    # --- parts of the above

    def _claimed(self, registrations: Sequence[Registration]) -> list[Registration]:
        """Those of them whose tools know their ids."""
        return [one for one in registrations if one.id not in self._adding]

    def _fire(self, claimed: Sequence[Registration], reason: "TeardownReason.ValueType") -> None:
        self._tasks.begin(self.firing.fire(self._claimed(claimed), reason))
