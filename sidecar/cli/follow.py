"""`pillion follow`."""

import argparse
import asyncio
import json
import os
import signal
import sys
from typing import Any

import pillion
from pillion import errors
from sidecar.cli.call import FIRST_FAILURE, INTERRUPTED, TOOL_ERROR, tell_failed
from sidecar.cli.connection import connected
from sidecar.cli.console import is_terminal, say, tell
from sidecar.cli.elicitation import ELICITATION, Elicitation
from sidecar.cli.main import USAGE
from sidecar.cli.progress import ProgressLine
from sidecar.cli.reach import Unreachable, reach_of
from sidecar.config import ConfigRefused

_ANY_TOOL = "The tool"


class BadTicket(ValueError):
    """What was given holds no ticket. The text says what would do."""


def run(options: argparse.Namespace) -> int:
    """Follows one call; answers the exit code, which is that of `pillion call`."""
    try:
        ticket, tool = _ticket_of(_line() if options.ticket == "-" else options.ticket)
        return asyncio.run(_follow(options, ticket, tool))
    except (BadTicket, ConfigRefused, Unreachable) as error:
        tell(str(error))
        return USAGE


def _line() -> str:
    """A line from standard input, which a person at a terminal is asked for."""
    if sys.stdin is None:
        return ""
    if is_terminal(sys.stdin):
        tell("Ticket:")
    return sys.stdin.readline()


def _ticket_of(text: str) -> tuple[str, str]:
    """The ticket in what a person or a pipe hands over, and the name of the tool, if that is told too.

    :raises BadTicket: if there is none.
    """
    text = text.strip()
    told: Any = {"ticket": text}
    if text.startswith("{"):
        try:
            told = json.loads(text)
        except (ValueError, RecursionError):
            told = {}
    ticket, tool = told.get("ticket"), told.get("tool", _ANY_TOOL)
    if not isinstance(ticket, str) or not ticket:
        raise BadTicket("Give the ticket, or the whole line that `pillion call --detach` printed.")
    return ticket, tool if isinstance(tool, str) else _ANY_TOOL


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
        except errors.CallPaused as paused:
            progress.clear()
            tell(f"The tool waits for an answer: {paused}")
            return FIRST_FAILURE
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
