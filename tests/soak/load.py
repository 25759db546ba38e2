"""The calls of the soak: many kinds of them, at a steady rate, each counted by how it ended."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pillion
from pillion import errors

PATIENCE = 15.0
"""How long a call waits for a slot or its outcome at most: every call of the soak has a shorter timeout."""
DECIDED_WITHIN = 2.0 + 5.0 + 3.0
"""How long after its timeout an outcome may come: the graces of cancel and teardown, and what a busy machine adds."""
AT_ONCE = 200

_LOST = {"WORKER_LOST", "OUTCOME_UNKNOWN", "UNAVAILABLE", "OVERLOADED"}
EXPECTED: Mapping[str, frozenset[str]] = {
    "look": frozenset({"RESULT"} | _LOST),
    "work": frozenset({"RESULT", "TIMEOUT"} | _LOST),
    "write": frozenset({"RESULT", "TIMEOUT"} | _LOST),
    "compute": frozenset({"RESULT", "TIMEOUT"} | _LOST),
    "cancel": frozenset({"RESULT", "CANCELLED"} | _LOST),
    "leave": frozenset({"LEFT", "RESULT", "CANCELLED"} | _LOST),
    "ignore": frozenset({"RESULT", "CANCELLED", "TIMEOUT"} | _LOST),
    "fail": frozenset({"TOOL_FAILED"} | _LOST),
    "come_and_go": frozenset({"RESULT", "UNKNOWN_TOOL"} | _LOST),
    "look_elsewhere": frozenset({"RESULT"} | _LOST),
    "unknown": frozenset({"UNKNOWN_TOOL"}),
}
"""How each kind of call may end, whatever is done to workers and settings; TIMEOUT where it is long or runs often."""

_WEIGHTS = {
    "look": 40,
    "work": 8,
    "write": 8,
    "compute": 6,
    "cancel": 8,
    "leave": 4,
    "ignore": 1,
    "fail": 5,
    "come_and_go": 8,
    "look_elsewhere": 10,
    "unknown": 2,
}


class Load:
    """Starts calls at random moments of a seed, and counts what becomes of each."""

    def __init__(self, host: pillion.Host, dice: random.Random, per_second: float) -> None:
        self.begun = 0
        """How many calls were sent."""
        self.ended: dict[str, Counter[str]] = {kind: Counter() for kind in EXPECTED}
        """How the calls of each kind ended."""
        self.wrong: list[str] = []
        """What should not have happened, a sentence each."""
        self.slowest_decision = 0.0
        """The longest time from a call's timeout to its outcome, in seconds; 0 while all came before it."""
        self._host = host
        self._dice = dice
        self._per_second = per_second
        self._running: set[asyncio.Task[None]] = set()
        self._calls: dict[str, Callable[[float], Awaitable[str]]] = {
            "look": lambda timeout: self._plain("look", {"number": 7}, timeout),
            "work": lambda timeout: self._plain("work", {"seconds": self._dice.uniform(0.2, 3)}, timeout),
            "compute": lambda timeout: self._plain("compute", {"seconds": self._dice.uniform(0.1, 2)}, timeout),
            "write": self._written_once,
            "cancel": lambda timeout: self._cancelled("work", 5.0, timeout),
            "leave": self._left,
            "ignore": lambda timeout: self._cancelled("ignore", 3.5, timeout),
            "fail": lambda timeout: self._plain("fail", {}, timeout),
            "come_and_go": lambda timeout: self._plain("come_and_go", {"number": 7}, timeout),
            "look_elsewhere": lambda timeout: self._plain("look_elsewhere", {"number": 7}, timeout),
            "unknown": lambda timeout: self._plain("nobody_has_this", {}, timeout),
        }

    @property
    def in_flight(self) -> int:
        """How many calls have not ended."""
        return len(self._running)

    @property
    def decided(self) -> int:
        """How many have."""
        return sum(map(Counter.total, self.ended.values()))

    async def run(self) -> None:
        """Begins calls until it is cancelled."""
        kinds, weights = list(_WEIGHTS), list(_WEIGHTS.values())
        while True:
            await asyncio.sleep(self._dice.expovariate(self._per_second))
            if len(self._running) < AT_ONCE:
                (kind,) = self._dice.choices(kinds, weights)
                task = asyncio.ensure_future(self._one(kind))
                self._running.add(task)
                task.add_done_callback(self._running.discard)

    async def settle(self) -> None:
        """Returns once every call has ended."""
        if self._running:
            await asyncio.wait(self._running, timeout=PATIENCE + DECIDED_WITHIN)
        if self._running:
            self.wrong.append(f"{len(self._running)} calls were never decided.")

    async def _one(self, kind: str) -> None:
        timeout = self._dice.uniform(2, PATIENCE) if "TIMEOUT" in EXPECTED[kind] else PATIENCE
        began = time.monotonic()
        try:
            how = await self._calls[kind](timeout)
        except errors.CallFailed as failed:
            how = failed.kind.name
            if failed.execution_id is None:
                self.wrong.append(f"A call of {kind} ended as {how} without the sidecar: {failed}")
        except Exception as error:  # noqa: BLE001  # whatever else comes is a finding, and the soak goes on
            how = type(error).__name__
        late = time.monotonic() - began - timeout
        self.slowest_decision = max(self.slowest_decision, late)
        self.ended[kind][how] += 1
        if how not in EXPECTED[kind]:
            self.wrong.append(f"A call of {kind} ended as {how}.")
        if late > DECIDED_WITHIN:
            self.wrong.append(f"A call of {kind} was decided {late:.1f} s after its timeout.")

    async def _plain(self, tool: str, arguments: Mapping[str, Any], timeout: float) -> str:
        self.begun += 1
        value = await self._host.call(tool, arguments, timeout=timeout)
        wanted = next(iter(arguments.values()), None)
        if value != wanted:
            self.wrong.append(f"{tool} of {wanted} answered {value}.")
        return "RESULT"

    async def _written_once(self, timeout: float) -> str:
        """Two calls with one key: either both have the one result, or one has none."""
        key = f"soak-{self._dice.getrandbits(64):x}"
        self.begun += 2
        first, second = await asyncio.gather(
            *(self._host.call("write", {}, timeout=timeout, idempotency_key=key) for _ in range(2)),
            return_exceptions=True,
        )
        self._count_extra("write", first)
        if isinstance(first, str) and isinstance(second, str) and first != second:
            self.wrong.append("One request ran twice.")
        if isinstance(second, BaseException):
            raise second
        return "RESULT"

    def _count_extra(self, kind: str, end: object) -> None:
        """Counts the end of a call beside the one that its task is counted by."""
        how = "RESULT"
        if isinstance(end, BaseException):
            how = end.kind.name if isinstance(end, errors.CallFailed) else type(end).__name__
        self.ended[kind][how] += 1
        if how not in EXPECTED[kind]:
            self.wrong.append(f"A call of {kind} ended as {how}.")

    async def _cancelled(self, tool: str, seconds: float, timeout: float) -> str:
        self.begun += 1
        async with self._host.start(tool, {"seconds": seconds}, timeout=timeout) as call:
            await asyncio.sleep(self._dice.uniform(0, 0.5))
            await call.cancel()
            await call.result()
        return "RESULT"

    async def _left(self, timeout: float) -> str:
        """The caller leaves, and the sidecar alone knows the end."""
        self.begun += 1
        async with self._host.start("work", {"seconds": 5.0}, timeout=timeout):
            await asyncio.sleep(self._dice.uniform(0, 0.5))
        return "LEFT"
