"""Progress as a person sees it: one line that changes on a terminal, a line each elsewhere."""

import shutil
import sys
from typing import Any

from sidecar.cli.console import is_terminal, spoken, tell
from sidecar.cli.line import line_of, share_of

_BAR = 20
_LEAST_BAR = 8
_ROOM_BESIDE = 24


class ProgressLine:
    """Shows the reports of one call on standard error."""

    def __init__(self, tool: str, *, quiet: bool) -> None:
        self._tool = tool
        self._quiet = quiet
        self._redraws = is_terminal(sys.stderr)
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
        width = shutil.get_terminal_size().columns - 1
        bar = _bar(share_of(payload), width)
        text = spoken(bar + line, sys.stderr)
        # Cut to the window: a line that wraps cannot be drawn over.
        sys.stderr.write("\r\x1b[2K" + text[:width])
        sys.stderr.flush()
        self._drawn = True

    def clear(self) -> None:
        """Takes the line away, so that what follows has the line to itself."""
        if self._drawn:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()
            self._drawn = False


def _bar(share: float | None, width: int) -> str:
    if share is None:
        return ""
    cells = max(min(_BAR, width - _ROOM_BESIDE), _LEAST_BAR)
    full = int(share * cells)
    return f"[{'#' * full}{'-' * (cells - full)}] {share:4.0%} "
