"""A worker on the SDK that a sidecar starts: what its tools keep, they tell of in a file when it is cleaned up.

`python keeping_program.py FILE`: `keep` keeps something of a `name` for its session, and answers its process; with
`call` its cleanup names a call of `clean`. `end` ends the process, without a word.
"""

import os
import signal
import sys
from functools import partial
from pathlib import Path

import pillion

SESSION = pillion.TeardownScope.SESSION
FILE = Path(sys.argv[1])


def tell(line: str) -> None:
    """Writes a line, whole."""
    with FILE.open("a") as told:
        told.write(f"{line}\n")


def closed(name: str, reason: pillion.TeardownReason) -> None:
    """What was kept is cleaned up."""
    tell(f"{name} {reason.name} in {os.getpid()}")


@pillion.tool(holds=SESSION)
async def keep(name: str, ctx: pillion.ToolContext, call: bool = False) -> int:
    """Keeps something."""
    cleanup_call = ("clean", {"name": name}) if call else None
    await ctx.on_teardown(partial(closed, name), scope=SESSION, name=name, cleanup_call=cleanup_call)
    return os.getpid()


@pillion.tool(effects=pillion.IDEMPOTENT)
async def clean(name: str, ctx: pillion.ToolContext) -> None:
    """Cleans up what another process kept."""
    tell(f"{name} {ctx.cleanup_reason.name if ctx.cleanup_reason else None} by a call")


@pillion.tool(holds=SESSION)
async def end() -> None:
    """Ends the process."""
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    pillion.run_worker([keep, clean, end])
