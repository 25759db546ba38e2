"""The MCP Python SDK's own client, driving one session in a closed loop: `python -m bench.baselines.mcp_client URL`."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from mcp import Client

from bench.control import Answer, Window, run, serve


class Driver:
    """Calls the tool `report` over one session."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def closed(self, *, in_flight: int, seconds: float, arguments: dict[str, Any], watch: int) -> Answer:
        """`in_flight` calls at a time for `seconds`, after a warm-up of a fifth of that.

        Counts progress too: the answer's `progress` is the mean per finished call.
        """
        client = self._client
        running, done, seen = True, 0, 0

        async def count(progress: float, total: float | None, message: str | None) -> None:  # noqa: ARG001  # their protocol names them
            nonlocal seen
            seen += 1

        async def loop() -> None:
            nonlocal done
            while running:
                await client.call_tool("report", arguments, progress_callback=count)
                done += 1

        tasks = [asyncio.ensure_future(loop()) for _ in range(in_flight)]
        await asyncio.sleep(seconds / 5)
        window, before = Window(watch), done
        await asyncio.sleep(seconds)
        answer = window.close(done - before)
        running = False
        await asyncio.gather(*tasks)
        return answer | {"progress": seen / done}


async def main(url: str) -> None:
    """Opens one session with the server at `url` and answers `closed` until stdin ends."""
    async with Client(url) as client:
        await serve({"closed": Driver(client).closed}, protocol=client.protocol_version)


if __name__ == "__main__":
    run(main(sys.argv[1]))
