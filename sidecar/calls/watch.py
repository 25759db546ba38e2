"""Calls as those who look on see them, event by event."""

import asyncio
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sidecar._gen.pillion.v1.admin_pb2 import CallEventKind, CallState, WatchCallsResponse
from sidecar._gen.pillion.v1.context_pb2 import CancelReason
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar.calls.strict_json import JsonRefused, parse
from sidecar.calls.summary import summary_of
from sidecar.line import line_of

if TYPE_CHECKING:
    from sidecar.calls.call import Call
    from sidecar.calls.pipeline import Pipeline

_MOST_KEPT = 1_024
_STARTED = CallEventKind.CALL_EVENT_KIND_STARTED
_PROGRESS = CallEventKind.CALL_EVENT_KIND_PROGRESS
_QUESTION = CallEventKind.CALL_EVENT_KIND_QUESTION
_CANCELLED = CallEventKind.CALL_EVENT_KIND_CANCELLED
_ENDED = CallEventKind.CALL_EVENT_KIND_ENDED


class Watcher:
    """One who looks on. What is not taken in time is lost, and counted."""

    def __init__(self, tool: str | None) -> None:
        self.tool = tool
        """The tool whose calls are looked at; `None`: all."""
        self._kept: deque[WatchCallsResponse] = deque()
        self._lost = 0
        self._news = asyncio.Event()

    def put(self, event: WatchCallsResponse) -> None:
        """Something happened."""
        if self.tool is not None and event.call.tool != self.tool:
            return
        if len(self._kept) >= _MOST_KEPT:
            self._lost += 1
            return
        if self._lost:
            told = WatchCallsResponse(lost=self._lost)
            told.MergeFrom(event)
            event, self._lost = told, 0
        self._kept.append(event)
        self._news.set()

    async def take(self) -> WatchCallsResponse:
        """The next event."""
        while not self._kept:
            self._news.clear()
            await self._news.wait()
        return self._kept.popleft()


class Watch:
    """All who look on. A pipeline has one while somebody does, and calls tell it what happens to them."""

    def __init__(self, pipeline: "Pipeline") -> None:
        self._pipeline = pipeline
        self._watchers: set[Watcher] = set()
        self._begun: set[Call] = set()
        """The running calls whose start was told."""

    @contextmanager
    def watching(self, tool: str | None) -> Iterator[Watcher]:
        """Somebody looks on inside the block. First come the calls that run already, as they are now."""
        watcher = Watcher(tool)
        for call in sorted(self._pipeline.running, key=lambda call: call.started_at):
            self._begun.add(call)
            watcher.put(self._event(_STARTED, call))
        self._watchers.add(watcher)
        try:
            yield watcher
        finally:
            self._watchers.discard(watcher)
            if not self._watchers:
                self._pipeline.watch = None

    def started(self, call: "Call") -> None:
        """A call started. Told once, at the latest before anything else of it."""
        if call not in self._begun:
            self._begun.add(call)
            self._tell(self._event(_STARTED, call))

    def reported(self, call: "Call", frame: Frame) -> None:
        """Its tool reported. Only its caller sees the report as it is: what others see holds no secret."""
        self.started(call)
        event = self._event(_PROGRESS, call)
        try:
            payload = parse(frame.progress.payload)
        except JsonRefused:
            payload = None
        line = line_of(call.tool_name, payload, call.reports)
        redact = self._pipeline.redact
        event.call.line = line if redact is None else redact(line)
        self._tell(event)

    def asked(self, call: "Call") -> None:
        """Its caller is asked something."""
        self.started(call)
        self._tell(self._event(_QUESTION, call))

    def cancelled(self, call: "Call", reason: "CancelReason.ValueType") -> None:
        """Its tool is asked to stop."""
        self.started(call)
        event = self._event(_CANCELLED, call)
        event.reason = reason
        self._tell(event)

    def ended(self, call: "Call", frame: Frame) -> None:
        """It has this outcome."""
        self.started(call)
        self._begun.discard(call)
        event = self._event(_ENDED, call)
        if frame.outcome.HasField("failure"):
            event.failure = frame.outcome.failure.kind
        elif frame.outcome.HasField("paused"):
            event.call.state = CallState.CALL_STATE_PAUSED
        self._tell(event)

    def _event(self, kind: "CallEventKind.ValueType", call: "Call") -> WatchCallsResponse:
        event = WatchCallsResponse(kind=kind, time_unix_nano=time.time_ns())
        event.call.CopyFrom(summary_of(call, self._pipeline.loop.time(), self._pipeline.redact))
        return event

    def _tell(self, event: WatchCallsResponse) -> None:
        for watcher in self._watchers:
            watcher.put(event)
