"""The person's line: what a report of a tool says in one line."""

from typing import Any

_MOST = 120


def line_of(tool: str, payload: Any, count: int) -> str:
    """The line for a tool's report, which is its `count`th: its top-level text `message`, else that there was one."""
    message = payload.get("message") if isinstance(payload, dict) else None
    text = " ".join(message.split()) if isinstance(message, str) else ""
    if not text:
        return f"{tool} reported progress ({count} so far)…"
    if len(text) > _MOST:
        return f"{text[:_MOST]}… (+{len(text) - _MOST} more)"
    return text


def share_of(payload: Any) -> float | None:
    """How much of the work is done, from 0 to 1, where the report has numbers `done` and `total`."""
    if not isinstance(payload, dict):
        return None
    done, total = payload.get("done"), payload.get("total")
    if isinstance(done, bool) or isinstance(total, bool):
        return None
    if not isinstance(done, int | float) or not isinstance(total, int | float) or total <= 0:
        return None
    try:
        return min(max(done / total, 0.0), 1.0)
    except OverflowError:
        # The numbers are a tool's, and may have any size.
        return None
