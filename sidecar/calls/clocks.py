"""Due times of many calls on one timer of the event loop."""

import asyncio
import heapq
import logging
from typing import Final, Protocol

_log = logging.getLogger(__name__)

_NEAR: Final = 10.0
_FINE: Final = 0.01
_COARSE: Final = 1.0
_FAR: Final = 600.0


class Timed(Protocol):
    """Something that is due once. `Clocks` alone sets `due_slot`."""

    due_slot: float | None

    def due(self, now: float) -> None:
        """The time has come, at most about 10 ms late. It may also come early, or when nothing is due any more."""
        ...


class Clocks:
    """Keeps a due time for each of many things.

    Setting and clearing cost a set operation and no timer: near times share slots of 10 ms, far ones slots of a second
    that come early, the farthest after ten minutes. A slot stays until its time, so there are never many more than a
    thousand. Times are those of the event loop's clock, in seconds.
    """

    def __init__(self) -> None:
        self._slots: dict[float, set[Timed]] = {}
        self._order: list[float] = []
        self._timer: asyncio.TimerHandle | None = None
        self._armed = float("inf")

    def __len__(self) -> int:
        return sum(map(len, self._slots.values()))

    def set(self, timed: Timed, when: float, now: float) -> None:
        """Makes something due at a time instead of the one it had."""
        had = timed.due_slot
        ahead = when - now
        if ahead < _NEAR:
            slot = (when // _FINE + 1) * _FINE
        else:
            slot = (when if ahead < _FAR else now + _FAR) // _COARSE * _COARSE
        if had is not None:
            if had == slot:
                return
            self._slots[had].discard(timed)
        timed.due_slot = slot
        members = self._slots.get(slot)
        if members is None:
            self._slots[slot] = {timed}
            heapq.heappush(self._order, slot)
            if slot < self._armed:
                self._arm(slot)
        else:
            members.add(timed)

    def clear(self, timed: Timed) -> None:
        """Takes back a due time, if there is one."""
        slot = timed.due_slot
        if slot is not None:
            timed.due_slot = None
            self._slots[slot].discard(timed)

    def _arm(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._armed = when
        self._timer = asyncio.get_running_loop().call_at(when, self._fire)

    def _fire(self) -> None:
        self._timer = None
        self._armed = float("inf")
        now = asyncio.get_running_loop().time()
        order = self._order
        while order and order[0] <= now:
            members = self._slots.pop(heapq.heappop(order))
            for timed in members:
                timed.due_slot = None
            for timed in members:
                try:
                    timed.due(now)
                except Exception:
                    _log.exception("something that was due failed; what else is due goes on")
        if order and order[0] < self._armed:
            self._arm(order[0])
