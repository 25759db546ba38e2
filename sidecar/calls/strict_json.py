"""JSON text as the wire allows it: one meaning for every reader, and no text that costs more than its size."""

import json
import re
import sys
from collections.abc import Callable
from itertools import accumulate
from math import isinf
from typing import Final, NoReturn

_MOST_NESTED: Final = 128
_MOST_DIGITS: Final = 4_300

_PLAIN: Final = bytes(byte for byte in range(256) if byte not in b'[]{}"')
_STEP: Final = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
# Steps over every escape, and captures a surrogate that is not half of a pair.
_ESCAPE: Final = re.compile(rb"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|(u[dD][89a-fA-F])|.)", re.DOTALL)


class JsonRefused(ValueError):
    """The text is not strict JSON. Its own text is a sentence for whoever sent it, and quotes none of what was sent."""


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise JsonRefused("An object has the same key twice: give each key once.")
    return members


def _number(text: str) -> float:
    number = float(text)
    if isinf(number):
        raise JsonRefused("A number is too large for a double: send one of at most about 1.8e308, or send it as text.")
    return number


def _integer(text: str) -> int:
    if len(text) > _MOST_DIGITS + text.startswith("-"):
        raise ValueError
    return int(text)


def _constant(_: str) -> NoReturn:
    raise JsonRefused("NaN and Infinity are not JSON: send a finite number or null.")


# `int` itself is called without a step through Python. It has the wanted limit, unless the process was given another.
_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_object,
    parse_float=_number,
    parse_int=int if sys.get_int_max_str_digits() == _MOST_DIGITS else _integer,
    parse_constant=_constant,
)
# What `decode` wraps: asked directly, it costs a small text a third less.
_scan: Callable[[str, int], tuple[object, int]] = vars(_DECODER)["scan_once"]


def _brackets(text: bytes) -> bytes:
    """The brackets outside strings of a JSON text, at the speed of C; some brackets of any other text."""
    # Runs of backslashes are halved from their left, as a parser would, so that only true escapes of a quote are taken.
    unescaped = text.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in text else text
    # Two quotes side by side change nothing about what is inside a string, wherever they are.
    marks = unescaped.translate(None, _PLAIN).replace(b'""', b"")
    return b"".join(marks.split(b'"')[::2])


def _nest_over(most: int, brackets: bytes) -> bool:
    return any(map(most.__lt__, accumulate(map(_STEP.__getitem__, brackets))))


def _is_too_deep(text: bytes) -> bool:
    """Whether brackets outside strings nest too deep. Right for every JSON text; any answer will do for others."""
    brackets = _brackets(text)
    # Most brackets of a wide text are leaves: these passes take away at most four levels of them.
    trunk = brackets
    for _ in range(2):
        trunk = trunk.replace(b"[]", b"").replace(b"{}", b"")
    return _nest_over(_MOST_NESTED - 4, trunk) and _nest_over(_MOST_NESTED, brackets)


def parse(text: bytes) -> object:
    """The one JSON value of the text, as Python's own types; a decimal is the nearest double.

    Takes time in proportion to the text, and never fails otherwise than so:

    :raises JsonRefused: if the text is not UTF-8 without a byte order mark, is not exactly one JSON value, has an
        object with the same key twice, a lone surrogate (raw or escaped), more than 128 nested arrays and objects, an
        integer of more than 4,300 digits, a number that is infinite as a double, or NaN or Infinity.
    """
    if len(text) > _MOST_NESTED and text.count(b"[") + text.count(b"{") > _MOST_NESTED and _is_too_deep(text):
        raise JsonRefused("Arrays and objects nest more than 128 deep: send a flatter value.")
    # A single byte is looked for many times faster than three.
    if b"\\" in text and (b"\\ud" in text or b"\\uD" in text) and any(_ESCAPE.findall(text)):
        raise JsonRefused("A text has half of a surrogate pair: send whole characters.")
    try:
        decoded = text.decode().strip(" \t\n\r")
    except UnicodeDecodeError as error:
        raise JsonRefused(f"The text is not UTF-8 from byte {error.start} on: send JSON in UTF-8.") from None
    try:
        value, end = _scan(decoded, 0)
    except JsonRefused:
        raise
    except StopIteration:
        raise JsonRefused("There is no JSON value where one was expected: send exactly one, in UTF-8.") from None
    except json.JSONDecodeError as error:
        raise JsonRefused(f"The text is not JSON at character {error.pos}: send exactly one JSON value.") from None
    except ValueError:
        raise JsonRefused("An integer has more than 4,300 digits: send a shorter one, or send it as text.") from None
    except RecursionError:
        raise JsonRefused("Arrays and objects nest more than 128 deep: send a flatter value.") from None
    if end != len(decoded):
        raise JsonRefused("Something follows the JSON value: send exactly one.")
    return value
