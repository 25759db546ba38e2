"""What the README shows works as it is shown."""

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.documents import ROOT, blocks
from tests.support.scripts import lay_out, run_script

README = "README.md"
PYTHON = ".venv-demo/bin/python"


@pytest.fixture
def clone() -> Iterator[Path]:
    """A directory that has what the commands of the README use."""
    with tempfile.TemporaryDirectory(prefix="pr-") as directory:
        place = Path(directory)
        lay_out(place)
        yield place


def test_the_programs_run_with_the_settings_and_commands_that_are_shown(clone: Path) -> None:
    worker, caller = blocks(README, "python")
    (settings,) = blocks(README, "toml")
    (commands,) = blocks(README, "sh")
    (clone / "tools.py").write_text(worker.text)
    (clone / "hello.py").write_text(caller.text)
    (clone / "pillion.toml").write_text(settings.text)
    assert commands.text.count(PYTHON) == 1

    done = run_script(commands.text.replace(PYTHON, ".venv/bin/python"), clone)

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ['"lift-off"', "3…", "2…", "1…", "lift-off"]
    assert [line for line in done.stderr.splitlines() if line in ("3…", "2…", "1…")] == ["3…", "2…", "1…"]
    assert "Traceback" not in done.stderr
    assert "Warning" not in done.stderr


def test_the_programs_are_short() -> None:
    assert all(len(program.text.splitlines()) < 30 for program in blocks(README, "python"))


def test_the_targets_are_those_of_the_task_file() -> None:
    told = [block.text for block in blocks(README, "text")]
    helped = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert helped.stdout in told
