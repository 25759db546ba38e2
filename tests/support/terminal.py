"""Programs on a terminal of their own: what they draw there, and the keys that are pressed."""

import os
import re
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tests.support.documents import ROOT

CTRL_C = b"\x03"
SECONDS = 40.0

# A session of its own does not yet have the terminal that it was given: this takes it, and becomes the program.
_TAKE_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(2, termios.TIOCSCTTY, 0); os.execvp(sys.argv[1], sys.argv[1:])"
)
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r|\n")


class OnTerminal:
    """A program whose three streams are a terminal; its standard output a pipe, if that is asked for."""

    def __init__(
        self, *command: str | Path, columns: int = 80, piped: bool = False, environment: dict[str, str] | None = None
    ) -> None:
        """Starts it, with these variables besides the test's own."""
        self._mine, its = os.openpty()
        termios.tcsetwinsize(its, (24, columns))
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _TAKE_TERMINAL, *command],
                stdin=its,
                stdout=subprocess.PIPE if piped else its,
                stderr=its,
                cwd=ROOT,
                env=os.environ | {"TERM": "xterm", "PYTHONPATH": f"{ROOT}:{ROOT}/clients/python"} | (environment or {}),
                start_new_session=True,
            )
        finally:
            os.close(its)
        self.drawn = b""
        """All that was written to the terminal so far."""
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def text(self) -> str:
        """The same as text."""
        return self.drawn.decode(errors="replace")

    def press(self, keys: bytes) -> None:
        """Presses keys."""
        os.write(self._mine, keys)

    def shows(self, text: str) -> None:
        """Returns once this was drawn."""
        self._until(lambda: text in self.text, f"it did not show {text!r}")

    def finish(self) -> tuple[int, str]:
        """Its exit code, and what it wrote to its standard output where that is a pipe."""
        output, _ = self.process.communicate(timeout=SECONDS)
        self._until(lambda: not self._reader.is_alive(), "the terminal is still open")
        return self.process.returncode, (output or b"").decode()

    def close(self) -> None:
        """Kills it, if it runs."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()
        self._reader.join(SECONDS)
        os.close(self._mine)

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._mine, 65536)
            except OSError:  # Nobody has the other end open any more.
                data = b""
            with self._news:
                self.drawn += data
                self._news.notify_all()
            if not data:
                return

    def _until(self, true: Callable[[], bool], else_say: str) -> None:
        end = time.monotonic() + SECONDS
        with self._news:
            while not true():
                assert time.monotonic() < end, f"{else_say}, but:\n{self.text}"
                self._news.wait(0.1)


def frames(text: str) -> list[str]:
    """What the lines of a terminal looked like, one by one: each text that was not drawn over yet, and then was."""
    return [part for part in _CONTROL.split(text) if part]


def screen(text: str) -> list[str]:
    """The lines that are left in the end, where nothing but whole lines was drawn over."""
    lines = [""]
    for part in re.split(r"(\x1b\[2K|\r|\n)", text):
        if part == "\n":
            lines.append("")
        elif part == "\x1b[2K":
            lines[-1] = ""
        elif part != "\r":
            lines[-1] += part
    return lines
