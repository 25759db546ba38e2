"""`pillion follow`."""

import argparse
import asyncio
import os
import signal
import sys

import pillion
from pillion import errors
from sidecar.cli.call import INTERRUPTED, TOOL_ERROR, tell_failed, tell_paused
from sidecar.cli.connection import connected
from sidecar.cli.console import say, tell
from sidecar.cli.elicitation import ELICITATION, Elicitation
from sidecar.cli.main import USAGE
from sidecar.cli.progress import ProgressLine
from sidecar.cli.reach import Unreachable, reach_of
from sidecar.cli.ticket import BadTicket, ticket_of
from sidecar.config import ConfigRefused

_ANY_TOOL = "The tool"
_WHAT = "Give the ticket, or the whole line that `pillion call --detach` printed."


def run(options: argparse.Namespace) -> int:
    """Follows one call; answers the exit code, which is that of `pillion call`."""
    try:
        ticket, tool = ticket_of(None if options.ticket == "-" else options.ticket, _WHAT)
        return asyncio.run(_follow(options, ticket, tool or _ANY_TOOL))
    except (BadTicket, ConfigRefused, Unreachable) as error:
        tell(str(error))
        return USAGE


async def _follow(options: argparse.Namespace, ticket: str, tool: str) -> int:
    reach = reach_of(options)
    progress = ProgressLine(tool, quiet=options.quiet)
    people = Elicitation(progress.clear)
    async with connected(reach, {ELICITATION: people.answer}) as host:
        running = host.follow(ticket, from_sequence=options.from_sequence)
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, _leave, running, progress)
        try:
            async with running:
                async for report in running:
                    progress.show(report.payload)
                result = await running.raw()
        except errors.Unreachable:
            raise Unreachable(reach.target) from None
        except errors.CallFailed as failed:
            progress.clear()
            return tell_failed(failed, interrupted=False)
        except errors.CallPaused as pause:
            progress.clear()
            return tell_paused(pause.paused)
        finally:
            asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)
        progress.clear()
    if result.json is not None:
        say(result.json.decode())
    elif result.placed is not None:
        tell(
            f"The result is an artifact; get it by `pillion artifacts get {result.placed.reference}` with the "
            f"--session or --run of the call, or where it had neither with --execution {running.execution_id}."
        )
    return TOOL_ERROR if result.is_error else 0


def _leave(call: pillion.Call, progress: ProgressLine) -> None:
    """The person has seen enough: the call goes on."""
    if not progress.clear() and sys.stderr is not None and sys.stderr.isatty():
        tell("")  # Below the ^C that the terminal has written.
    stop = f"; `pillion cancel {call.execution_id}` stops it" if call.execution_id is not None else ""
    tell(f"The call goes on, and can be followed again{stop}.")
    os._exit(INTERRUPTED)
