"""How a running tool learns that it should stop, and how it says how it ended."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any, NoReturn

from pillion._content import Content
from pillion._facts import CancelReason, SideEffects
from pillion._failures import PillionError


class Cancelled(asyncio.CancelledError):
    """The call was asked to stop. Like every cancellation it passes by `except Exception`; let it go on."""

    def __init__(self, reason: CancelReason) -> None:
        super().__init__(f"the call was cancelled: {reason.name}")
        self.reason = reason


class ToolError(PillionError):
    """Raised by a tool: the call fails as TOOL_FAILED, and the caller gets this message.

    It is the one exception whose text leaves the worker, so it must hold nothing that the caller may not see. What the
    tool says of side effects is believed: say `SideEffects.NONE` where nothing was done.
    """

    def __init__(
        self,
        message: str,
        *,
        retryable: bool = False,
        retry_after: float | None = None,
        side_effects: SideEffects | None = None,
    ) -> None:
        super().__init__(message)
        # Whoever passes on an exception means its text.
        self.message = str(message)
        self.retryable = retryable
        """Whether the same request may work later."""
        self.retry_after = retry_after
        """In how many seconds to try again."""
        self.side_effects = side_effects
        """What was done; `None` leaves it to what the tool declares: NONE if it is READ, else POSSIBLE."""


class ToolResult:
    """Returned by a tool that has more to say than a value: blocks of content, or that the result is an error."""

    __slots__ = ("content", "is_error", "value")

    def __init__(self, value: Any = None, *, content: Sequence[Content] = (), is_error: bool = False) -> None:
        self.value = value
        """The value. `None` is none, unless the tool is declared to return something that may be `None`."""
        self.content = tuple(content)
        self.is_error = is_error


class CancelSignal:
    """Whether a call was asked to stop. Set once, on the event loop; looked at by any thread."""

    __slots__ = ("_event", "_waiters", "reason")

    def __init__(self) -> None:
        self.reason: CancelReason | None = None
        self._event: threading.Event | None = None
        self._waiters: list[asyncio.Future[None]] | None = None

    def set(self, reason: CancelReason) -> bool:
        """Asks to stop. False: it was asked before, and the first reason stays."""
        if self.reason is not None:
            return False
        self.reason = reason
        if self._event is not None:
            self._event.set()
        for waiter in self._waiters or ():
            if not waiter.done():
                waiter.set_result(None)
        return True

    async def wait(self) -> CancelReason:
        """The reason, once there is one."""
        while self.reason is None:
            waiter = asyncio.get_running_loop().create_future()
            waiters = self._waiters = self._waiters or []
            waiters.append(waiter)
            try:
                await waiter
            finally:
                waiters.remove(waiter)
        return self.reason

    def wait_in_thread(self, seconds: float) -> bool:
        """Whether a reason came within so many seconds."""
        event = self._event
        if event is None:
            event = self._event = threading.Event()
        # The event is there before this looks, so a reason that comes now is seen either here or there.
        return self.reason is not None or event.wait(seconds) or self.reason is not None

    def raise_if_set(self) -> None:
        """Raises `Cancelled` if there is a reason."""
        if self.reason is not None:
            self._raise(self.reason)

    @staticmethod
    def _raise(reason: CancelReason) -> NoReturn:
        raise Cancelled(reason)
