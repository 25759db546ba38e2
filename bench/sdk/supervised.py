"""A worker that the sidecar starts, with one tool: what an idle sidecar has beside it."""

from __future__ import annotations

import pillion


@pillion.tool(effects=pillion.READ)
async def echo(name: str) -> str:
    """Returns its argument."""
    return name


if __name__ == "__main__":
    pillion.run_worker([echo])
