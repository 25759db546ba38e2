"""A worker of the Python SDK for tests of the program: it counts, and can be asked to fail, and not to stop."""

import asyncio
from contextlib import nullcontext, suppress

import pillion


@pillion.tool(effects=pillion.READ)
async def count(  # each is a habit that a test asks for
    ctx: pillion.ToolContext, to: int, label: str = "", says: str = "counted", *, fail: bool = False, deaf: bool = False
) -> dict[str, int | str]:
    """Counts, and reports on the way; for an hour where it is to count below nothing."""
    for number in range(to):
        ctx.progress({"message": f"{says} {number + 1} …", "done": number + 1, "total": to})
    if to < 0:
        ctx.progress({"message": "counting"})
        with suppress(asyncio.CancelledError) if deaf else nullcontext():
            await asyncio.sleep(3_600)
        await asyncio.sleep(1.5)
    if fail:
        raise pillion.ToolError("It was asked to fail.")
    return {"counted": to, "label": label}


if __name__ == "__main__":
    pillion.run_worker([count])
