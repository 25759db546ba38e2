"""A worker of the Python SDK for tests of the program: it counts, and can be asked to fail."""

import asyncio

import pillion


@pillion.tool(effects=pillion.READ)
async def count(ctx: pillion.ToolContext, to: int, label: str = "", *, fail: bool = False) -> dict[str, int | str]:
    """Counts, and reports on the way; for ever where it is to count below nothing."""
    for number in range(to):
        ctx.progress({"message": f"counted {number + 1} …", "done": number + 1, "total": to})
    if to < 0:
        ctx.progress({"message": "counting"})
        await asyncio.sleep(3_600)
    if fail:
        raise pillion.ToolError("It was asked to fail.")
    return {"counted": to, "label": label}


if __name__ == "__main__":
    pillion.run_worker([count])
