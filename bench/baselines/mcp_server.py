"""The MCP Python SDK's own Streamable HTTP server with the benchmark's tool."""

from __future__ import annotations

import asyncio
import socket

import uvicorn
from mcp.server import MCPServer
from mcp.server.mcpserver import Context

from bench.control import run, serve


def tool_server() -> MCPServer:
    """A server with one tool, `report`: three progress notifications, then a small result."""
    server = MCPServer("bench", log_level="WARNING")

    @server.tool()
    async def report(name: str, count: int, ctx: Context) -> dict[str, object]:
        for step in (1, 2, 3):
            await ctx.report_progress(step, 3, "working")
        return {"name": name, "count": count}

    return server


async def main() -> None:
    """Serves on a free loopback port, which it announces, until stdin ends; early connections wait in the backlog."""
    listener = socket.create_server(("127.0.0.1", 0))
    application = tool_server().streamable_http_app()
    server = uvicorn.Server(uvicorn.Config(application, log_level="warning", access_log=False))
    serving = asyncio.ensure_future(server.serve([listener]))
    try:
        await serve({}, url=f"http://127.0.0.1:{listener.getsockname()[1]}/mcp")
    finally:
        server.should_exit = True
        await asyncio.wait([serving], timeout=3)


if __name__ == "__main__":
    run(main())
