"""What a cause of failure happens on, and the list of those that are known."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outcome_pb2 import Failure
from sidecar._gen.pillion.v1.tool_pb2 import Effects, ToolDescriptor
from sidecar.calls.call import Call
from tests.support import (
    CallerPeer,
    CallLimits,
    Invocation,
    MemoryHost,
    StartHost,
    WireLimits,
    WorkerLimits,
    WorkerPeer,
    tool,
)

KIB, MIB = 1024, 1024 * 1024
KEY = "k"


class Stage:
    """A sidecar, a worker and a caller for one row, whose tool has the row's effects."""

    host: MemoryHost
    worker: WorkerPeer
    caller: CallerPeer

    def __init__(self, start_host: StartHost, monkeypatch: pytest.MonkeyPatch, effects: str) -> None:
        self.start_host = start_host
        self.patch = monkeypatch
        self.effects = Effects.Value(f"EFFECTS_{effects}")
        self.workers: list[WorkerPeer] = []
        self.was_run: bool | None = None
        """Whether the tool ran for the row's call, where the call itself does not tell."""

    async def open(
        self,
        *,
        calls: CallLimits | None = None,
        wire: WireLimits | None = None,
        workers: WorkerLimits | None = None,
        credentials: str = "",
        granted: Mapping[str, tuple[str, ...]] | None = None,
        keeps_artifacts: bool | None = None,
    ) -> None:
        """A sidecar and a caller."""
        host = await self.start_host(
            calls=calls,
            wire=wire,
            workers=workers,
            credentials=credentials,
            granted=granted,
            keeps_artifacts=keeps_artifacts,
        )
        assert isinstance(host, MemoryHost)
        self.host = host
        self.caller = await host.caller()

    async def attach(
        self, *, concurrency: int | None = None, hello: dict[str, Any] | None = None, **fields: Any
    ) -> None:
        """A further worker with the tool."""
        self.worker = await self.host.worker()
        self.workers.append(self.worker)
        await self.worker.hello(self.tool(**fields), concurrency=concurrency, **(hello or {}))

    def tool(self, **fields: Any) -> ToolDescriptor:
        return tool("echo", effects=self.effects, **fields)

    async def running(self, **fields: Any) -> tuple[int, Invocation]:
        """A call that was invoked."""
        call = await self.caller.start(**fields)
        return call, await self.worker.next_invoke()

    async def failed(self, call: int) -> Failure:
        """The failure that a call ended in."""
        outcome = await self.caller.outcome(call)
        assert outcome.HasField("failure"), outcome
        started = self.caller.frames[call][0].started
        if self.was_run is None:
            self.was_run = self._ran(started.execution_id)
        return outcome.failure

    async def fails(self, *arguments: Any, **fields: Any) -> Failure:
        """The failure of a new call."""
        return await self.failed(await self.caller.start(*arguments, **fields))

    async def unseen_failure(self, lose: Callable[[], None]) -> Failure:
        """The failure of a call whose caller is gone and cannot be told."""
        ends: asyncio.Queue[tuple[Call, Frame]] = asyncio.Queue()
        finished = self.host.pipeline.finished

        def spy(call: Call, frame: Frame) -> None:
            copy = Frame()
            copy.CopyFrom(frame)
            ends.put_nowait((call, copy))
            finished(call, frame)

        self.patch.setattr(self.host.pipeline, "finished", spy)
        lose()
        call, frame = await ends.get()
        self.was_run = self._ran(call.execution_id)
        return frame.outcome.failure

    def _ran(self, execution: str) -> bool:
        return any(
            invocation.context.execution_id == execution for worker in self.workers for invocation in worker.invoked
        )


Scenario = Callable[[Stage], Awaitable[Failure]]
SCENARIOS: dict[tuple[str, str], Scenario] = {}
"""By cause, and whether the tool was invoked: what makes it happen and answers the failure that the caller gets."""


def happens(cause: str, invoked: str) -> Callable[[Scenario], Scenario]:
    """Says which rows of the table a scenario drives."""

    def keep(scenario: Scenario) -> Scenario:
        assert (cause, invoked) not in SCENARIOS
        SCENARIOS[cause, invoked] = scenario
        return scenario

    return keep


def misdirected(call: int) -> Frame:
    """A frame that neither a caller nor a worker may send."""
    frame = Frame(call=call)
    frame.superseded.SetInParent()
    return frame
