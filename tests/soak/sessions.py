"""`python -m tests.soak.sessions [--sessions N]`: memory returns to its baseline after sessions that end.

Runs so many sessions, and as many again, against a sidecar of its own; the last line on standard output is the summary
as JSON. Ends with code 0 if the second ones added next to nothing to its memory.
"""

import argparse
import asyncio
import gc
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import psutil

# As the sidecar does: there is no fork without exec here that gRPC had to know of.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

from tests.support.process import SidecarProcess
from tests.support.sessions import Sessions

MOST_GROWTH_MIB = 5.0
"""What the second so many sessions may add."""
_MIB = 1 << 20
_LIMITS = "[limits.scopes]\nidle = 2\n"
_WARM_UP = 2_000


class Growth(NamedTuple):
    """What sessions did to the sidecar."""

    sessions: int
    """How many there were, twice."""
    first_mib: float
    """How much the first of them added to its memory, caches and pools with it."""
    second_mib: float
    """How much the second did."""
    seconds: float


async def growth_of(directory: Path, sessions: int) -> Growth:
    """Runs so many sessions twice, in a directory that is short enough for sockets."""
    began = time.monotonic()
    process = SidecarProcess(directory, limits=_LIMITS)
    await process.start()
    try:
        async with Sessions(process.callers_at, process.workers_at) as running:
            memory = psutil.Process(process.pid)
            await running.run(min(_WARM_UP, sessions))
            read = [memory.memory_info().rss / _MIB]
            for _ in range(2):
                await running.run(sessions)
                gc.collect()
                read.append(memory.memory_info().rss / _MIB)
    finally:
        await process.aclose()
    return Growth(sessions, read[1] - read[0], read[2] - read[1], time.monotonic() - began)


def main() -> int:
    """Reads the command line, and runs them."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.sessions", description="Runs sessions by the thousand.")
    parser.add_argument("--sessions", type=int, default=100_000, help="how many, twice (100,000)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pillion-soak-") as directory:
        growth = asyncio.run(growth_of(Path(directory), options.sessions))
    is_flat = growth.second_mib <= MOST_GROWTH_MIB
    told = {name: round(value, 2) for name, value in growth._asdict().items()}
    print(json.dumps({"ok": is_flat, "most_mib": MOST_GROWTH_MIB, **told}), flush=True)
    return 0 if is_flat else 1


if __name__ == "__main__":
    sys.exit(main())
