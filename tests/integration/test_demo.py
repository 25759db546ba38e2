"""The demo as a person runs it: the commands that it shows, on real data."""

import csv
import json
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest
from PIL import Image

from tests.support.demos import Demo, kept_beside, short_place
from tests.support.terminal import OnTerminal, frames, screen

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "clients" / "python" / "examples" / "sdk" / "demo.py"
DATA = Path(str(files("airportsdata")), "airports.csv")


def shown(path: Path) -> str:
    """A path as the demo shows it: from the repository, where it is in there."""
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


@pytest.fixture
def place() -> Iterator[Path]:
    with short_place() as directory:
        yield directory


@pytest.fixture
def demo(place: Path) -> Iterator[Demo]:
    run = Demo(place, DEMO)
    with run.process:
        yield run
        run.kill()


def test_shows_its_commands_and_progress_and_prints_the_profile_as_its_last_line(demo: Demo) -> None:
    output, errors = demo.finish()
    assert demo.process.returncode == 0, errors

    *commands, last = output
    (address,) = re.findall(r"unix:(.*)/callers.sock", commands[0])
    assert commands == [
        f"$ export PILLION_ADDRESS=unix:{address}/callers.sock",
        f"$ deploy/pillion serve --config clients/python/examples/sdk/pillion.toml --state-dir {address} &",
        "$ deploy/pillion wait-ready profiler",
        f"$ deploy/pillion call profile_csv --artifact data=@{shown(DATA)} --save {demo.kept}",
    ]
    with DATA.open(encoding="utf-8", newline="") as lines:
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

    # That a step took long is said of the machine, not of the program.
    reports = [line for line in errors.splitlines() if not line.startswith("Executing <")]
    assert len(reports) == len(profile["columns"]) + 4
    assert reports[0].startswith(f"read {len(rows):,} rows")
    assert reports[-3].startswith("correlated 3 pairs")
    assert reports[-2].startswith("drew a chart of ")
    chart = demo.kept / "airports.png"
    assert reports[-1].startswith(f"{chart}: image/png, ")
    with Image.open(chart) as image:
        image.load()
        assert image.format == "PNG"
        assert image.size == (1280, 860)
        assert len(image.getcolors() or ()) > 20, "something is drawn in it"
    assert [path.name for path in chart.parent.iterdir()] == ["airports.png"]
    assert re.fullmatch(r"art_[0-9A-Za-z]{22}", profile["chart"])
    assert demo.left() == []


def test_draws_a_bar_on_a_terminal(place: Path) -> None:
    kept = kept_beside(place)
    terminal = OnTerminal(sys.executable, DEMO, str(kept), columns=60, environment={"TMPDIR": str(place)})
    try:
        assert terminal.finish()[0] == 0, terminal.text
    finally:
        terminal.close()
    bars = [frame for frame in frames(terminal.text) if frame.startswith("[")]
    assert bars[-1].startswith("[####################] 100% drew a chart of")
    assert all(len(bar) < 60 for bar in bars)
    *_, last, empty = screen(terminal.text)
    assert (json.loads(last)["dataset"], empty) == ("airports", "")
    assert list(place.iterdir()) == []
    assert [path.name for path in kept.iterdir()] == ["airports.png"]


def test_needs_no_home_and_heeds_no_settings_of_the_user(place: Path) -> None:
    demo = Demo(place, DEMO, HOME=None, PILLION_ADDRESS="unix:/nowhere", PILLION__LISTEN__CALLERS="unix:/nowhere")
    with demo.process:
        output, errors = demo.finish()
        demo.kill()
    assert demo.process.returncode == 0, errors
    assert json.loads(output[-1])["dataset"] == "airports"
    assert demo.left() == []


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("after", ["serve", "wait-ready", "call"])
def test_leaves_nothing_when_it_is_interrupted(place: Path, ending: signal.Signals, after: str) -> None:
    # Not in development mode, where asyncio says aloud that it ends a process which it had just started.
    demo = Demo(place, DEMO, PYTHONDEVMODE=None)
    with demo.process:
        assert demo.process.stdout is not None
        for line in demo.process.stdout:
            if line.startswith(f"$ deploy/pillion {after} "):
                break
        demo.process.send_signal(ending)
        _, errors = demo.finish()
        demo.kill()
    assert demo.process.returncode == 1
    assert errors == "Interrupted: sidecar and worker have been ended.\n"
    assert demo.left() == []


def test_leaves_nothing_when_nobody_reads(demo: Demo) -> None:
    assert demo.process.stdout is not None
    demo.process.stdout.close()
    assert demo.process.stderr is not None
    assert demo.process.stderr.read() == ""
    assert demo.process.wait() == 141
    assert demo.left() == []


def test_says_what_to_do_when_the_sidecar_does_not_start(place: Path, tmp_path: Path) -> None:
    program = tmp_path / DEMO.relative_to(ROOT)
    shutil.copytree(DEMO.parent, program.parent)
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy")
    (tmp_path / ".venv").symlink_to(ROOT / ".venv")
    (tmp_path / "sidecar").mkdir()
    (tmp_path / "sidecar" / "__main__.py").write_text(
        "import sys, time\nif sys.argv[1] == 'serve':\n    import a_module_that_is_missing\ntime.sleep(60)\n"
    )
    demo = Demo(place, program)
    with demo.process:
        _, errors = demo.finish()
        demo.kill()
    assert demo.process.returncode == 1
    assert "ModuleNotFoundError: No module named 'a_module_that_is_missing'" in errors
    assert "run `make demo`" in errors
    assert errors.endswith("The sidecar ended with code 1 before it was ready.\n")
    assert demo.left() == []


def test_says_what_to_do_where_there_is_no_environment(place: Path, tmp_path: Path) -> None:
    program = tmp_path / DEMO.relative_to(ROOT)
    shutil.copytree(DEMO.parent, program.parent)
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy")
    demo = Demo(place, program)
    with demo.process:
        _, errors = demo.finish()
    assert demo.process.returncode == 1
    assert f"There is no environment in {tmp_path} yet; make demo sets one up.\n" in errors
    assert demo.left() == []


def test_says_so_when_the_temporary_directory_has_too_long_a_path(place: Path) -> None:
    long = place / ("long" * 30)
    long.mkdir()
    demo = Demo(long, DEMO)
    with demo.process:
        output, errors = demo.finish()
    assert (demo.process.returncode, output) == (1, [])
    assert errors.endswith("set a shorter TMPDIR.\n")
    assert demo.left() == []
