"""The example on bare stubs in Python: a worker and a caller without the SDK."""

import csv
import json
import signal
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest

from tests.support import SocketHost, StartHost, on_unix
from tests.support.programs import CALLERS, PYTHON_WORKER, Program

SETS = {"profiler": frozenset(("profile_csv",))}


@pytest.fixture
def started() -> Iterator[list[Program]]:
    """Programs that the test has started; those that still run are killed when it ends."""
    programs: list[Program] = []
    yield programs
    for program in programs:
        program.close()


@on_unix
async def test_profiles_a_data_set_and_leaves_in_order(
    start_host: StartHost, tmp_path: Path, started: list[Program]
) -> None:
    host = await start_host(sets=SETS)
    assert isinstance(host, SocketHost)
    worker = Program(*PYTHON_WORKER, "--target", host.workers_at, "--token-file", f"{tmp_path}/profiler.token")
    started.append(worker)
    caller = Program(*CALLERS["python"], host.callers_at, "profile_csv", '{"dataset": "airports", "top": 1}')
    started.append(caller)
    code, output, reports = await caller.finish()

    assert code == 0, reports
    rows = list(csv.DictReader(files("airportsdata").joinpath("airports.csv").read_text("utf-8").splitlines()))
    profile = json.loads(output)
    assert (profile["rows"], [column["name"] for column in profile["columns"]]) == (len(rows), list(rows[0]))
    assert all(len(column["top"]) == 1 for column in profile["columns"] if column["type"] == "String")
    steps = len(rows[0]) + 2
    assert [report.rpartition(", ")[2] for report in reports] == [f"{done + 1} of {steps}" for done in range(steps)]

    worker.signal(signal.SIGTERM)
    assert await worker.finish() == (0, b"", [])
