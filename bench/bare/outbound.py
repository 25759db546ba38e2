"""What a running tool over bare stubs asks of the sidecar, again and again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from bench.bare.frames import Template
from bench.bare.stubs import Frame, OutboundRequest, Reply


class Repeated:
    """One request of one call, so many times at once: each time it is answered it is made anew, until `stop`."""

    def __init__(self, call: int, request: OutboundRequest, width: int, send: Callable[[bytes], None]) -> None:
        self.answered_at: list[float] = []
        """When each answer came."""
        self._send = send
        self._messages = {}
        for number in range(1, width + 1):
            request.request_id = number
            self._messages[number] = Template(Frame(outbound_request=request)).fill(call)
        self._open = width
        self._stopping = False
        self._wanted = 0
        self._news = asyncio.Event()
        self._failed = ""
        for message in self._messages.values():
            send(message)

    def replied(self, reply: Reply) -> None:
        """An answer came."""
        if reply.HasField("error") or reply.tool_outcome.HasField("failure"):
            self._failed = str(reply)[:200]
            self._stopping = True
        self.answered_at.append(time.perf_counter())
        if self._stopping:
            self._open -= 1
        else:
            self._send(self._messages[reply.request_id])
        if not self._open or len(self.answered_at) == self._wanted:
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
