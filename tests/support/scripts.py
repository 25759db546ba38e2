"""What documents tell people to type, run as they would."""

import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

import psutil

from tests.support.documents import ROOT

SECONDS = 50


def lay_out(place: Path) -> None:
    """Gives a directory what a clone has for who types commands in it. Its path must be short enough for a socket."""
    for name in (".venv", "clients", "deploy", "sidecar"):
        (place / name).symlink_to(ROOT / name)


def run_script(
    script: str, place: Path, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a script with bash, in a group of its own of which nothing is left. The directory is its home."""
    process = subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=place,
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith(("PILLION", "XDG_"))},
            "HOME": str(place),
            "PYTHONDEVMODE": "1",
            **(environment or {}),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=SECONDS)
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
