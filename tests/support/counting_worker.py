"""A worker of the Python SDK for tests of the program: it counts, and can be asked to fail, and not to stop."""

import asyncio
from contextlib import nullcontext, suppress
from typing import Any

import pillion

FIELDS = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "title": "Your name"},
        "age": {"type": "integer", "default": 7},
        "colour": {"enum": ["red", "blue"]},
        "sure": {"type": "boolean"},
    },
    "required": ["name", "sure"],
}


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


@pillion.tool
async def ask(ctx: pillion.ToolContext, message: str = "Who are you?", *, fields: bool = True) -> dict[str, Any]:
    """Asks the person who called."""
    ctx.progress({"message": "about to ask"})
    answer = await ctx.caller.elicit(message, FIELDS if fields else {})
    return {"action": answer.action, "content": answer.content}


@pillion.tool
async def confirm(ctx: pillion.ToolContext, what: str) -> dict[str, Any]:
    """Waits for a person's word, without a slot."""
    if ctx.resume is None:
        raise pillion.Pause(f"Really {what}?", kind="confirm", schema={"type": "boolean"}, state={"seen": what})
    ctx.progress({"message": "going on"})
    return {"sure": ctx.resume.answer, "state": ctx.resume.state}


@pillion.tool(wants={"data": "csv"}, placement=pillion.Placement(over_bytes=1_000))
async def copy(data: bytes, ctx: pillion.ToolContext, label: str = "copy.csv", times: int = 1) -> list[str]:
    """Puts an artifact again, and names both; so often that the list of them may be large."""
    meta = (ctx.wanted or {})["data"]
    made = await ctx.artifacts.put(data, kind="csv", media_type="text/csv", label=label, parents=[meta.reference])
    return [meta.reference, made.reference] * times


if __name__ == "__main__":
    pillion.run_worker([count, ask, confirm, copy])
