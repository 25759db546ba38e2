"""Calls that wait for an answer from outside: paused with a ticket, resumed once, or expired."""

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from sidecar._gen.pillion.v1.call_pb2 import Start
from sidecar._gen.pillion.v1.context_pb2 import CancelReason, TeardownScope
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outcome_pb2 import Failure, FailureKind, SideEffects
from sidecar.calls.causes import cancelled, pause_unrecorded
from sidecar.calls.outcome import NONE, Refusal, failed, failure
from sidecar.calls.paused import Pause, PausedCall, Resumption, digest_of_arguments
from sidecar.calls.request import Resumed, decode_resume
from sidecar.calls.restart import resumed_start, start_of
from sidecar.calls.result import effects_of_attempt
from sidecar.calls.stores import PausesFull, PauseStore, StoreUnavailable
from sidecar.calls.tasks import Tasks
from sidecar.calls.tickets import Tickets, digest_of
from sidecar.scope import ScopeEnding, ScopeKey, lasting_scopes, scope_of

if TYPE_CHECKING:
    from sidecar.calls.call import Call
    from sidecar.calls.pipeline import Pipeline

_log = logging.getLogger(__name__)

_RETRY_AFTER = 1.0
_RUN = TeardownScope.TEARDOWN_SCOPE_RUN
_SESSION = TeardownScope.TEARDOWN_SCOPE_SESSION
_SWEPT = 64
_LONGEST_WAIT = 60.0
_MOST_INNER = 64


class Pauses:
    """The paused calls of a pipeline.

    A caller's call that pauses is kept by the digest of its ticket, synced before its outcome goes out. A call that
    resumes it passes the gates again; the ticket is claimed, and that is synced, before the tool is invoked. A ticket
    that nobody could use is answered in one way, whatever is wrong with it. A call that another made has no ticket: it
    is kept with the one that made it.
    """

    def __init__(
        self, pipeline: "Pipeline", store: PauseStore, secret: bytes, *, clock: Callable[[], float] = time.time
    ) -> None:
        """`secret`: what tickets are made with; the same for ever."""
        self.tickets = Tickets(secret)
        self.told: Callable[[str, PausedCall], None] = _untold
        """Called when one ends so, with the word for why: expired, lost or scope_ended."""
        self._pipeline = pipeline
        self._store = store
        self._clock = clock
        self._tasks = Tasks(pipeline.counters)
        self._sooner = asyncio.Event()
        self._next_expiry: float | None = None
        self._held: dict[bytes, list[ScopeKey]] = {}
        """By the digests of their tickets, the scopes that paused calls are in."""
        pipeline.pauses = pipeline.requests.pauses = self
        pipeline.teardowns.at_scope_end.append(self._end_scope)

    # --- pausing

    def keep_inner(self, call: "Call", frame: Frame) -> Frame:
        """Keeps a call that another made with that one; answers the outcome that its tool gets."""
        outer, pause = call.parent, self._pause_of(call, frame)
        if outer is None or pause is None:
            return frame
        kept = outer.paused_inner = outer.paused_inner or []
        if sum(1 for one in (*kept, pause) for _ in one.execution_ids()) > _MOST_INNER:
            return failed(
                failure(
                    FailureKind.FAILURE_KIND_OVERLOADED,
                    f"The call further out has {_MOST_INNER} paused calls, which is the most; let it pause itself.",
                    effects_of_attempt(call.tool) if call.tool is not None else NONE,
                )
            )
        kept.append(pause)
        call.paused_inner = None
        frame.outcome.paused.ClearField("state")
        self._pipeline.counters.add("paused_inner_calls")
        return frame

    async def keep(self, call: "Call", frame: Frame, *, for_consent: bool = False) -> Frame:
        """Keeps a caller's call; answers its outcome, with the ticket, or why it could not be kept."""
        pause = self._pause_of(call, frame, for_consent=for_consent)
        scope, tool, resumption, invocation = call.scope, call.tool, call.resumption, call.invocation
        if pause is None or scope is None or tool is None or invocation is None:
            return frame
        start = start_of(call, invocation.invoke)
        effects = effects_of_attempt(tool) if call.attempts else NONE
        size = len(pause.to_bytes())
        if size > self._pipeline.max_frame_bytes:
            return failed(
                failure(
                    FailureKind.FAILURE_KIND_RESULT_TOO_LARGE,
                    f"{tool.name} paused with {size:,} bytes to keep, its inner calls' among them, and "
                    f"{self._pipeline.max_frame_bytes:,} are the most; have it keep less.",
                    effects,
                )
            )
        ticket = self.tickets.new()
        paused = PausedCall(
            ticket_digest=digest_of(ticket),
            caller=call.caller.principal.name,
            owner=scope.owner,
            run_id=call.run,
            session_id=call.session_id,
            start=start.SerializeToString(),
            pause=pause,
            expires_at=self._clock() + self._pipeline.limits.pause_lifetime,
        )
        instead_of = resumption.ticket_digest if resumption is not None else None
        is_claimed = resumption is not None and resumption.is_claimed
        keeping = asyncio.ensure_future(self._keep(paused, instead_of, is_claimed=is_claimed))
        try:
            is_kept = await asyncio.shield(keeping)
        except asyncio.CancelledError:
            # The call has its outcome by now, and nobody the ticket.
            keeping.add_done_callback(partial(self._kept_in_vain, paused, instead_of))
            raise
        except PausesFull:
            return failed(_too_many(self._pipeline.limits.paused_per_subject, effects))
        except StoreUnavailable:
            _log.exception("a paused call could not be recorded")
            self._pipeline.counters.add("unrecorded_pauses")
            return failed(pause_unrecorded(tool, effects))
        if not is_kept:
            return failed(invalid().failure)
        if resumption is not None:
            resumption.is_claimed = resumption.is_replaced = True
        try:
            self._hold(paused.ticket_digest, lasting_scopes(paused.owner, paused.run_id, paused.session_id))
        except ScopeEnding:
            await self._drop(paused)
            return failed(cancelled(CancelReason.CANCEL_REASON_SCOPE_ENDED, effects))
        if instead_of is not None:
            self._leave(instead_of)
        call.paused_inner = None
        self._arm(paused.expires_at)
        self._pipeline.counters.add("paused_calls")
        frame.outcome.paused.ClearField("state")
        frame.outcome.paused.ticket = ticket
        return frame

    async def _keep(self, paused: PausedCall, instead_of: bytes | None, *, is_claimed: bool) -> bool:
        # Before the call: what nobody has paused for ends when the next sidecar begins.
        await self._pipeline.teardowns.store_paused(paused.owner, paused.pause)
        return await self._store.keep(paused, instead_of, is_claimed=is_claimed)

    def _pause_of(self, call: "Call", frame: Frame, *, for_consent: bool = False) -> Pause | None:
        invocation, resumption, said = call.invocation, call.resumption, frame.outcome.paused
        if invocation is None:
            return None
        told = resumption.told if resumption is not None and for_consent else None
        return Pause(
            tool=call.tool_name,
            digest=digest_of_arguments(invocation.invoke.arguments),
            execution_id=call.kept_for.fact if call.kept_for is not None else call.execution_id,
            ask=said.ask.SerializeToString(deterministic=True),
            state=(told[0] if told is not None else None) if for_consent else said.state,
            answer=told[1] if told is not None else b"",
            waits_for_consent=for_consent,
            inner=tuple(call.paused_inner or ()),
        )

    # --- resuming

    def resume(self, call: "Call", start: Start) -> None:
        """Has a call go on from where another paused, once its ticket is found.

        :raises Refusal: if what it says beside the ticket cannot be taken.
        """
        said = decode_resume(start, call, self._pipeline.ids.process)
        call.scope = scope_of(call.caller.principal, said.identity, None, None, call.execution_id)
        call.limit_time(None)
        call.hold()
        self._tasks.begin(self._resume(call, start, said))

    async def _resume(self, call: "Call", start: Start, said: Resumed) -> None:
        try:
            found = await self._store.find(digest_of(said.ticket))
            if call.done:
                return
            paused = self._opened(found, call, said)
            call.go_on_from(Resumption(paused.pause, said.answer, paused.ticket_digest))
            again = resumed_start(paused, start)
            call.tool_call_id = again.tool_call_id
            self._pipeline.pass_gates(call, again, self._pipeline.loop.time())
            if said.run_id and paused.run_id:
                # Before and after a pause is one run, by whatever ids its caller knows it.
                self._pipeline.teardowns.registry.alias(ScopeKey(_RUN, paused.owner, paused.run_id), said.run_id)
        except StoreUnavailable:
            _log.exception("a ticket could not be looked up")
            call.refused(unreachable().failure)
        except Exception as reason:  # noqa: BLE001  # whatever it was, the call has its outcome
            self._pipeline.turn_away(call, reason)

    def _opened(self, found: PausedCall | None, call: "Call", said: Resumed) -> PausedCall:
        """What a ticket opens for this call.

        :raises Refusal: if that is nothing.
        """
        scope = call.scope
        if (
            found is None
            or scope is None
            or found.caller != call.caller.principal.name
            or found.owner != scope.owner
            or found.expires_at <= self._clock()
            or (found.is_used and call.key is None)
            or (said.tool and said.tool != found.pause.tool)
            or (said.arguments is not None and digest_of_arguments(said.arguments) != found.pause.digest)
            or (said.session_id is not None and said.session_id != found.session_id)
        ):
            raise invalid()
        return found

    def run(self, call: "Call") -> None:
        """Claims the ticket of a call that passed the gates, then routes it and sees it to its end."""
        call.hold()
        self._tasks.begin(self._run(call))

    async def _run(self, call: "Call") -> None:
        try:
            await self.claim(call)
            await call.route_and_settle()
        except Exception as reason:  # noqa: BLE001  # whatever it was, the call has its outcome
            self._pipeline.turn_away(call, reason)
        finally:
            await self.conclude(call)
            call.deliver()

    async def claim(self, call: "Call") -> None:
        """Claims the ticket that a call resumes by, if there is one that is not claimed yet. Synced on return.

        :raises Refusal: if it was used meanwhile, or the store cannot be reached.
        """
        resumption = call.resumption
        if resumption is None or resumption.is_claimed or resumption.ticket_digest is None or call.done:
            return
        try:
            if not await self._store.claim(resumption.ticket_digest, remember=call.key is not None):
                raise invalid()
        except StoreUnavailable:
            _log.exception("a ticket could not be claimed")
            raise unreachable() from None
        resumption.is_claimed = True
        self._pipeline.counters.add("resumed_calls")

    async def conclude(self, call: "Call") -> None:
        """A call that resumed by a ticket is about to have its outcome: its tool was invoked, or the ticket is free."""
        resumption = call.resumption
        if resumption is None or resumption.ticket_digest is None or not resumption.is_claimed:
            return
        if resumption.is_replaced:
            return
        try:
            if call.attempts:
                self._leave(resumption.ticket_digest)
                await self._store.finish(resumption.ticket_digest)
            elif await self._store.release(resumption.ticket_digest):
                # Its time may have been up meanwhile, when nobody looked at it.
                self._arm(self._clock())
            elif call.scope is not None:
                # Its scope has ended, and this was what was left of it.
                self._leave(resumption.ticket_digest)
                self._pipeline.teardowns.end_paused(call.scope.owner, resumption.pause)
        except StoreUnavailable:
            # It stays claimed: nobody can use it, and the next start takes it away.
            self._leave(resumption.ticket_digest)
            _log.exception("the record of a resumed call could not be brought up to date")
            self._pipeline.counters.add("unrecorded_pauses")

    # --- the end of those that nobody resumes

    async def open(self) -> None:
        """Takes away what was claimed when the sidecar stopped, and learns when the next one expires.

        :raises StoreUnavailable: if the store cannot be reached.
        """
        for paused in await self._store.recover():
            self._end(paused, "lost")
        teardowns = self._pipeline.teardowns
        if teardowns.kept_for_paused():
            teardowns.end_others(await self._store.executions())
        for ticket_digest, owner, run_id, session_id in await self._store.busy():
            self._hold(ticket_digest, lasting_scopes(owner, run_id, session_id))
        self._next_expiry = await self._store.next_expiry()

    async def keep_tidy(self) -> None:
        """Ends those whose time is up, until cancelled."""
        while True:
            await self._wait()
            try:
                expired = await self._store.expire(self._clock(), _SWEPT)
                for paused in expired:
                    self._end(paused, "expired")
                if len(expired) < _SWEPT:
                    self._next_expiry = await self._store.next_expiry()
            except StoreUnavailable:
                _log.exception("paused calls could not be looked through")
                self._next_expiry = self._clock() + _LONGEST_WAIT

    async def _end_scope(self, key: ScopeKey) -> int:
        """Ends the paused calls of a run or a session: their tickets open nothing any more. Answers how many."""
        try:
            ended = await self._store.end(
                key.owner,
                run_id=key.fact if key.kind == _RUN else None,
                session_id=key.fact if key.kind == _SESSION else None,
            )
        except StoreUnavailable:
            _log.exception("the paused calls of a scope that ends could not be taken away; they expire")
            self._pipeline.counters.add("unrecorded_pauses")
            return 0
        for paused in ended:
            self._end(paused, "scope_ended")
        return len(ended)

    async def settled(self) -> None:
        """Waits until all that is being recorded is recorded."""
        await self._tasks.settled()

    def _end(self, paused: PausedCall, why: str) -> None:
        """A paused call is over."""
        self._leave(paused.ticket_digest)
        if why != "expired" or not paused.is_used:
            self._pipeline.counters.add(f"{why}_pauses")
            self.told(why, paused)
            self._pipeline.teardowns.end_paused(paused.owner, paused.pause)

    def _hold(self, ticket_digest: bytes, keys: list[ScopeKey]) -> None:
        if keys:
            self._pipeline.teardowns.hold(keys)
            self._held[ticket_digest] = keys

    def _leave(self, ticket_digest: bytes) -> None:
        keys = self._held.pop(ticket_digest, None)
        if keys is not None:
            self._pipeline.teardowns.leave(keys)

    def _kept_in_vain(self, paused: PausedCall, instead_of: bytes | None, keeping: asyncio.Future[bool]) -> None:
        if keeping.exception() is None and keeping.result():
            if instead_of is not None:
                self._leave(instead_of)
            self._pipeline.teardowns.end_paused(paused.owner, paused.pause)
            self._tasks.begin(self._drop(paused))

    async def _drop(self, paused: PausedCall) -> None:
        try:
            await self._store.finish(paused.ticket_digest)
        except StoreUnavailable:
            _log.exception("a paused call that nobody has the ticket of could not be taken away")

    def _arm(self, expires_at: float) -> None:
        if self._next_expiry is None or expires_at < self._next_expiry:
            self._next_expiry = expires_at
            self._sooner.set()

    async def _wait(self) -> None:
        """Waits until the next one's time is up. The clock may be set meanwhile, so it is looked at now and then."""
        while self._next_expiry is None or (ahead := self._next_expiry - self._clock()) > 0:
            self._sooner.clear()
            try:
                async with asyncio.timeout(None if self._next_expiry is None else min(ahead, _LONGEST_WAIT)):
                    await self._sooner.wait()
            except TimeoutError:
                pass


def invalid() -> Refusal:
    """The one answer to every ticket that opens nothing."""
    return Refusal(
        FailureKind.FAILURE_KIND_TICKET_INVALID,
        "The ticket opens nothing for this caller, tenant and subject: it is wrong, was used or has expired; start a "
        "new call.",
    )


def unreachable() -> Refusal:
    """The tickets cannot be looked up or claimed."""
    return Refusal(
        FailureKind.FAILURE_KIND_UNAVAILABLE,
        "The record of paused calls cannot be reached, so nothing was resumed; try again later.",
        retryable=True,
        retry_after=_RETRY_AFTER,
    )


def _too_many(most: int, effects: "SideEffects.ValueType") -> Failure:
    return failure(
        FailureKind.FAILURE_KIND_OVERLOADED,
        f"The subject has {most:,} paused calls, which is the most; resume or end some of them.",
        effects,
    )


def _untold(_why: str, _paused: PausedCall) -> None:
    pass
