"""Memory stays flat, whatever goes in and out."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar._gen.pillion.v1.artifacts_pb2 import DownloadRequest, UploadHeader
from tests.support import SidecarProcess
from tests.support.artifacts import ANN, MIB, Artifacts, stated

SIZE = 256
MOST_GROWTH = 32 * MIB


@pytest.fixture
def transport() -> str:
    return "unix"


def peak(process: SidecarProcess) -> int:
    """The most memory that the process has had."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


async def test_a_payload_of_any_size_passes_in_flat_memory(sidecar_process: SidecarProcess) -> None:
    asyncio.get_running_loop().set_debug(False)
    chunk = bytes(range(256)) * (MIB // 256)

    def chunks() -> Iterator[bytes]:
        for _ in range(SIZE):
            yield chunk

    async with Artifacts(sidecar_process.callers_at) as artifacts:
        small = UploadHeader(scope=ANN, input=stated(digest=True), size=4 * MIB)
        reference = (await artifacts.upload(small, [chunk] * 4)).meta.reference
        await artifacts.download(DownloadRequest(scope=ANN, reference=reference))
        before = peak(sidecar_process)
        header = UploadHeader(scope=ANN, input=stated(digest=True), size=SIZE * MIB)
        reference = (await artifacts.upload(header, chunks())).meta.reference
        after_upload = peak(sidecar_process)
        got = 0
        async for part in artifacts.stub.Download(DownloadRequest(scope=ANN, reference=reference)):
            got += len(part.chunk)
        assert got == SIZE * MIB
        after_download = peak(sidecar_process)
    growth = (after_upload - before, after_download - before)
    print(f"peak memory grew by {growth[0] / MIB:.1f} MiB for an upload, and {growth[1] / MIB:.1f} MiB with a download")
    assert max(growth) <= MOST_GROWTH
