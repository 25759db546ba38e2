"""Tickets as people and pipes hand them over."""

import json
import sys
from typing import Any

from sidecar.cli.console import is_terminal, tell


class BadTicket(ValueError):
    """What was given holds no ticket. The text says what would do."""


def ticket_of(given: str | None, what: str) -> tuple[str, str | None]:
    """The ticket in a text, alone or in the object that tells of it, and the name of the tool if that is told too.

    Lines below it do no harm.

    Without a text standard input has it, which a person at a terminal is asked for.

    :param what: the sentence that says what would do.
    :raises BadTicket: if there is none.
    """
    text = (_read() if given is None else given).strip()
    told: Any = {"ticket": text.partition("\n")[0].rstrip()}
    if text.startswith("{"):
        try:
            told, _ = json.JSONDecoder().raw_decode(text)
        except (ValueError, RecursionError):
            told = {}
    ticket, tool = told.get("ticket"), told.get("tool")
    if not isinstance(ticket, str) or not ticket or not ticket.isascii():
        raise BadTicket(what)
    return ticket, tool if isinstance(tool, str) else None


def _read() -> str:
    if sys.stdin is None:
        return ""
    try:
        if is_terminal(sys.stdin):
            tell("Ticket:")
            return sys.stdin.readline()
        return sys.stdin.read()
    except ValueError:  # Not a text.
        return ""
