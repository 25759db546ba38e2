"""What the README shows works as it is shown."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.documents import ROOT, blocks

README = "README.md"
PYTHON = ".venv-demo/bin/python"
LONGEST_SECONDS = 50


@pytest.fixture
def clone() -> Iterator[Path]:
    """A directory that has what the commands of the README use. Its path is short, as a socket's has to be."""
    with tempfile.TemporaryDirectory(prefix="pr-") as directory:
        place = Path(directory)
        for name in ("sidecar", "clients"):
            (place / name).symlink_to(ROOT / name)
        yield place


def run(script: str, place: Path) -> subprocess.CompletedProcess[str]:
    """Runs a script with bash, in a group of its own of which nothing is left."""
    process = subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=place,
        env=os.environ | {"PYTHONDEVMODE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=LONGEST_SECONDS)
    finally:
        left = [other for other in psutil.process_iter() if _group(other) == process.pid]
        if left:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert not left, left
    return subprocess.CompletedProcess(script, process.returncode, output, errors)


def _group(process: psutil.Process) -> int | None:
    try:
        return os.getpgid(process.pid)
    except ProcessLookupError:
        return None


def test_the_program_runs_with_the_settings_and_commands_that_are_shown(clone: Path) -> None:
    (program,) = blocks(README, "python")
    (settings,) = blocks(README, "toml")
    (commands,) = blocks(README, "sh")
    (clone / "hello.py").write_text(program.text)
    (clone / "pillion.toml").write_text(settings.text)
    assert commands.text.count(PYTHON) == 3

    done = run(commands.text.replace(PYTHON, sys.executable), clone)

    assert done.returncode == 0, done.stderr
    (result,) = done.stdout.splitlines()
    profile = json.loads(result)
    assert profile["dataset"] == "airports"
    assert profile["rows"] > 20_000
    assert '"message": "correlated 3 pairs of numeric columns' in done.stderr
    assert "Traceback" not in done.stderr
    assert "Warning" not in done.stderr


def test_the_program_is_short() -> None:
    (program,) = blocks(README, "python")
    assert len(program.text.splitlines()) < 30


def test_the_targets_are_those_of_the_task_file() -> None:
    told = [block.text for block in blocks(README, "text")]
    helped = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert helped.stdout in told
