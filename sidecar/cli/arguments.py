"""A call's arguments, as a person writes them."""

import json
import sys
from collections.abc import Sequence
from typing import Any, NoReturn


class BadArguments(ValueError):
    """Arguments that cannot be read. The text says what would do."""


def arguments_of(pairs: Sequence[str], text: str | None, schema: Any) -> bytes:
    """The arguments as the text of a JSON object: that text itself, or made of `NAME=VALUE` pairs.

    `-` reads the text from standard input. A value has the type that the tool's schema says: a text stays as it is,
    others are JSON, and are passed on as they are written. Where the schema says nothing, what reads as JSON is JSON,
    and all else a text.

    :raises BadArguments: if they cannot be read.
    """
    if text is not None:
        if pairs:
            raise BadArguments("Give --json alone, or --arg and --artifact.")
        return sys.stdin.buffer.read() if text == "-" else text.encode()
    properties = schema.get("properties", {}) if isinstance(schema, dict) else {}
    arguments: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise BadArguments(f"{pair!r} is no argument; write --arg NAME=VALUE.")
        if name in arguments:
            raise BadArguments(f"{name} is given twice; give each argument once, a list as JSON.")
        arguments[name] = _json_of(name, value, properties.get(name))
    return f"{{{','.join(f'{_text(name)}:{value}' for name, value in arguments.items())}}}".encode()


def typed(name: str, value: str, schema: Any) -> Any:
    """A value as a person writes it, of the type that its schema says.

    :raises BadArguments: if it is not of that type.
    """
    try:
        return json.loads(_json_of(name, value, schema))
    except (ValueError, RecursionError) as error:
        if isinstance(error, BadArguments):
            raise
        raise BadArguments(f"{name} nests too deep, or has too long a number.") from None


def _json_of(name: str, value: str, schema: Any) -> str:
    """A value as JSON text. What is JSON stays as it was written: a number may have more digits than Python keeps."""
    kinds = _kinds(schema)
    if "string" in kinds and not kinds - {"string", "null"}:
        return _text(value)
    if _is_json(value):
        return value
    if not kinds or "string" in kinds:
        return _text(value)
    raise BadArguments(
        f"{name} is {' or '.join(sorted(kinds))} by the tool's schema, and {value!r} is not that as JSON."
    )


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _is_json(text: str) -> bool:
    try:
        json.loads(text, parse_int=str, parse_float=str, parse_constant=_constant)
    except RecursionError:
        # It may be, and is for the sidecar to refuse.
        return True
    except ValueError:
        return False
    return True


def _constant(name: str) -> NoReturn:
    raise ValueError(name)


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
