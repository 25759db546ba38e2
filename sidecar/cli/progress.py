"""Progress as a person sees it: one line that changes on a terminal, a line each elsewhere."""

import os
import sys
from typing import Any

from sidecar.cli.console import fitted, is_terminal, spoken, tell
from sidecar.line import line_of, share_of

_BAR = 20
_LEAST_BAR = 8
_ROOM_BESIDE = 24
_COLUMNS = 80
# What a terminal writes there itself for Ctrl-C: a line that is full would wrap, and could not be drawn over any more.
_KEPT_FREE = len("^C") + 1


class ProgressLine:
    """Shows the reports of one call on standard error."""

    def __init__(self, tool: str, *, quiet: bool) -> None:
        self._tool = tool
        self._quiet = quiet
        self._redraws = sys.stderr is not None and is_terminal(sys.stderr)
        self._count = 0
        self._drawn = False

    def show(self, payload: Any) -> None:
        """Shows a report."""
        self._count += 1
        if self._quiet:
            return
        line = line_of(self._tool, payload, self._count)
        if not self._redraws:
            tell(line)
            return
        width = _columns() - _KEPT_FREE
        bar = _bar(share_of(payload), width)
        sys.stderr.write("\r\x1b[2K" + fitted(spoken(bar + line, sys.stderr), width))
        sys.stderr.flush()
        self._drawn = True

    def clear(self) -> bool:
        """Takes the line away, so that what follows has the line to itself. False: there was none."""
        if not self._drawn:
            return False
        sys.stderr.write("\r\x1b[2K")
        sys.stderr.flush()
        self._drawn = False
        return True


def _columns() -> int:
    """How wide the window is in which progress is shown; the standard output may be elsewhere."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or _COLUMNS
    except OSError:
        return _COLUMNS


def _bar(share: float | None, width: int) -> str:
    if share is None:
        return ""
    cells = max(min(_BAR, width - _ROOM_BESIDE), _LEAST_BAR)
    full = int(share * cells)
    return f"[{'#' * full}{'-' * (cells - full)}] {share:4.0%} "
