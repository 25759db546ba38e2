"""Artifacts on a disk that is full: refused by name, with nothing half there, and all goes on once there is room."""

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import grpc.aio
import pytest

from sidecar._gen.pillion.v1.artifacts_pb2 import DownloadRequest, UploadHeader
from sidecar._gen.pillion.v1.outcome_pb2 import Failure, FailureKind
from tests.faults.doors import detail_of
from tests.faults.test_poor_machines import fill
from tests.support import SidecarProcess
from tests.support.artifacts import ANN, MIB, Artifacts, failure_of, stated
from tests.support.host import SETS
from tests.support.machines import lacking, with_disk

UNAVAILABLE = FailureKind.FAILURE_KIND_UNAVAILABLE
_LACKING = lacking()

pytestmark = pytest.mark.skipif(bool(_LACKING), reason=_LACKING)


@pytest.fixture
def transport() -> str:
    return "unix"


Starts = Callable[[str], Awaitable[SidecarProcess]]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Starts]:
    """Starts the program with a disk of this size for its state."""
    started: list[SidecarProcess] = []

    async def begin(size: str) -> SidecarProcess:
        process = SidecarProcess(tmp_path, SETS, within=with_disk(tmp_path / "state", size))
        started.append(process)
        await process.start()
        return process

    yield begin
    for process in started:
        await process.aclose()


def header(size: int) -> UploadHeader:
    return UploadHeader(scope=ANN, input=stated(), size=size)


async def test_an_upload_that_fills_the_disk_is_refused_and_leaves_it_as_it_was(start: Starts, tmp_path: Path) -> None:
    process = await start("8m")
    state = Path(f"/proc/{process.pid}/root{tmp_path}/state")
    async with Artifacts(process.callers_at) as artifacts:
        kept = (await artifacts.upload(header(2 * MIB), [bytes(MIB)] * 2)).meta.reference
        before = used(state)
        failure = await failure_of(artifacts.upload(header(16 * MIB), [bytes(MIB)] * 16))
        assert_full(failure)
        assert used(state) <= before + 256 * 1024, "its part is gone"
        assert await artifacts.references(ANN) == [kept]
        _, got = await artifacts.download(DownloadRequest(scope=ANN, reference=kept))
        assert got == bytes(2 * MIB)
        assert (await artifacts.upload(header(2 * MIB), [bytes(MIB)] * 2)).meta.size == 2 * MIB
    assert files_in(state) == 2


async def test_a_put_that_cannot_be_recorded_is_not_there(start: Starts, tmp_path: Path) -> None:
    process = await start("4m")
    state = Path(f"/proc/{process.pid}/root{tmp_path}/state")
    async with Artifacts(process.callers_at) as artifacts:
        kept = (await artifacts.put(ANN, b"kept")).meta.reference
        full = fill(process, tmp_path / "state")
        # An empty file takes no room, but its record does, before long.
        for _ in range(200):
            try:
                await artifacts.put(ANN, b"")
            except grpc.aio.AioRpcError as error:
                assert_full(detail_of(error))  # when it comes is not known
                break
        else:
            raise AssertionError("the disk never was full")
        listed = set(await artifacts.references(ANN))
        assert kept in listed
        assert (await artifacts.get(ANN, kept)).data.content == b"kept"
        full.unlink()
        new = (await artifacts.put(ANN, b"new")).meta.reference
        assert new in await artifacts.references(ANN)
    assert files_in(state) == len(listed) + 1


def assert_full(failure: Failure) -> None:
    assert (failure.kind, failure.retryable) == (UNAVAILABLE, True)
    assert "disk" in failure.message


def used(state: Path) -> int:
    disk = os.statvfs(state)
    return (disk.f_blocks - disk.f_bfree) * disk.f_frsize


def files_in(state: Path) -> int:
    return sum(path.is_file() for path in (state / "artifacts").rglob("*"))
