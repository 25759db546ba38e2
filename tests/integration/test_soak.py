"""A short soak, as `make soak` runs it for longer."""

import json
import os
import subprocess
import sys

import pytest

from tests.soak.readings import slope
from tests.support.documents import ROOT

SECONDS = 15


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_short_soak_ends_with_every_call_decided() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.soak", "--minutes", str(SECONDS / 60)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "clients" / "python")))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["ok"]
    assert summary["calls"] == sum(sum(ends.values()) for ends in summary["ended"].values()) > SECONDS * 5
    assert {"kill_a_worker", "stop_a_worker", "add_or_remove_a_worker"} <= summary["disturbances"].keys()


def test_the_slope_of_a_line() -> None:
    assert slope([0, 1, 2, 3], [5, 7, 9, 11]) == pytest.approx(2)
    assert slope([0, 1, 2, 3], [1, -1, 1, -1]) == pytest.approx(-0.4)
    assert slope([1, 1], [2, 3]) == 0
    assert slope([1], [2]) == 0
