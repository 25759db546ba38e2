"""Fixtures for tests with a sidecar, a caller and a worker. `tests.support` shows how they are used."""

from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from blockbuster import BlockBuster, blockbuster_ctx

from sidecar.artifacts import ArtifactLimits
from sidecar.scope import ScopeLimits
from tests.support import (
    SETS,
    CallLimits,
    Host,
    MemoryHost,
    Setup,
    SidecarProcess,
    SocketHost,
    StartHost,
    StartProcess,
    VirtualTimeLoop,
    WireLimits,
    WorkerLimits,
    settings,
    tasks,
)

_SMALL = {
    "sidecar/app.py": {"_listen"},
    # What ends is recorded before it is told, by one write to the system's cache for a whole message.
    "sidecar/audit/log.py": {"_write"},
    "sidecar/config.py": {"_text_of"},
    "sidecar/launches.py": {"launch_of", "_tokens_in"},
    "sidecar/listening.py": {"_read", "_check", "_group", "_by_jwt"},
    "sidecar/places.py": {"private_places"},
    "sidecar/private_files.py": {"_opened"},
    "sidecar/reporting.py": {"lacking", "_trace", "_serve"},
    "sidecar/serving.py": {"_state_of"},
    "sidecar/workers/processes.py": {"__init__", "start", "_send"},
}
"""Where small files are read, packages imported, and words passed to the guardian: at the start and at reloads."""


@pytest.fixture
def transport() -> str:
    """What streams run over. `everywhere` and `on_sockets` parametrise it."""
    return "memory"


@pytest.fixture
def anyio_backend(transport: str) -> tuple[str, dict[str, Any]]:
    """Virtual time in memory; the loop of the product over sockets."""
    if transport == "memory":
        return ("asyncio", {"loop_factory": VirtualTimeLoop})
    return ("asyncio", {"use_uvloop": True})


@pytest.fixture(autouse=True)
def nothing_blocks() -> Iterator[BlockBuster]:
    """Fails a test whose product code blocks the event loop, but for the little that is not worth a thread."""
    with blockbuster_ctx("sidecar") as blockbuster:
        for function in blockbuster.functions.values():
            for file, names in _SMALL.items():
                function.can_block_in(file, names)
        yield blockbuster


@pytest.fixture
async def start_host(transport: str, tmp_path: Path) -> AsyncIterator[StartHost]:
    """Starts sidecars on the test's transport; ends them, and fails if they leave a task behind."""
    hosts: list[Host] = []

    async def start(  # noqa: PLR0913  # settings, all by name
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
        setup = Setup(
            calls or CallLimits(),
            wire or WireLimits(),
            workers or WorkerLimits(),
            sets or SETS,
            artifacts or ArtifactLimits(),
            credentials,
            granted or {},
            scopes or ScopeLimits(),
            keeps_artifacts,
        )
        if transport == "memory":
            host: Host = MemoryHost(setup)
        else:
            assert not hosts, "signals end sidecars, so there is one at a time in a process"
            socket_host = SocketHost(transport, settings(setup, transport, tmp_path))
            await socket_host.open()
            host = socket_host
        hosts.append(host)
        return host

    yield start
    for host in hosts:
        await host.aclose()
    if transport == "memory":
        assert not tasks(), "tasks outlive their sidecar"


@pytest.fixture
async def host(start_host: StartHost) -> Host:
    """A sidecar with default limits on the test's transport."""
    return await start_host()


@pytest.fixture
async def memory_host(host: Host) -> MemoryHost:
    """The sidecar in memory, with its parts."""
    assert isinstance(host, MemoryHost), "this test is for memory alone"
    return host


@pytest.fixture
async def socket_host(host: Host) -> SocketHost:
    """The whole sidecar over sockets."""
    assert isinstance(host, SocketHost), "this test is for sockets alone: mark it on_sockets"
    return host


@pytest.fixture
async def sidecar_process(tmp_path: Path) -> AsyncIterator[SidecarProcess]:
    """A sidecar in a process of its own, started; for a test that is marked `on_unix`."""
    process = SidecarProcess(tmp_path)
    await process.start()
    yield process
    await process.aclose()


@pytest.fixture
async def start_process(tmp_path: Path) -> AsyncIterator[StartProcess]:
    """Starts a sidecar in a process of its own, with these workers in its settings; marked `on_unix` as well."""
    started: list[SidecarProcess] = []

    async def start(workers: str) -> SidecarProcess:
        assert not started, "there is one at a time"
        process = SidecarProcess(tmp_path, {})
        process.write(workers)
        started.append(process)
        await process.start()
        return process

    yield start
    for process in started:
        await process.aclose()
