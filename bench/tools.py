"""The tools of the benchmark's workers: their names, and what the measured ones are called with."""

from __future__ import annotations

from typing import Final

REPORT: Final = "report"
"""Reports progress three times, then returns its arguments."""
ECHO: Final = "echo"
"""Returns its arguments."""
SIGNED: Final = "signed"
"""Needs a credential, and returns its arguments."""
SINK: Final = "sink"
"""Takes a large text and returns nothing of it."""
FLOOD: Final = "flood"
"""Reports progress at a steady rate until it is cancelled."""
BURST: Final = "burst"
"""Reports progress as fast as it is taken, a number of times."""
HOLD: Final = "hold"
"""Reports progress once, then waits for a cancel."""
NEST: Final = "nest"
"""Has `echo` run, so many times at once and for a time, and returns what each of those runs cost a process."""
ASK: Final = "ask"
"""Asks its caller a number of times, one after the other, and returns how long an answer took."""
KEEP: Final = "keep"
"""Registers cleanups for its session, one after the other, and returns how long that took."""
HELD: Final = "held"
"""Holds something for its session, and returns its arguments."""

ASKED: Final = "bench/ask"
"""The method that `ask` asks for."""

SERVICE: Final = "bench"
"""What `signed` needs a credential for."""

ARGUMENTS: Final = {"name": "Ada", "count": 3}
"""What `report` and `echo` are called with, here and on the baselines."""

PROGRESS: Final = tuple({"progress": step, "total": 3, "message": "working"} for step in (1, 2, 3))
"""What `report` reports before its result."""

BULK_TEXT: Final = "x" * ((1 << 20) - 4096)
"""One string of a mebibyte, less what the frame around it needs: what `sink` is called with."""

LONGEST_FLOOD_SECONDS: Final = 120.0
"""When a flood that nobody ends gives up."""
