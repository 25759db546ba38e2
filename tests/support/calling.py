"""The program `pillion` with a sidecar of its own, and a worker that counts."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support.documents import ROOT

WORKER = ROOT / "tests" / "support" / "counting_worker.py"


class Program:
    """The program with one settings file, whose sidecar runs inside the block."""

    def __init__(self, directory: Path) -> None:
        self.config = directory / "pillion.toml"
        self.config.write_text(
            "state_dir = 'state'\n[[worker]]\nname = 'counter'\n"
            f"command = [{sys.executable!r}, {str(WORKER)!r}]\ninherit = ['PATH', 'PYTHONPATH']\n"
        )
        self.environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'clients' / 'python'}"}

    def open(self, *arguments: str, **variables: str) -> "subprocess.Popen[str]":
        """Starts a command."""
        return subprocess.Popen(
            [sys.executable, "-m", "sidecar", *arguments],
            env=self.environment | variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )

    def run(self, command: str, *arguments: str, given: str = "", **variables: str) -> tuple[int, str, str]:
        """Runs a command to its end; answers its exit code, and what it wrote."""
        with self.open(command, "--config", str(self.config), *arguments, **variables) as process:
            output, errors = process.communicate(given, timeout=30)
            return process.returncode, output, errors
