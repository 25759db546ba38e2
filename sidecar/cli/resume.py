"""`pillion resume`."""

import argparse
import asyncio

import pillion
from sidecar.cli.call import TOOL_ERROR, ended
from sidecar.cli.connection import connected
from sidecar.cli.console import say, tell
from sidecar.cli.elicitation import ELICITATION, Elicitation
from sidecar.cli.main import USAGE
from sidecar.cli.progress import ProgressLine
from sidecar.cli.reach import Unreachable, reach_of
from sidecar.cli.ticket import BadTicket, ticket_of
from sidecar.config import ConfigRefused

_TOOL = "the tool"
_WHAT = "There is no ticket; name it, or have stdin be what `pillion call` wrote of the pause."


def run(options: argparse.Namespace) -> int:
    """Resumes one call; answers the exit code, as `pillion call` does."""
    try:
        ticket, _ = ticket_of(None if options.ticket == "-" else options.ticket, _WHAT)
        return asyncio.run(_resume(options, ticket))
    except (BadTicket, ConfigRefused, Unreachable) as error:
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
