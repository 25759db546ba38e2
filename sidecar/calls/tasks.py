"""Work that goes on beside the calls, so that its end can be waited for."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from sidecar.telemetry import Counters

_log = logging.getLogger(__name__)

_Answer = TypeVar("_Answer")


class Tasks:
    """The tasks of one part of the sidecar. What one raises is logged and counted, also where nobody waits for it."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._running: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, _Answer]) -> "asyncio.Task[_Answer]":
        """Begins work that somebody waits for by its task."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._done)
        return task

    def begin(self, work: Coroutine[Any, Any, object]) -> None:
        """Begins work that is left to itself."""
        _ = self.start(work)

    async def settled(self) -> None:
        """Returns when nothing runs any more, what was begun meanwhile among it."""
        while self._running:
            await asyncio.wait(tuple(self._running))

    def _done(self, task: "asyncio.Task[Any]") -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._counters.add("internal_errors")
            _log.error("work beside the calls failed inside the sidecar", exc_info=error)
