"""`pillion resume`."""

import argparse
import asyncio
import json
import sys

import pillion
from sidecar.cli.call import TOOL_ERROR, ended
from sidecar.cli.connection import connected
from sidecar.cli.console import say, tell
from sidecar.cli.elicitation import ELICITATION, Elicitation
from sidecar.cli.main import USAGE
from sidecar.cli.progress import ProgressLine
from sidecar.cli.reach import Unreachable, reach_of
from sidecar.config import ConfigRefused

_TOOL = "the tool"


def run(options: argparse.Namespace) -> int:
    """Resumes one call; answers the exit code, as `pillion call` does."""
    ticket = _ticket(options.ticket if options.ticket is not None else sys.stdin.read())
    if not ticket:
        tell("There is no ticket; name it, or have stdin be what `pillion call` wrote of the pause.")
        return USAGE
    try:
        return asyncio.run(_resume(options, ticket))
    except (ConfigRefused, Unreachable) as error:
        tell(str(error))
        return USAGE


async def _resume(options: argparse.Namespace, ticket: str) -> int:
    reach = reach_of(options)
    progress = ProgressLine(_TOOL, quiet=options.quiet)
    people = Elicitation(progress.clear)
    identity = None
    if options.tenant is not None or options.principal is not None:
        identity = pillion.Identity(tenant=options.tenant, principal=options.principal)
    async with connected(reach, {ELICITATION: people.answer}) as host:
        running = host.start_resumed(
            ticket,
            None if options.answer is None else options.answer.encode(),
            timeout=options.timeout,
            idle_timeout=options.idle_timeout,
            idempotency_key=options.key,
            identity=identity,
        )
        result = await ended(running, progress, reach.target)
    if isinstance(result, int):
        return result
    if result.json is not None:
        say(result.json.decode())
    elif result.placed is not None:
        tell(f"The result is an artifact, in the place that the call named: {result.placed.reference}")
    return TOOL_ERROR if result.is_error else 0


def _ticket(text: str) -> str:
    """The ticket in a text: alone, or in the object that tells of a pause."""
    text = text.strip()
    if not text.startswith("{"):
        return text
    try:
        told = json.loads(text)
    except ValueError:
        return ""
    ticket = told.get("ticket")
    return ticket if isinstance(ticket, str) else ""
