"""A worker of the soak, on the SDK: tools that are quick, slow, failing, and deaf to their cancel."""

import asyncio
import sys
import time
import uuid

import pillion


@pillion.tool(effects=pillion.READ)
async def look(number: int, ctx: pillion.ToolContext) -> int:
    """Answers its argument after three reports."""
    for done in (1, 2, 3):
        ctx.progress({"message": f"looked {done}", "done": done, "total": 3})
    return number


@pillion.tool(effects=pillion.IDEMPOTENT)
async def work(seconds: float, ctx: pillion.ToolContext) -> float:
    """Takes some time, and reports."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        ctx.progress({"message": f"{left:.1f} s left"})
        await asyncio.sleep(min(left, 0.2))
    return seconds


@pillion.tool
async def write() -> str:
    """Does something that must not be done twice: each run answers something else."""
    await asyncio.sleep(0.05)
    return uuid.uuid4().hex


@pillion.tool
def compute(seconds: float, ctx: pillion.ToolContext) -> float:
    """Takes some time in a thread, and heeds its cancel."""
    ctx.sleep(seconds)
    return seconds


@pillion.tool
def ignore(seconds: float) -> float:
    """Takes some time in a thread, whatever is asked of it."""
    time.sleep(seconds)
    return seconds


@pillion.tool(effects=pillion.READ)
async def fail() -> None:
    """Fails."""
    raise pillion.ToolError("It was asked to fail.")


@pillion.tool(effects=pillion.READ)
async def come_and_go(number: int) -> int:
    """Is there in some settings, and not in others."""
    return number


@pillion.tool(effects=pillion.READ)
async def look_elsewhere(number: int) -> int:
    """Answers its argument, in the worker that attaches by itself."""
    return number


SETS = {
    "main": (look, work, write, compute, ignore, fail),
    "other": (come_and_go,),
    "attached": (look_elsewhere,),
}
"""The tools of each worker set."""

if __name__ == "__main__":
    pillion.run_worker(SETS[sys.argv[1]], concurrency=64)
