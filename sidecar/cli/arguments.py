"""A call's arguments, as a person writes them."""

import json
import sys
from collections.abc import Sequence
from typing import Any


class BadArguments(ValueError):
    """Arguments that cannot be read. The text says what would do."""


def arguments_of(pairs: Sequence[str], text: str | None, schema: Any) -> bytes:
    """The arguments as the text of a JSON object: that text itself, or made of `NAME=VALUE` pairs.

    `-` reads the text from standard input. A value has the type that the tool's schema says: a text stays as it is,
    others are read as JSON. Where the schema says nothing, what reads as JSON is JSON, and all else a text.

    :raises BadArguments: if they cannot be read.
    """
    if text is not None:
        if pairs:
            raise BadArguments("Give --json alone, or --arg and --artifact.")
        return sys.stdin.buffer.read() if text == "-" else text.encode()
    properties = schema.get("properties", {}) if isinstance(schema, dict) else {}
    arguments: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise BadArguments(f"{pair!r} is no argument; write --arg NAME=VALUE.")
        arguments[name] = typed(name, value, properties.get(name))
    return json.dumps(arguments, ensure_ascii=False, separators=(",", ":")).encode()


def typed(name: str, value: str, schema: Any) -> Any:
    """A value as a person writes it, of the type that its schema says.

    :raises BadArguments: if it is not of that type.
    """
    kinds = _kinds(schema)
    if "string" in kinds and not kinds - {"string", "null"}:
        return value
    try:
        return json.loads(value)
    except ValueError:
        if not kinds or "string" in kinds:
            return value
        raise BadArguments(
            f"{name} is {' or '.join(sorted(kinds))} by the tool's schema, and {value!r} is not that as JSON."
        ) from None


def _kinds(schema: Any) -> set[str]:
    """The types that a property may have; none where the schema does not say."""
    if not isinstance(schema, dict):
        return set()
    kind = schema.get("type")
    if isinstance(kind, str):
        return {kind}
    if isinstance(kind, list):
        return {one for one in kind if isinstance(one, str)}
    if isinstance(schema.get("enum"), list) and all(isinstance(one, str) for one in schema["enum"]):
        return {"string"}
    return set().union(*(_kinds(one) for key in ("anyOf", "oneOf") for one in schema.get(key, ())))
