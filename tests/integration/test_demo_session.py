"""The demo of sessions as a person runs it, and what its worker refuses."""

import csv
import json
import re
import signal
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest

from tests.support.demos import Demo, short_place
from tests.support.terminal import OnTerminal

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "clients" / "python" / "examples" / "session" / "session.py"
SDK = str(ROOT / "clients" / "python")


@pytest.fixture
def place() -> Iterator[Path]:
    with short_place() as directory:
        yield directory


@pytest.fixture
def airports() -> list[dict[str, str]]:
    with Path(str(files("airportsdata")), "airports.csv").open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def test_a_session_lives_asks_pauses_and_is_torn_down(place: Path, airports: list[dict[str, str]]) -> None:
    demo = Demo(place, DEMO, PYTHONPATH=SDK)
    with demo.process:
        output, errors = demo.finish()
        demo.kill()
    assert demo.process.returncode == 0, errors
    *lines, last = output
    result = json.loads(last)
    assert len(result["processes"]) == 2
    assert len(result["session_in"]) == 1
    assert result["session_in"][0] in result["processes"]

    north = [airport["country"] for airport in airports if float(airport["lat"]) > 60]
    assert [found["airports"] for found in result["north"]] == [
        north.count(found["country"]) for found in result["north"]
    ]
    with_code = sum(bool(airport["iata"]) for airport in airports)
    assert result["removed"] == len(airports) - with_code
    assert result["left"] == {"airports": with_code, "with_code": with_code}
    assert result["handed_out"]["rows"] == with_code
    assert re.fullmatch(r"art_[0-9A-Za-z]{22}", result["handed_out"]["reference"])
    assert (result["ended"]["failed"], result["ended"]["cancelled"]) == (0, 0)
    assert result["ended"]["fired"] == 4
    assert "no such table" in result["after"]

    said = "\n".join(lines)
    assert said.count("The demo answers yes: there is no terminal to ask at.") == 2
    assert "paused for an approval" in said
    assert "closed the workspace of session" in errors
    assert "(SESSION_END): airports" in errors
    assert demo.left() == []


def test_a_person_at_the_terminal_is_asked(place: Path) -> None:
    terminal = OnTerminal(sys.executable, DEMO, environment={"TMPDIR": str(place), "PYTHONPATH": SDK})
    try:
        terminal.shows("Keep that? [Y/n]")
        terminal.press(b"n\r")
        terminal.shows("of airports? [Y/n]")
        terminal.press(b"no\r")
        code, _ = terminal.finish()
        assert code == 0, terminal.text
    finally:
        terminal.close()
    result = json.loads([line for line in terminal.text.splitlines() if line.startswith("{")][-1])
    assert (result["removed"], result["handed_out"]) == (0, None)
    assert result["left"]["airports"] > result["left"]["with_code"]
    assert "It was not approved." in terminal.text
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("after", ["$ deploy/pillion wait-ready", "open_csv", "hand_out"])
def test_leaves_nothing_when_it_is_interrupted(place: Path, after: str) -> None:
    demo = Demo(place, DEMO, PYTHONPATH=SDK, PYTHONDEVMODE=None)
    with demo.process:
        assert demo.process.stdout is not None
        for line in demo.process.stdout:
            if line.startswith(after):
                break
        demo.process.send_signal(signal.SIGINT)
        _, errors = demo.finish()
        demo.kill()
    assert (demo.process.returncode, errors) == (1, "Interrupted: sidecar and worker have been ended.\n")
    assert demo.left() == []
