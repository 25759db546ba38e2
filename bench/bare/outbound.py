"""What a running tool over bare stubs asks of the sidecar, again and again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from bench.bare.stubs import Reply


class Repeated:
    """Requests of one call, so many at once: whenever one is answered the next is made, until `stop`.

    `message` makes one, of an id that is free again and the number of answers before it.
    """

    def __init__(self, message: Callable[[int, int], bytes], width: int, send: Callable[[bytes], None]) -> None:
        self.answered_at: list[float] = []
        """When each answer came."""
        self._message = message
        self._send = send
        self._open = width
        self._stopping = False
        self._wanted = 0
        self._news = asyncio.Event()
        self._failed = ""
        for request_id in range(1, width + 1):
            send(message(request_id, 0))

    def replied(self, reply: Reply) -> None:
        """An answer came."""
        if reply.HasField("error") or reply.tool_outcome.HasField("failure"):
            self._failed = str(reply)[:200]
            self._stopping = True
        self.answered_at.append(time.perf_counter())
        answered = len(self.answered_at)
        if self._stopping:
            self._open -= 1
        else:
            self._send(self._message(reply.request_id, answered))
        if not self._open or answered == self._wanted:
            self._news.set()

    async def answered(self, count: int) -> None:
        """Returns once so many answers came."""
        self._wanted = count
        while len(self.answered_at) < count and self._open:
            self._news.clear()
            await self._news.wait()

    async def stop(self) -> None:
        """Asks no more; returns once all is answered. Raises RuntimeError if something was refused."""
        self._stopping = True
        while self._open:
            self._news.clear()
            await self._news.wait()
        if self._failed:
            raise RuntimeError(self._failed)
