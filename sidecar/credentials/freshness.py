"""Credentials that are remembered while they are good, renewed before they are not, and asked for once at a time."""

import asyncio
import logging
import random
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import NamedTuple

from sidecar.credentials.port import Answer, CredentialFailed, Issued, ProviderDown

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CredentialLimits:
    """Bounds of what is remembered, and of how long is waited. Times are in seconds."""

    patience: float = 15.0
    """How long a call waits for a provider."""
    lead: float = 60.0
    """How long before it expires a credential is renewed at the latest; a tenth of its life, where that is longer."""
    margin: float = 10.0
    """How long before it expires one is no longer issued; a tenth of its life, where that is shorter."""
    first_pause: float = 0.5
    """How long a provider that failed is left alone. It doubles with every failure in a row."""
    longest_pause: float = 60.0
    """How long at most."""
    most_remembered: int = 10_000
    """Credentials that are remembered; beyond them the one that was not used for longest goes."""
    most_at_once: int = 1_024
    """Credentials that are asked for at the same time."""


class FreshnessStatistics(NamedTuple):
    """What is there now."""

    remembered: int
    """Credentials."""
    under_way: int
    """Of which one is asked for."""
    asked: int
    """How often a provider was asked, since the start."""


class _Kept:
    """A remembered credential."""

    __slots__ = ("good_until", "issued", "renew_at")

    def __init__(self, issued: Issued, renew_at: float, good_until: float) -> None:
        self.issued = issued
        self.renew_at = renew_at
        self.good_until = good_until


class _Failure(NamedTuple):
    """That a provider failed, and may not be asked for a while."""

    error: CredentialFailed
    in_a_row: int
    until: float


class _Flight(NamedTuple):
    """One question to a provider, under way."""

    task: "asyncio.Task[Answer | CredentialFailed]"
    forced: bool


Ask = Callable[[bool], Awaitable[Answer]]
"""Asks the provider. With `True`, for another one than is stored, however good that looks."""


class Freshness:
    """Remembers credentials by key, for one event loop.

    For each key at most one question is under way, and all who want its answer wait for that one. It goes on when they
    leave, so that a rotated token is not lost with who asked for it. A good credential is answered at once; near its
    end it is renewed meanwhile, and if that fails it is answered until its end.
    """

    def __init__(
        self,
        limits: CredentialLimits | None = None,
        *,
        clock: Callable[[], float] = time.time,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._limits = limits or CredentialLimits()
        self._clock = clock
        self._chance = chance
        self._kept: OrderedDict[Hashable, _Kept] = OrderedDict()
        self._flights: dict[Hashable, _Flight] = {}
        self._failures: OrderedDict[Hashable, _Failure] = OrderedDict()
        self._asked = 0

    def statistics(self) -> FreshnessStatistics:
        """What is remembered and under way."""
        return FreshnessStatistics(len(self._kept), len(self._flights), self._asked)

    def at_once(self, key: Hashable, keeps_for: float, ask: Ask) -> Issued | None:
        """The remembered credential, if it is good; its renewal is begun if it is due."""
        kept = self._kept.get(key)
        now = self._clock()
        if kept is None or now >= kept.good_until:
            return None
        self._kept.move_to_end(key)
        if now >= kept.renew_at and key not in self._flights and len(self._flights) < self._limits.most_at_once:
            self._start(key, keeps_for, ask, forced=True)
        return kept.issued

    async def get(self, key: Hashable, keeps_for: float, ask: Ask, *, forced: bool = False) -> Answer:
        """The remembered credential if it is good, else what the provider answers; that in any case if it is forced.

        :raises CredentialFailed: if there is none.
        """
        if not forced:
            issued = self.at_once(key, keeps_for, ask)
            if issued is not None:
                return issued
        deadline = asyncio.get_running_loop().time() + self._limits.patience
        while True:
            flight = self._flights.get(key)
            if flight is None:
                self._refuse_for_now(key)
                flight = self._start(key, keeps_for, ask, forced=forced)
            await asyncio.wait({flight.task}, timeout=deadline - asyncio.get_running_loop().time())
            if not flight.task.done():
                raise ProviderDown(
                    f"The provider did not answer within {self._limits.patience:g} s; try again in a moment."
                )
            # Another one's may have answered from what is stored.
            if flight.forced or not forced:
                return _answer_of(flight.task)

    def forget(self, key: Hashable) -> None:
        """Remembers neither a credential nor a failure."""
        self._kept.pop(key, None)
        self._failures.pop(key, None)

    async def aclose(self, patience: float) -> None:
        """Lets what is under way finish, for so many seconds, and then ends it."""
        tasks = {flight.task for flight in self._flights.values()}
        if tasks:
            _, pending = await asyncio.wait(tasks, timeout=patience)
            for task in pending:
                task.cancel()
            if pending:
                await asyncio.wait(pending)

    def _refuse_for_now(self, key: Hashable) -> None:
        failure = self._failures.get(key)
        if failure is not None and self._clock() < failure.until:
            raise _anew(failure.error)
        if len(self._flights) >= self._limits.most_at_once:
            raise ProviderDown("Too many credentials are asked for at once; try again in a moment.")

    def _start(self, key: Hashable, keeps_for: float, ask: Ask, *, forced: bool) -> _Flight:
        self._asked += 1
        task = asyncio.get_running_loop().create_task(self._fly(key, keeps_for, ask, forced=forced))
        flight = self._flights[key] = _Flight(task, forced)
        return flight

    async def _fly(self, key: Hashable, keeps_for: float, ask: Ask, *, forced: bool) -> Answer | CredentialFailed:
        try:
            answer = await ask(forced)
        except CredentialFailed as error:
            self._failed(key, error)
            return error
        except Exception:
            _log.exception("a provider of credentials failed")
            failure = ProviderDown("The provider of the credential failed; the sidecar's log tells how.")
            self._failed(key, failure)
            return failure
        finally:
            del self._flights[key]
        self._failures.pop(key, None)
        if isinstance(answer, Issued):
            self._keep(key, answer, keeps_for)
        elif (kept := self._kept.get(key)) is not None:
            # It cannot be renewed, and is good to its end.
            kept.renew_at = kept.good_until
        return answer

    def _keep(self, key: Hashable, issued: Issued, keeps_for: float) -> None:
        limits, now = self._limits, self._clock()
        if issued.expires_at is None:
            life, lead, margin = keeps_for, keeps_for / 4, 0.0
        else:
            life = issued.expires_at - now
            lead, margin = min(max(limits.lead, life / 10), life / 2), min(limits.margin, life / 10)
        if life <= 0:
            self._kept.pop(key, None)
            return
        # Those that were issued together are not renewed together.
        renew_at = now + life - lead * (1 + self._chance() / 2)
        self._kept[key] = _Kept(issued, renew_at, now + life - margin)
        self._kept.move_to_end(key)
        while len(self._kept) > limits.most_remembered:
            self._kept.popitem(last=False)

    def _failed(self, key: Hashable, error: CredentialFailed) -> None:
        limits, now = self._limits, self._clock()
        before = self._failures.pop(key, None)
        count = 0 if before is None else min(before.in_a_row + 1, 30)
        pause = min(limits.first_pause * 2**count, limits.longest_pause) * (1 + self._chance()) / 2
        kept = self._kept.get(key)
        if kept is not None:
            kept.renew_at = max(kept.renew_at, now + pause)
        if error.retryable:
            self._failures[key] = _Failure(error, count, now + pause)
            while len(self._failures) > limits.most_remembered:
                self._failures.popitem(last=False)


def _answer_of(task: "asyncio.Task[Answer | CredentialFailed]") -> Answer:
    if task.cancelled():
        raise ProviderDown("The sidecar is about to stop; try again when it is back.")
    result = task.result()
    if isinstance(result, CredentialFailed):
        raise _anew(result)
    return result


def _anew(error: CredentialFailed) -> CredentialFailed:
    """The same failure for one more who waits: an exception that is raised twice collects the frames of both."""
    return type(error)(str(error))
