r"""For the tests of who writes tools: a tool called without a sidecar.

For example::

rehearsal = pillion.testing.Rehearsal()
lines = await pillion.testing.call(count_lines, {"path": "notes.txt"}, rehearsal=rehearsal)
assert rehearsal.progress[-1]["done"] == lines

And a tool that wants an artifact, and puts another::

artifacts = pillion.testing.Artifacts()
chart = await pillion.testing.call(draw, {"data": artifacts.add(b"a,b\n1,2\n", kind="csv")}, artifacts=artifacts)
meta, png = artifacts[chart]

And a tool that pauses for an answer::

try:
    await pillion.testing.call(transfer, {"amount": 5})
except pillion.Pause as pause:
    assert await pillion.testing.call(transfer, {"amount": 5}, resume=pause, answer=True) == "done"

And the end of a session for which a tool keeps something::

rehearsal = pillion.testing.Rehearsal()
await pillion.testing.call(open_table, {"data": "a.csv"}, session_id="s-1", rehearsal=rehearsal)
assert await rehearsal.tear_down(pillion.TeardownScope.SESSION) == 1
"""

from pillion._worker.rehearsal import Answers, Rehearsal, call
from pillion._worker.rehearsed_cleanups import RegisteredCleanup
from pillion._worker.shelf import Artifacts

__all__ = ("Answers", "Artifacts", "RegisteredCleanup", "Rehearsal", "call")
