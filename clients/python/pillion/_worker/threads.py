"""The threads that plain tools run in."""

import queue
import threading
from collections.abc import Callable


class Threads:
    """At most so many threads, made when needed. They are daemons: one that never ends keeps no process alive."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._made = 0

    def run(self, work: Callable[[], None]) -> None:
        """Runs something, which must not raise, in a thread that is free, in order. Called by one thread alone."""
        self._work.put(work)
        if not self._idle.acquire(blocking=False) and self._made < self._most:
            self._made += 1
            threading.Thread(target=self._serve, name=f"pillion-tool-{self._made}", daemon=True).start()

    def close(self) -> None:
        """Ends the threads as they get free."""
        for _ in range(self._made):
            self._work.put(None)

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            work()
            del work
            self._idle.release()
