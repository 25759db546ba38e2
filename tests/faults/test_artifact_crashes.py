"""A sidecar that is killed while it keeps artifacts: what it acknowledged is there, and of the rest nothing is seen."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from sidecar._gen.pillion.v1.artifacts_pb2 import DeleteRequest, DownloadRequest, UploadHeader, UploadRequest
from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind
from sidecar.artifacts.files import FileArtifactStore
from sidecar.storage import Database
from tests.support import SidecarProcess
from tests.support.artifacts import ANN, MIB, Artifacts, failure_of, stated
from tests.support.crashing_store import FIRST, LIMITS, SCOPE, SECOND, THIRD
from tests.support.process import ROOT

PAYLOADS: Mapping[str, bytes] = {"put": FIRST, "upload": SECOND, "evict": THIRD}
_MOST_SECONDS = 50


@pytest.fixture
def transport() -> str:
    """In real time: the disk has no other."""
    return "unix"


def said(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "said").read_text().splitlines()]


def runs_in(directory: Path) -> list[Path]:
    return sorted(directory.iterdir(), key=lambda path: int(path.name))


def files_in(directory: Path) -> set[str]:
    return {path.name for path in (directory / "artifacts").rglob("*") if path.is_file()}


async def test_whatever_it_was_doing_when_it_was_killed(tmp_path: Path) -> None:
    asyncio.get_running_loop().set_debug(False)
    await asyncio.to_thread(
        subprocess.run,
        (sys.executable, str(ROOT / "tests" / "support" / "crashing_store.py"), str(tmp_path)),
        check=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        timeout=_MOST_SECONDS,
    )
    runs = runs_in(tmp_path)
    killed = set()
    for directory in runs:
        told = said(directory)
        killed.add((told[-2].get("begins"), told[-1].get("killed")))
        await check(directory, told)
    # It is no use to be killed where nothing happens.
    assert "killed" not in said(runs[-1])[-1]
    steps = {(work, f"{when} {step}") for when in ("before", "after") for work, step in STEPS}
    assert steps <= killed


async def test_a_sidecar_that_is_killed_has_what_it_acknowledged_and_nothing_else(
    sidecar_process: SidecarProcess, tmp_path: Path
) -> None:
    payload = bytes(range(256)) * 8_192
    async with Artifacts(sidecar_process.callers_at) as artifacts:
        kept = (await artifacts.put(ANN, payload[:1_000], digest=True)).meta
        header = UploadHeader(scope=ANN, input=stated(digest=True), size=len(payload))
        large = (await artifacts.upload(header, [payload[:MIB], payload[MIB:]])).meta
        gone = (await artifacts.put(ANN, b"gone")).meta.reference
        await artifacts.stub.Delete(DeleteRequest(scope=ANN, reference=gone))
        begun = await artifacts.upload(header, [payload[:MIB]])
        running = artifacts.stub.Upload()
        await running.write(UploadRequest(header=header))
        await running.initial_metadata()
        await running.write(UploadRequest(chunk=payload[:MIB]))
        await sidecar_process.kill()
        with pytest.raises(grpc.aio.AioRpcError):
            await running
    assert len(parts_in(tmp_path)) == 2
    await sidecar_process.start()
    async with Artifacts(sidecar_process.callers_at) as artifacts:
        assert await artifacts.references(ANN) == [large.reference, kept.reference]
        meta, got = await artifacts.download(DownloadRequest(scope=ANN, reference=large.reference))
        assert (meta.digest, got) == (large.digest, payload)
        assert (await artifacts.get(ANN, kept.reference)).data.content == payload[:1_000]
        failure = await failure_of(artifacts.upload(UploadHeader(scope=ANN, upload_id=begun.upload_id)))
        assert failure.kind == FailureKind.FAILURE_KIND_ARTIFACT_UNAVAILABLE, "it is to be begun anew"
    assert parts_in(tmp_path) == []


def parts_in(directory: Path) -> list[str]:
    return [path.name for path in (directory / "state" / "artifacts" / "parts").iterdir()]


STEPS = (
    ("put", "pwrite"),
    ("put", "fsync"),
    ("put", "rename"),
    ("put", "_commit"),
    ("upload", "pwrite"),
    ("upload", "fsync"),
    ("upload", "rename"),
    ("upload", "_commit"),
    ("evict", "_commit"),
    ("evict", "unlink"),
    ("delete", "_commit"),
    ("delete", "unlink"),
)


async def check(directory: Path, told: list[dict[str, Any]]) -> None:
    """What is found is what was acknowledged, with or without what was going on; and nothing else is on the disk."""
    lasting: dict[str, bytes] = {}
    for line in told:
        if "ends" in line:
            lasting.pop(line.get("gone", ""), None)
            if "stored" in line:
                lasting[line["stored"]] = PAYLOADS[line["ends"]]
    begun = [line for line in told if "begins" in line][-1]
    is_underway = "killed" in told[-1] and not any(line.get("ends") == begun["begins"] for line in told)
    async with Database(directory / "pillion.db") as database:
        store = FileArtifactStore(database, directory / "artifacts", LIMITS)
        await store.open()
        await store.sweep_orphans()
        found = {}
        for meta in (await store.list(SCOPE)).artifacts:
            async with store.get(SCOPE, meta.reference) as artifact:
                found[meta.reference] = b"".join([chunk async for chunk in artifact.chunks()])
        files = await database.read(lambda connection: connection.execute("SELECT file FROM artifact").fetchall())
        assert files_in(directory) == {file for (file,) in files}, told[-1]
        await store.aclose()
    if not is_underway:
        assert found == lasting, told[-1]
        return
    gone = begun.get("gone")
    before, after = dict(lasting), {name: payload for name, payload in lasting.items() if name != gone}
    new = [payload for name, payload in found.items() if name not in lasting]
    if new:
        assert new == [PAYLOADS[begun["begins"]]], told[-1]
        after |= {name: payload for name, payload in found.items() if name not in lasting}
        assert found == after, told[-1]
    else:
        assert found == before or (begun["begins"] == "delete" and found == after), told[-1]
