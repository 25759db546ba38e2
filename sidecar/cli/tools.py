"""`pillion tools`."""

import argparse
import asyncio
import dataclasses
import json

import pillion
from sidecar.cli.connection import connected
from sidecar.cli.console import say, tell
from sidecar.cli.main import USAGE
from sidecar.cli.reach import Reach, Unreachable, reach_of
from sidecar.config import ConfigRefused

_NAMES = 24


def run(options: argparse.Namespace) -> int:
    """Lists tools; answers the exit code: 1 where the named one is not there."""
    try:
        tools = asyncio.run(_tools(reach_of(options)))
    except (ConfigRefused, Unreachable) as error:
        tell(str(error))
        return USAGE
    if options.tool is not None:
        if options.tool not in tools:
            tell(f"There is no tool {options.tool}; there are {', '.join(tools) or 'none'}.")
            return 1
        say(json.dumps(_facts(tools[options.tool]), indent=None if options.json else 2, ensure_ascii=False))
        return 0
    for tool in tools.values():
        if options.json:
            say(json.dumps(_facts(tool), ensure_ascii=False))
        else:
            summary = " ".join(tool.description.split())
            say(f"{tool.name:<{_NAMES}} {tool.effects.name.lower():<10} {summary}")
    if not tools:
        tell("There are no tools; attach a worker, or name one in the settings.")
    return 0


async def _tools(reach: Reach) -> dict[str, pillion.ToolInfo]:
    async with connected(reach) as host:
        return dict((await host.tools()).by_name)


def _facts(tool: pillion.ToolInfo) -> dict[str, object]:
    facts = dataclasses.asdict(tool)
    facts["effects"] = tool.effects.name
    return {name: value for name, value in facts.items() if value is not None and value != {}}
