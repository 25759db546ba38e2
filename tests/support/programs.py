"""The examples of every language, built and run as programs of their own."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BARE = ROOT / "clients" / "python" / "examples" / "bare"
GO = ROOT / ".tools" / "go"

CALLERS: dict[str, tuple[str, ...]] = {
    "python": (sys.executable, str(BARE / "caller.py")),
    "go": (str(GO / "caller"),),
    "rust": (str(ROOT / ".tools" / "rust-target" / "debug" / "examples" / "bare"),),
    "typescript": ("node", str(ROOT / "clients" / "typescript" / "dist" / "examples" / "bare" / "caller.js")),
}
"""The bare caller of each language: it takes a target, a tool and arguments."""

PYTHON_WORKER = (sys.executable, str(BARE / "worker.py"))
"""The bare worker in Python, with the tool `profile_csv`."""
GO_WORKER = (str(GO / "worker"),)
"""The bare worker in Go, with the tool `find_duplicates`."""
IDLE = (str(GO / "idle"),)
"""A client in Go that holds a connection without calls: it takes a target and a duration."""

TOOLCHAINS = ("go", "cargo", "node", "npm")

_PATIENCE = 30.0


def missing_toolchains() -> list[str]:
    """What the examples need and this machine has not."""
    return [program for program in TOOLCHAINS if shutil.which(program) is None]


def build_examples() -> None:
    """Builds what has changed, and says what it does."""
    # This make is not a part of one that runs the tests.
    environment = {
        name: value for name, value in os.environ.items() if name not in {"MAKEFLAGS", "MAKELEVEL", "MFLAGS"}
    }
    subprocess.run(["make", "examples"], cwd=ROOT, env=environment, check=True)


class Program:
    """A running process, in a group of its own. What it prints on standard error is there line by line."""

    def __init__(self, *command: str, **environment: str) -> None:
        """Starts it, with these variables besides the test's own."""
        paths = [str(ROOT), str(ROOT / "clients" / "python")]
        # Not by asyncio: it forks, and gRPC holds up a process that forks. This does not.
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"} | environment,
            start_new_session=True,
        )

    async def line(self) -> str:
        """The next line of its standard error."""
        assert self.process.stderr is not None
        async with asyncio.timeout(_PATIENCE):
            line = await asyncio.to_thread(self.process.stderr.readline)
        assert line, "standard error ended while a line was awaited"
        return line.decode().rstrip("\n")

    async def finish(self, within: float = _PATIENCE) -> tuple[int, bytes, list[str]]:
        """Its exit code, standard output, and the lines of standard error that were not read yet."""
        output, errors = await asyncio.to_thread(self.process.communicate, timeout=within)
        return self.process.returncode, output, errors.decode().splitlines()

    def signal(self, number: signal.Signals) -> None:
        """Sends it a signal."""
        self.process.send_signal(number)

    def close(self) -> None:
        """Kills it, if it runs."""
        with self.process:
            self.process.kill()
