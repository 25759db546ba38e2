"""For the tests of who writes tools: a tool called without a sidecar.

For example::

rehearsal = pillion.testing.Rehearsal()
lines = await pillion.testing.call(count_lines, {"path": "notes.txt"}, rehearsal=rehearsal)
assert rehearsal.progress[-1]["done"] == lines
"""

from pillion._worker.rehearsal import Answers, Rehearsal, call

__all__ = ("Answers", "Rehearsal", "call")
