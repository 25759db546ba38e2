"""Detached calls: those that run, and those that ended and can still be followed."""

import asyncio
import logging
from collections.abc import Callable
from time import time_ns
from typing import TYPE_CHECKING

from sidecar._gen.pillion.v1.call_pb2 import Follow, Start
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind
from sidecar._gen.pillion.v1.tool_pb2 import Effects
from sidecar.calls import causes
from sidecar.calls.detached_call import DetachedCall, Following
from sidecar.calls.limits import KIB
from sidecar.calls.outcome import Refusal, failed
from sidecar.calls.ports import DetachedAudit, Follower, FollowerLane, Sink
from sidecar.calls.replay import BEHIND_STARTED, KeptFrames, lost_between
from sidecar.calls.stores import DetachedEntry, DetachedStore, StoreFull, StoreUnavailable
from sidecar.calls.tasks import Tasks
from sidecar.calls.tickets import digest_of, new_ticket
from sidecar.scope import Owner, Scope

if TYPE_CHECKING:
    from sidecar.calls.call import Call
    from sidecar.calls.pipeline import Pipeline

_log = logging.getLogger(__name__)

_UNSAFE = Effects.EFFECTS_UNSAFE
_RETRY_AFTER = 1.0
_NO_PLACE = ""
"""Policy looks at owners, and not at the places that they store things in."""
_MOST_COUNTED = 2**32 - 1
_BESIDE = 4 * KIB
"""What one that ended has in memory beside its frames and its outcome, at most."""


class Detached:
    """Starts detached calls, and has them followed.

    A call is recorded before its caller is told of its ticket, and its outcome before anybody is told of that. What is
    kept of it in memory goes when its time is over, or earlier where too much is kept; its entry in the store alone
    then says how it ended.
    """

    def __init__(self, pipeline: "Pipeline", store: DetachedStore, audit: DetachedAudit) -> None:
        self._pipeline = pipeline
        self._store = store
        self._audit = audit
        self._calls: dict[bytes, DetachedCall] = {}
        self._ended: dict[bytes, DetachedCall] = {}
        """Those of them that ended, the one that did so first in front."""
        self._bytes = 0
        self._tasks = Tasks(pipeline.counters)
        self._is_sweeping = False

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def kept_bytes(self) -> int:
        """What the kept frames and outcomes have in memory."""
        return self._bytes

    async def settled(self) -> None:
        """Waits until everything that is being recorded is recorded, and told."""
        await self._tasks.settled()

    async def recover(self) -> None:
        """Ends the calls that ran when the sidecar was killed. To be called once, before anything else.

        Where the store cannot be written just now the next start ends them; who follows one before is told the same.
        """
        try:
            lost = await self._store.end_lost(_lost_outcome, self._pipeline.limits.detach_retention)
        except StoreUnavailable:
            _log.exception("the detached calls that ran when the sidecar was killed could not be ended")
            return
        for entry in lost:
            self._pipeline.counters.add("lost_detached_calls")
            self._audit.lost_detached(Frame.FromString(entry.started).started.execution_id, entry.tool)
        if lost:
            _log.warning("%d detached calls ran when the sidecar was killed, and ended with that", len(lost))

    def count(self, what: str) -> None:
        """Counts something."""
        self._pipeline.counters.add(what)

    # --- the beginning

    def start(self, start: Start, follower: Follower, lane: FollowerLane, refusals: Sink) -> Following:
        """Starts a call, which its caller follows by this lane of its stream. It may be over on return."""
        pipeline = self._pipeline
        limits = pipeline.limits
        following = Following(pipeline, follower, lane, refusals)
        kept = KeptFrames(limits.detached_frames, limits.detached_bytes)
        # The call counts itself in.
        detached = DetachedCall(self, follower.principal, follower.in_flight - 1, kept)
        detached.start(following)
        self.count("detached_calls")
        call = pipeline.start(start, detached, detached)
        if not call.done:
            following.begin(detached)
            detached.runs(call)
        return following

    def open(self, call: "Call", go_on: Callable[[], None]) -> None:
        """Records a call, so that it can be followed, and then has it go on through the gates."""
        detached = call.caller
        if not isinstance(detached, DetachedCall) or call.scope is None:
            raise TypeError("only a call that was started here is detachable")
        if detached.entry is not None:
            go_on()
            return
        call.hold()
        effects = _UNSAFE if call.tool is None else call.tool.effects
        started = call.started_frame()
        started.sequence, started.time_unix_nano = 1, time_ns()
        entry = DetachedEntry(
            owner=call.scope.owner,
            principal=detached.principal.name,
            tool=call.tool_name,
            key=call.key,
            effects=effects,
            started=started.SerializeToString(),
            outcome=None,
        )
        self._tasks.begin(self._open(call, detached, entry, go_on))

    async def _open(
        self, call: "Call", detached: DetachedCall, entry: DetachedEntry, go_on: Callable[[], None]
    ) -> None:
        ticket = new_ticket()
        digest = digest_of(ticket)
        most = self._pipeline.limits.detached_per_subject
        try:
            await self._store.begin(entry.owner, digest, entry, most)
        except StoreFull:
            call.refused(_too_many(most).failure)
            return
        except StoreUnavailable:
            _log.exception("a detached call could not be recorded")
            call.refused(_unavailable().failure)
            return
        except Exception:
            _log.exception("a detached call could not be recorded, and was refused")
            self.count("internal_errors")
            call.refused(_internal().failure)
            return
        if call.done:
            await self._forget(entry.owner, digest)
            return
        detached.open(ticket, digest, entry)
        self._calls[digest] = detached
        if call.key is None:
            # With a key it is told as soon as it is known whether it joins another.
            call.tell_started()
        self._pipeline.gate(call, go_on)

    async def _forget(self, owner: Owner, digest: bytes) -> None:
        try:
            await self._store.forget(owner, digest)
        except StoreUnavailable:
            # Nobody has its ticket, and the next start ends it.
            _log.exception("a detached call that was not run could not be forgotten")

    # --- followers

    def follow(self, request: Follow, follower: Follower, lane: FollowerLane, refusals: Sink) -> Following:
        """Has a caller follow the call of a ticket by this lane of its stream. It may be over on return.

        Each ticket that is not this caller's to use gets the same answer, after the same search.
        """
        following = Following(self._pipeline, follower, lane, refusals)
        digest = digest_of(request.ticket)
        detached = self._calls.get(digest)
        if detached is not None and detached.entry is not None and detached.principal == follower.principal:
            if self._admits(following, detached.entry):
                detached.follow(following, request.from_sequence)
        else:
            self._tasks.begin(self._look_up(digest, request.from_sequence, following))
        return following

    async def _look_up(self, digest: bytes, sequence: int, following: Following) -> None:
        """Has a call followed of which the store alone knows."""
        try:
            entry = await self._store.find(following.follower.principal.name, digest)
        except StoreUnavailable:
            _log.exception("a ticket could not be looked up")
            following.refuse(_unavailable())
            return
        except Exception:
            _log.exception("a ticket could not be looked up")
            self.count("internal_errors")
            following.refuse(_internal())
            return
        if following.is_over:
            return
        if entry is None:
            self.count("invalid_tickets")
            following.refuse(_invalid())
        elif self._admits(following, entry):
            self._replay(entry, sequence, following)

    def _admits(self, following: Following, entry: DetachedEntry) -> bool:
        """Whether a call is to be followed there; else that was said why."""
        pipeline, follower = self._pipeline, following.follower
        try:
            pipeline.check_policy(follower.principal, Scope(entry.owner, _NO_PLACE), entry.tool)
            if (crowd := pipeline.crowd_of(follower)) is not None:
                raise crowd
        except Refusal as refusal:
            following.refuse(refusal)
            return False
        self.count("followed_calls")
        self._audit.followed(follower.principal, Frame.FromString(entry.started).started.execution_id)
        return True

    def _replay(self, entry: DetachedEntry, sequence: int, following: Following) -> None:
        """Sends what the store has of a call: how it began, and how it ended."""
        following.lane.replay(Frame.FromString(entry.started))
        frame = Frame.FromString(_lost_outcome(entry) if entry.outcome is None else entry.outcome)
        if self._pipeline.pauses is not None:
            self._pipeline.pauses.tickets.unseal(frame.outcome)
        reports, frame.coalesced = frame.coalesced, 0
        if not frame.sequence:
            # Nobody knows what was sent before it.
            frame.sequence = max(sequence, BEHIND_STARTED)
        frame.coalesced = lost_between(sequence, frame.sequence, reports)
        following.end(frame, entry.effects)

    # --- the end

    def ended(self, detached: DetachedCall, frame: Frame) -> None:
        """The outcome is known: records it, and then has it told. One that has no ticket needs no record."""
        outcome = frame.SerializeToString()
        detached.tells_by = self._pipeline.loop.time() + self._pipeline.limits.teardown_grace
        if detached.running is not None:
            # The record of its key, say, may have taken its time already.
            detached.tells_by = min(detached.tells_by, detached.running.ends_by)
        if detached.entry is None:
            detached.tell(outcome)
        else:
            # Whoever follows it when the frames are gone is told how many there were.
            frame.coalesced = min(detached.kept.reports, _MOST_COUNTED)
            self._tasks.begin(self._record(detached, detached.entry.owner, outcome, self._sealed(frame)))

    def _sealed(self, frame: Frame) -> bytes:
        """An outcome as it is recorded: a ticket to resume by is not."""
        pauses = self._pipeline.pauses
        if pauses is None or not frame.outcome.HasField("paused"):
            return frame.SerializeToString()
        sealed = Frame()
        sealed.CopyFrom(frame)
        sealed.outcome.CopyFrom(pauses.tickets.sealed(frame.outcome))
        return sealed.SerializeToString()

    async def _record(self, detached: DetachedCall, owner: Owner, outcome: bytes, recorded: bytes) -> None:
        retention, digest = self._pipeline.limits.detach_retention, detached.digest
        try:
            async with asyncio.timeout_at(detached.tells_by):
                await self._store.finish(owner, digest, detached.started, recorded, retention)
        except Exception as error:
            # It is told all the same.
            _log.exception("the outcome of a detached call could not be recorded")
            self.count("unrecorded_outcomes")
            if not isinstance(error, StoreUnavailable | TimeoutError):
                self.count("internal_errors")
        detached.tell(outcome)
        now = self._pipeline.loop.time()
        detached.until = now + retention
        self._pipeline.clocks.set(detached, detached.until, now)
        self._ended[digest] = detached
        self.grew(detached, len(outcome) + _BESIDE)

    def grew(self, detached: DetachedCall, growth: int) -> None:
        """So much more is kept of a call. Where that is too much in all, those that ended first are forgotten first."""
        self._bytes += growth
        most = self._pipeline.limits.detached_bytes_in_all
        while self._bytes > most and self._ended:
            self._drop(next(iter(self._ended.values())))
        if self._bytes > most and detached.outcome is None:
            before = detached.kept.size
            detached.kept.shed(max(before - (self._bytes - most), 0))
            self._bytes += detached.kept.size - before

    def due(self, detached: DetachedCall, now: float) -> None:
        """The time of a call may be over: then it is forgotten, and what else has expired is swept from the store."""
        if now < detached.until:
            self._pipeline.clocks.set(detached, detached.until, now)
        elif detached.digest in self._ended:
            self._drop(detached)
            if not self._is_sweeping:
                self._is_sweeping = True
                self._tasks.begin(self._sweep())

    async def _sweep(self) -> None:
        try:
            await self._store.sweep()
        except StoreUnavailable:
            _log.exception("expired detached calls could not be removed")
        finally:
            self._is_sweeping = False

    def _drop(self, detached: DetachedCall) -> None:
        """Forgets one that ended."""
        self._pipeline.clocks.clear(detached)
        del self._ended[detached.digest], self._calls[detached.digest]
        self._bytes -= detached.kept.size + len(detached.outcome or b"") + _BESIDE


def _lost_outcome(entry: DetachedEntry) -> bytes:
    """The outcome of a call that ran when the sidecar was killed."""
    frame = failed(causes.lost_with_sidecar(entry.tool, entry.effects))
    frame.time_unix_nano = time_ns()
    return frame.SerializeToString()


def _internal() -> Refusal:
    return Refusal(FailureKind.FAILURE_KIND_INTERNAL, "The sidecar failed; its log says more.")


def _invalid() -> Refusal:
    return Refusal(
        FailureKind.FAILURE_KIND_TICKET_INVALID,
        "There is no call to follow by this ticket, for this caller, at this time; a ticket is good until some time "
        "after its call's outcome, and for whoever started the call.",
    )


def _too_many(most: int) -> Refusal:
    return Refusal(
        FailureKind.FAILURE_KIND_OVERLOADED,
        f"This subject has {most:,} detached calls that run or can still be followed, which is the most; try again "
        "when some have expired, or start the call without detachable.",
        retryable=True,
        retry_after=_RETRY_AFTER,
    )


def _unavailable() -> Refusal:
    return Refusal(
        FailureKind.FAILURE_KIND_UNAVAILABLE,
        "The record of detached calls cannot be reached; try again later.",
        retryable=True,
        retry_after=_RETRY_AFTER,
    )
