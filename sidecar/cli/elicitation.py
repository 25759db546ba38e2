"""What tools ask the person at the terminal."""

import asyncio
import sys
from collections.abc import Callable, Mapping
from typing import Any

import pillion
from sidecar.cli.arguments import BadArguments, typed
from sidecar.cli.console import is_terminal, spoken, tell

ELICITATION = "elicitation/create"
"""The JSON-RPC method by which a tool asks a person."""
_DECLINED = {"action": "decline"}
_DISMISSED = {"action": "cancel"}
_YES, _NO = ("y", "yes"), ("", "n", "no")
_MOST_FIELDS = 32


class Elicitation:
    """Asks the person for what a tool's schema describes, one question at a time.

    Where nobody looks at a terminal, all is declined. An empty line takes the default of a field, leaves out one that
    may be, and else declines; the end of input (Ctrl-D) dismisses the question.
    """

    def __init__(self, clear: Callable[[], object]) -> None:
        """`clear` makes room: it is called before anything is written."""
        self._clear = clear
        self._turn = asyncio.Lock()

    async def answer(self, question: pillion.Question) -> dict[str, Any]:
        """The answer to `elicitation/create`, as MCP has it."""
        if not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
            return _DECLINED
        async with self._turn:
            self._clear()
            params = question.params if isinstance(question.params, dict) else {}
            who = f"{question.tool} asks" if question.tool is not None else "The tool asks"
            tell(f"{who}: {params.get('message', '')}")
            try:
                return await self._fill(_schema_of(params))
            except EOFError:
                tell("")
                return _DISMISSED
            except asyncio.CancelledError:
                tell("")
                raise

    async def _fill(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        properties = schema.get("properties")
        fields = list(properties.items())[:_MOST_FIELDS] if isinstance(properties, dict) else []
        if not fields:
            return await self._confirm()
        required = schema.get("required")
        needed = frozenset(required) if isinstance(required, list) else frozenset()
        content: dict[str, Any] = {}
        for name, field in fields:
            described = field if isinstance(field, dict) else {}
            while (line := await _line(_prompt(name, described, is_needed=name in needed))) != "":
                try:
                    content[name] = _value(name, line, described)
                    break
                except BadArguments as error:
                    tell(str(error))
            if not line:
                if "default" in described:
                    content[name] = described["default"]
                elif name in needed:
                    return _DECLINED
        return {"action": "accept", "content": content}

    async def _confirm(self) -> dict[str, Any]:
        while (line := (await _line("Accept? [y/N] ")).lower()) not in _YES + _NO:
            tell("Say y for yes, or n for no.")
        return {"action": "accept", "content": {}} if line in _YES else _DECLINED


def _schema_of(params: Mapping[str, Any]) -> Mapping[str, Any]:
    schema = params.get("requestedSchema")
    return schema if isinstance(schema, dict) else {}


def _prompt(name: str, field: Mapping[str, Any], *, is_needed: bool) -> str:
    title = field.get("title") or name
    choices = field.get("enum")
    kind = field.get("type")
    if isinstance(choices, list):
        told = " | ".join(map(str, choices))
    else:
        told = "y/n" if kind == "boolean" else str(kind or "text")
    if "default" in field:
        told += f", else {field['default']}"
    elif not is_needed:
        told += ", may be left empty"
    description = f" {field['description']}" if isinstance(field.get("description"), str) else ""
    return f"{title}{description} ({told}): "


def _value(name: str, line: str, field: Mapping[str, Any]) -> Any:
    choices = field.get("enum")
    if field.get("type") == "boolean" and line.lower() in _YES + _NO:
        return line.lower() in _YES
    value = typed(name, line, field)
    if isinstance(choices, list) and value not in choices:
        raise BadArguments(f"{name} is one of {', '.join(map(str, choices))}.")
    return value


async def _line(prompt: str) -> str:
    """A line that the person writes, without the blanks around it. Waiting for it blocks nothing.

    :raises EOFError: at the end of input.
    """
    sys.stderr.write(spoken(prompt, sys.stderr))
    sys.stderr.flush()
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    descriptor = sys.stdin.fileno()
    # A terminal hands out whole lines, so one that is readable is not waited for any more.
    loop.add_reader(descriptor, _tell, ready)
    try:
        await ready
    finally:
        loop.remove_reader(descriptor)
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.strip()


def _tell(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
