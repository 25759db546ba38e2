"""An event loop whose clock jumps: where nothing is ready, it goes straight to the next timer."""

import asyncio
import selectors
from typing import Any

_THREADS_HAVE = 10.0


class Hung(Exception):
    """Nothing is ready, no timer is set, and no thread has answered: what is awaited can never happen."""


class _JumpingSelector:
    """A selector that never waits for a timer: it adds the time to its clock and says that nothing came."""

    def __init__(self) -> None:
        self.now = 0.0
        self._selector = selectors.DefaultSelector()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            # Only another thread could go on from here, by waking the loop.
            ready = self._selector.select(_THREADS_HAVE)
            if not ready:
                raise Hung("nothing is ready and no timer is set")
            return ready
        ready = self._selector.select(0)
        if not ready and timeout > 0:
            self.now += timeout
        return ready

    def __getattr__(self, name: str) -> Any:
        return getattr(self._selector, name)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Runs timers in their order and at their time, by a clock that moves only when everything else is blocked.

    So a timeout of a minute passes at once, and `asyncio.sleep` of any length returns only after all that could go on
    before it has gone on. Not for sockets: a peer in another process has another clock.
    """

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)  # type: ignore[arg-type]  # it has the methods of the one it wraps

    def time(self) -> float:
        """The virtual time, in seconds since the loop was made."""
        return self._jumping.now

    def timers(self) -> list[asyncio.TimerHandle]:
        """The timers that are set."""
        scheduled: list[asyncio.TimerHandle] = vars(self)["_scheduled"]
        return [timer for timer in scheduled if not timer.cancelled()]
