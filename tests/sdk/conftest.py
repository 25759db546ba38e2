"""Fixtures for tests of the Python SDK against the whole sidecar over a unix socket."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
from blockbuster import BlockBuster, blockbuster_ctx

import pillion
from tests.support import SocketHost, token_of
from tests.support.listener import Hosting, WorkerListener


class StartWorker(Protocol):
    """Starts a worker of the SDK, and returns it attached. Its fixture ends it."""

    async def __call__(self, *tools: Callable[..., Any], target: str | None = None, **options: Any) -> pillion.Worker:
        """The worker."""
        ...


@pytest.fixture(autouse=True)
def nothing_blocks_the_sdk() -> Iterator[BlockBuster]:
    """Fails a test in which the SDK blocks an event loop."""
    with blockbuster_ctx("pillion") as blockbuster:
        yield blockbuster


@pytest.fixture
def transport() -> str:
    return "unix"


@pytest.fixture
async def start_worker(request: pytest.FixtureRequest) -> AsyncIterator[StartWorker]:
    running: list[tuple[pillion.Worker, asyncio.Task[None]]] = []

    async def start(*tools: Callable[..., Any], target: str | None = None, **options: Any) -> pillion.Worker:
        at = target or request.getfixturevalue("socket_host").workers_at
        worker = pillion.Worker(tools, target=at, worker="main", token=token_of("main"), **options)
        task = asyncio.create_task(worker.run())
        running.append((worker, task))
        attached = asyncio.create_task(worker.attached.wait())
        await asyncio.wait((task, attached), timeout=15, return_when=asyncio.FIRST_COMPLETED)
        attached.cancel()
        if task.done():
            await task
        assert worker.attached.is_set(), "the worker did not attach in time"
        return worker

    yield start
    for worker, task in running:
        if not task.done():
            worker.leave()
            async with asyncio.timeout(15):
                await task


@pytest.fixture
def keeps_artifacts() -> bool | None:
    """Whether the sidecar has an artifact store; a test without one parametrises it."""
    return None


@pytest.fixture
async def host(start_host: Any, keeps_artifacts: bool | None) -> SocketHost:
    made = await start_host(keeps_artifacts=keeps_artifacts)
    assert isinstance(made, SocketHost)
    return made


@pytest.fixture
async def caller(socket_host: SocketHost, start_worker: StartWorker) -> AsyncIterator[pillion.Host]:
    """A caller; it leaves before the workers do."""
    async with pillion.connect(socket_host.callers_at) as connected:
        yield connected


@pytest.fixture
async def listener(tmp_path: Path) -> AsyncIterator[WorkerListener]:
    made = WorkerListener(tmp_path / "w.sock")
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def hosting(listener: WorkerListener) -> AsyncIterator[Hosting]:
    running: list[asyncio.Task[None]] = []

    def host(*tools: Any, **options: Any) -> pillion.Worker:
        worker = pillion.Worker(tools, target=listener.target, worker="w", token="t", **options)
        running.append(asyncio.create_task(worker.run()))
        return worker

    yield host
    for task in running:
        task.cancel()
    ends = await asyncio.gather(*running, return_exceptions=True)
    assert all(end is None or isinstance(end, asyncio.CancelledError | pillion.errors.WorkerRefused) for end in ends), (
        ends
    )
