"""A demo as a person runs it, and what it leaves."""

import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

_MARK = "PILLION_DEMO_TEST"


@contextmanager
def short_place() -> Iterator[Path]:
    """A directory with a short path: the name of a unix socket has no more than 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="pd-") as directory:
        yield Path(directory)
        shutil.rmtree(kept_beside(Path(directory)), ignore_errors=True)


def kept_beside(place: Path) -> Path:
    """Where the chart of a demo in a place is saved."""
    return place.with_name(f"{place.name}-kept")


class DemoRun:
    """One run of a demo, whose processes bear a mark and whose directory is made in `place`.

    A variable that is `None` is not set.
    """

    def __init__(self, place: Path, *command: str | Path, **environment: str | None) -> None:
        self.place = place
        self.mark = uuid.uuid4().hex
        # Without what make exports for this repository: the program finds its own.
        ours = {"PYTHONPATH": None, "TMPDIR": str(place), "PYTHONDEVMODE": "1", _MARK: self.mark}
        variables: dict[str, str | None] = {**os.environ, **ours, **environment}
        self.process = subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={name: value for name, value in variables.items() if value is not None},
        )

    def until(self, start: str) -> None:
        """Reads on to a line that starts so."""
        assert self.process.stdout is not None
        assert any(line.strip().startswith(start) for line in self.process.stdout), f"{start} never came"

    def finish(self, within: float = 50) -> tuple[list[str], str]:
        """The lines of its standard output that were not read yet, and its standard error."""
        output, errors = self.process.communicate(timeout=within)
        return output.splitlines(), errors

    def left(self) -> list[str]:
        """The processes and files of the run that are still there."""
        return [*map(str, self._processes()), *map(str, self.place.iterdir())]

    def _processes(self) -> Iterator[psutil.Process]:
        for process in psutil.process_iter():
            try:
                if process.environ().get(_MARK) == self.mark:
                    yield process
            except psutil.Error:  # Gone, a zombie of somebody else's, or not ours to read.
                continue

    def kill(self) -> None:
        """Ends whatever a failed test has left."""
        for process in self._processes():
            process.kill()
        self.process.wait()


class Demo(DemoRun):
    """One run of a demo that saves a chart."""

    def __init__(self, place: Path, program: Path, **environment: str | None) -> None:
        self.kept = kept_beside(place)
        """Where the chart is saved."""
        super().__init__(place, program, self.kept, **environment)
