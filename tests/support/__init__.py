"""A sidecar in the test's hands, with a caller and a worker at its two ends.

The same test runs over streams in memory, where time is virtual, and over real sockets::

    @everywhere
    async def test_progress_comes_before_the_outcome(host: Host) -> None:
        worker, caller = await attach(host, tool("echo")), await host.caller()
        call = await caller.start("echo", {"text": "hello"})
        invocation = await worker.next_invoke()
        await worker.progress(invocation.call, {"message": "half way"})
        await worker.result(invocation.call, b'"hello"')
        outcome = await caller.outcome(call)
        assert outcome.result.json == b'"hello"'
        assert caller.bodies(call) == ["started", "progress", "outcome"]

Without `@everywhere` (or `@on_sockets`) a test that asks for `host` runs in memory alone. There nothing takes real
time: `await asyncio.sleep(60)` returns at once, after all that happens in that minute; `await quiet()` returns once
nothing more can happen without time going on. `host` has default limits; `start_host` is a fixture that takes others::

    async def test_a_cancelled_tool_has_its_grace(start_host: StartHost) -> None:
        host = await start_host(calls=CallLimits(cancel_grace=0.5))

Over sockets nobody sleeps to wait for something: `await peer.flush()` returns once the sidecar has handled all that the
peer sent. Every wait ends in an error that says what did not come. `memory_host` is the host in memory with its parts
(`pipeline`, `catalogue`, `streams`, `counts`, `store`) to be looked at; `socket_host` is the whole sidecar, with
`callers_at` and `workers_at`; `sidecar_process` is one that can be killed, for tests marked `@on_unix`, and
`start_process` is a fixture that starts one with `hosted` workers of its own. `attach` gives a worker that was
welcomed, `host.worker()` one that has not said hello. Worker sets, their tools and tokens are in `SETS` and `token_of`.
All peers and hosts are closed by the fixtures.
"""

import asyncio
import os
from collections.abc import Mapping
from typing import Protocol

import pytest

# As the program does: gRPC looks for forks unless it is told before it loads that there are none without exec, and its
# own handlers may crash the process that a test starts.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

from sidecar.artifacts import ArtifactLimits
from sidecar.calls.limits import CallLimits
from sidecar.scope import ScopeLimits
from sidecar.wire.limits import WireLimits
from sidecar.workers.limits import WorkerLimits
from tests.support.caller import CallerPeer, start_of
from tests.support.host import SETS, Host, MemoryHost, Setup, SocketHost, attach, settings
from tests.support.links import End, GrpcLink, Link, MemoryLink
from tests.support.peer import Peer
from tests.support.process import SidecarProcess, hosted
from tests.support.scopes import end_scope
from tests.support.store import InMemoryIdempotencyStore
from tests.support.tools import IDEMPOTENT, READ, UNSAFE, seconds, text, tool
from tests.support.virtual_time import Hung, VirtualTimeLoop
from tests.support.worker import Invocation, WorkerPeer, failure, progress, result, token_of, tools_changed

__all__ = (
    "IDEMPOTENT",
    "READ",
    "SETS",
    "UNSAFE",
    "CallLimits",
    "CallerPeer",
    "End",
    "GrpcLink",
    "Host",
    "Hung",
    "InMemoryIdempotencyStore",
    "Invocation",
    "Link",
    "MemoryHost",
    "MemoryLink",
    "Peer",
    "ScopeLimits",
    "Setup",
    "SidecarProcess",
    "SocketHost",
    "StartHost",
    "StartProcess",
    "VirtualTimeLoop",
    "WireLimits",
    "WorkerLimits",
    "WorkerPeer",
    "attach",
    "end_scope",
    "everywhere",
    "failure",
    "hosted",
    "on_sockets",
    "on_unix",
    "progress",
    "quiet",
    "result",
    "seconds",
    "settings",
    "start_of",
    "tasks",
    "text",
    "token_of",
    "tool",
    "tools_changed",
)

everywhere = pytest.mark.parametrize("transport", ["memory", "unix", "tcp"])
"""Runs a test over memory, a unix socket and loopback TCP."""

on_unix = pytest.mark.parametrize("transport", ["unix"])
"""Runs a test over a unix socket, in real time."""

on_sockets = pytest.mark.parametrize("transport", ["unix", "tcp"])
"""Runs a test over a unix socket and loopback TCP."""


class StartHost(Protocol):
    """Starts a sidecar with other settings than the defaults, on the test's transport. Its fixture ends it."""

    async def __call__(  # noqa: PLR0913  # settings, all by name
        self,
        *,
        calls: CallLimits | None = None,
        wire: WireLimits | None = None,
        workers: WorkerLimits | None = None,
        artifacts: ArtifactLimits | None = None,
        scopes: ScopeLimits | None = None,
        sets: dict[str, frozenset[str]] | None = None,
        credentials: str = "",
        granted: Mapping[str, tuple[str, ...]] | None = None,
        keeps_artifacts: bool | None = None,
    ) -> Host:
        """The running sidecar."""
        ...


class StartProcess(Protocol):
    """Starts a sidecar in a process of its own, with these workers in its settings. Its fixture ends it."""

    async def __call__(self, workers: str) -> SidecarProcess:
        """The running sidecar."""
        ...


async def quiet() -> None:
    """In virtual time: returns once everything else is blocked, and nothing is left but to let time go on."""
    assert isinstance(asyncio.get_running_loop(), VirtualTimeLoop), "only virtual time tells when all is quiet"
    await asyncio.sleep(1e-6)


def tasks() -> set["asyncio.Task[object]"]:
    """The tasks there are, but for the ones that run this test."""
    return {task for task in asyncio.all_tasks() if not _is_runner(task)}


def _is_runner(task: "asyncio.Task[object]") -> bool:
    return getattr(task.get_coro(), "__qualname__", "").startswith("TestRunner.") or task is asyncio.current_task()
