"""Runs the cleanups that were claimed, and reports what became of each."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sidecar._gen.pillion.v1.context_pb2 import TeardownReason, TeardownScope
from sidecar.calls.outcome import cut
from sidecar.calls.ports import KeeperLost, Keepers, TeardownReports
from sidecar.calls.stores import RegistrationStore, StoreUnavailable
from sidecar.scope import Registration
from sidecar.telemetry import Counters

_log = logging.getLogger(__name__)

_PREFIX = "TEARDOWN_REASON_"
_SCOPE_PREFIX = "TEARDOWN_SCOPE_"
_ERROR_BYTES = 1_024


class Claimed(NamedTuple):
    """A cleanup that is to run, once."""

    registration: Registration
    reason: "TeardownReason.ValueType"

    @property
    def is_stored(self) -> bool:
        """Whether the store knows of it."""
        return self.registration.is_stored


class Firing:
    """Has instances run claimed cleanups: all at once, begun newest first, in so many seconds for all.

    What became of one is reported, and never raised. One whose instance is away, and may come back, is owed.
    """

    def __init__(self, keepers: Keepers, grace: float, counters: Counters) -> None:
        self.store: RegistrationStore = NothingKept()
        self.reports: TeardownReports | None = None
        self.redact: Callable[[str], str] | None = None
        self._keepers = keepers
        self._grace = grace
        self._counters = counters
        self._sent: set[str] = set()
        """Of what is not over, what its instance was told to run: it may have, whatever is heard of it."""
        self._open: dict[str, dict[str, Claimed]] = {}
        """What was claimed and is not over, those that are owed with it, by instance and registration id."""
        self.stand_in: Callable[[Registration, TeardownReason.ValueType], object] | None = None
        """Has the cleanup call of a registration run, whose instance is gone and cannot have run the cleanup."""

    @property
    def open(self) -> int:
        """How many cleanups are claimed and not over."""
        return sum(map(len, self._open.values()))

    def is_open(self, instance_id: str) -> bool:
        """Whether an instance has claimed cleanups that are not over."""
        return instance_id in self._open

    def take_open(self, instance_id: str) -> list[Claimed]:
        """What an instance that was lost has not run, or not said so, as claimed. It is the caller's from now on."""
        return list(self._open.pop(instance_id, {}).values())

    def take_unstored(self) -> list[Claimed]:
        """Everything that is open and in no store, likewise."""
        taken = [one for of_instance in self._open.values() for one in of_instance.values() if not one.is_stored]
        for claimed in taken:
            self._close(claimed)
        return taken

    def fire(
        self, registrations: Sequence[Registration], reason: "TeardownReason.ValueType"
    ) -> Coroutine[Any, Any, int]:
        """Fires registrations, newest first as they come; answers of how many it is not known that they ran well.

        They are open from now on, whenever that is waited for, which it has to be.
        """
        claims = [Claimed(registration, reason) for registration in registrations]
        for claimed in claims:
            self._open.setdefault(claimed.registration.instance_id, {})[claimed.registration.id] = claimed
        return self._fire(registrations, reason, claims)

    async def _fire(
        self, registrations: Sequence[Registration], reason: "TeardownReason.ValueType", claims: Sequence[Claimed]
    ) -> int:
        is_recorded = await self.record(registrations, reason)
        over: list[Registration] = []
        running: dict[asyncio.Future[str | None], Claimed] = {}
        for claimed in claims:
            if not is_recorded and claimed.is_stored and claimed.registration.cleanup is not None:
                # After a crash its cleanup call could run beside it.
                self.failed(claimed.registration, reason, "unrecorded", "its claim could not be stored")
                self._close(claimed)
            elif self._is_open(claimed):
                self._begin(claimed, running, over)
        ran = await self._run(running, over)
        await self.forget(over)
        for worker, instance_id in {(one.worker, one.instance_id) for one in registrations}:
            self._keepers.relieved(worker, instance_id)
        return len(claims) - ran

    def _begin(
        self, claimed: Claimed, running: dict[asyncio.Future[str | None], Claimed], over: list[Registration]
    ) -> None:
        registration = claimed.registration
        keeper = self._keepers.keeper(registration.worker, registration.instance_id)
        if keeper is not None:
            self._sent.add(registration.id)
            running[keeper.fire(registration.id, claimed.reason, self._grace)] = claimed
        elif self._is_gone(claimed):
            over.append(registration)

    async def _run(self, running: Mapping[asyncio.Future[str | None], Claimed], over: list[Registration]) -> int:
        """Waits for what runs; answers how much of it ran well, and adds what is over."""
        ran = 0
        if running:
            await asyncio.wait(running, timeout=self._grace)
        for future, claimed in running.items():
            if future.cancel():
                what = f"it did not end within {self._grace:g} s"
                self.failed(claimed.registration, claimed.reason, "timeout", what)
            elif isinstance(future.exception(), KeeperLost):
                if self._is_open(claimed) and self._is_gone(claimed):
                    over.append(claimed.registration)
                continue
            else:
                ran += self.ran(claimed, future.result())
            self._close(claimed)
            over.append(claimed.registration)
        return ran

    async def forget(self, over: Iterable[Registration]) -> None:
        """Takes what is over out of the store."""
        over = tuple(over)
        self._sent.difference_update(one.id for one in over)
        kept = [one for one in over if one.is_stored]
        if not kept:
            return
        try:
            await self.store.remove(kept)
        except StoreUnavailable:
            _log.exception("registrations whose cleanups are over could not be taken out of the store")
            self._counters.add("unrecorded_teardowns", len(kept))

    def lost(self, registration: Registration) -> None:
        """Reports that a cleanup is gone with its instance."""
        self._counters.add("lost_teardowns")
        _log.warning(
            "%s was lost: the instance that kept it is gone", described(registration), extra=_facts(registration)
        )
        if self.reports is not None:
            self.reports.lost(registration)

    def reopen(self, claimed: Claimed) -> None:
        """Owes what an earlier sidecar had claimed. What that told the instance is not known."""
        registration = claimed.registration
        self._open.setdefault(registration.instance_id, {})[registration.id] = claimed
        self._sent.add(registration.id)

    def give_up(self, claimed: Claimed) -> bool:
        """The instance of a cleanup is gone for good. Has its cleanup call stand in for it, or reports it as lost.

        Answers whether it is over. A cleanup call does not stand in for what may have run.
        """
        registration, reason = claimed
        if self.stand_in is not None and registration.cleanup is not None and registration.id not in self._sent:
            self.stand_in(registration, reason)
            return False
        self.lost(registration)
        return True

    def _is_open(self, claimed: Claimed) -> bool:
        """Whether nobody else has taken it over."""
        registration = claimed.registration
        return self._open.get(registration.instance_id, {}).get(registration.id) is claimed

    def _close(self, claimed: Claimed) -> None:
        registration = claimed.registration
        of_instance = self._open.get(registration.instance_id, {})
        if of_instance.get(registration.id) is claimed:
            del of_instance[registration.id]
            if not of_instance:
                del self._open[registration.instance_id]

    def _is_gone(self, claimed: Claimed) -> bool:
        """Gives a cleanup up, unless its instance may come back: then it is owed. Answers whether it is over."""
        registration = claimed.registration
        if self._keepers.may_return(registration.worker, registration.instance_id):
            return False
        self._close(claimed)
        return self.give_up(claimed)

    async def record(self, claimed: Sequence[Registration], reason: "TeardownReason.ValueType") -> bool:
        """Records that these are about to fire. False: it could not be, so that only their instances know."""
        kept = [one for one in claimed if one.is_stored]
        if kept:
            try:
                await self.store.claim(kept, reason)
            except StoreUnavailable:
                _log.exception("that cleanups are about to run could not be stored")
                self._counters.add("unrecorded_teardowns", len(kept))
                return False
        return True

    def ran(self, claimed: Claimed, wrong: str | None) -> bool:
        """Reports one that has run. Answers whether it did well."""
        registration, reason = claimed
        if wrong is not None:
            self.failed(
                registration, reason, "error", cut(wrong if self.redact is None else self.redact(wrong), _ERROR_BYTES)
            )
            return False
        self._counters.add("teardowns")
        self._counters.add(f"teardowns.{reason_name(reason)}")
        _log.debug("%s ran (%s)", described(registration), reason_name(reason), extra=_facts(registration))
        if self.reports is not None:
            self.reports.fired(registration, reason)
        return True

    def failed(self, registration: Registration, reason: "TeardownReason.ValueType", how: str, what: str) -> None:
        """Reports that a cleanup failed, or that nobody knows; `how` in a word, `what` for the log."""
        self._counters.add("failed_teardowns")
        _log.warning(
            "%s (%s) failed: %s", described(registration), reason_name(reason), what, extra=_facts(registration)
        )
        if self.reports is not None:
            self.reports.failed(registration, reason, how)


class NothingKept:
    """A store of registrations that keeps nothing beyond the life of the sidecar."""

    async def add(self, registration: Registration) -> None:
        """Needs no keeping."""

    async def claim(self, registrations: Sequence[Registration], reason: "TeardownReason.ValueType") -> None:
        """Nor do claims."""

    async def unclaim(self, registrations: Sequence[Registration]) -> None:
        """Nor what becomes of those."""

    async def remove(self, registrations: Sequence[Registration]) -> None:
        """Nor is there anything to forget."""


def reason_name(reason: "TeardownReason.ValueType") -> str:
    """The word for a reason: `session-end`, say."""
    return TeardownReason.Name(reason).removeprefix(_PREFIX).lower().replace("_", "-")


def scope_name(scope: "TeardownScope.ValueType") -> str:
    """The word for a scope: `session`, say."""
    return TeardownScope.Name(scope).removeprefix(_SCOPE_PREFIX).lower()


def described(registration: Registration) -> str:
    """A cleanup in a sentence of the log, which holds no fact of its scope."""
    return f"the cleanup of {registration.address.tool} for the end of its {scope_name(registration.key.kind)}"


def _facts(registration: Registration) -> dict[str, str]:
    return {"worker": registration.worker, "instance": registration.instance_id, "registration": registration.id}
