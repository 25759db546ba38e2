"""The demo as a person runs it: a sidecar, a worker and a caller in processes of their own, on real data."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "clients" / "python" / "examples" / "bare" / "run.py"
MARK = "PILLION_DEMO_TEST"


class Demo:
    """One run of the demo, whose processes bear a mark and whose directory is made in `place`."""

    def __init__(self, place: Path, program: Path = DEMO) -> None:
        self.place = place
        self.mark = uuid.uuid4().hex
        self.process = subprocess.Popen(
            [sys.executable, "-X", "dev", program],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # Without what make exports for this repository: the program finds its own.
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
            | {MARK: self.mark, "TMPDIR": str(place), "PYTHONDEVMODE": "1"},
        )

    def finish(self) -> tuple[list[str], str]:
        """The lines of its standard output that were not read yet, and its standard error."""
        output, errors = self.process.communicate(timeout=50)
        return output.splitlines(), errors

    def left(self) -> list[str]:
        """The processes and files of the run that are still there."""
        return [*map(str, self._processes()), *map(str, self.place.iterdir())]

    def _processes(self) -> Iterator[psutil.Process]:
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self.mark:
                    yield process
            except psutil.Error:  # Gone, a zombie of somebody else's, or not ours to read.
                continue

    def kill(self) -> None:
        """Ends whatever a failed test has left."""
        for process in self._processes():
            process.kill()
        self.process.wait()


@pytest.fixture
def place() -> Iterator[Path]:
    """A short path: the name of a unix socket has no more than 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="pd-") as directory:
        yield Path(directory)


@pytest.fixture
def demo(place: Path) -> Iterator[Demo]:
    run = Demo(place)
    with run.process:
        yield run
        run.kill()


def test_shows_progress_and_prints_the_profile_as_its_last_line(demo: Demo) -> None:
    output, errors = demo.finish()
    assert (demo.process.returncode, errors) == (0, "")

    *shown, last = output
    with Path(str(files("airportsdata")), "airports.csv").open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    profile = json.loads(last)
    assert profile["dataset"] == "airports"
    assert profile["rows"] == len(rows)
    assert [column["name"] for column in profile["columns"]] == list(rows[0])
    for column in profile["columns"]:
        values = [row[column["name"]] for row in rows]
        assert column["nulls"] == values.count(""), column["name"]
        if column["type"] == "String":
            assert column["distinct"] == len(set(values) - {""}), column["name"]
            assert [top["count"] for top in column["top"]] == [values.count(top["value"]) for top in column["top"]]
        else:
            assert column["min"] == pytest.approx(min(map(float, values)))
            assert column["max"] == pytest.approx(max(map(float, values)))
            assert column["mean"] == pytest.approx(sum(map(float, values)) / len(values))
    assert {frozenset(pair["columns"]) for pair in profile["correlations"]} == {
        frozenset(pair) for pair in (("lat", "lon"), ("elevation", "lat"), ("elevation", "lon"))
    }

    steps = len(profile["columns"]) + 2
    reports = [line for line in shown if line.endswith(f" of {steps}")]
    assert len(reports) == steps
    assert reports[-1].startswith("correlated 3 pairs")
    assert demo.left() == []


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("after", ["Starting the sidecar.", "Starting a worker with the tool profile_csv."])
def test_leaves_nothing_when_it_is_interrupted(demo: Demo, ending: signal.Signals, after: str) -> None:
    assert demo.process.stdout is not None
    for line in demo.process.stdout:
        if line.strip() == after:
            break
    demo.process.send_signal(ending)
    _, errors = demo.finish()
    assert demo.process.returncode == 1
    assert errors == "Interrupted: sidecar and worker have been ended.\n"
    assert demo.left() == []


def test_says_what_to_do_when_the_sidecar_does_not_start(place: Path, tmp_path: Path) -> None:
    program = tmp_path / DEMO.relative_to(ROOT)
    shutil.copytree(DEMO.parent, program.parent)
    (tmp_path / "sidecar").mkdir()
    (tmp_path / "sidecar" / "__main__.py").write_text("import a_module_that_is_missing\n")
    demo = Demo(place, program)
    with demo.process:
        output, errors = demo.finish()
        demo.kill()
    assert demo.process.returncode == 1
    assert output == ["Starting the sidecar."]
    assert "ModuleNotFoundError: No module named 'a_module_that_is_missing'" in errors
    assert "run `make demo`" in errors
    assert errors.endswith("The sidecar ended with code 1 before it was ready.\n")
    assert demo.left() == []


def test_says_so_when_the_temporary_directory_has_too_long_a_path(place: Path) -> None:
    long = place / ("long" * 30)
    long.mkdir()
    demo = Demo(long)
    with demo.process:
        output, errors = demo.finish()
    assert (demo.process.returncode, output) == (1, [])
    assert errors.endswith("set a shorter TMPDIR.\n")
    assert demo.left() == []
