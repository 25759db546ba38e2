"""JSON with numbers that mean the same on both sides, or are refused.

A decimal number is decoded to a `float` where the shortest text of that float is, as a number, the text that came, and
to a `decimal.Decimal` where it is not. Both are encoded to a text that is exactly their number.
"""

import json
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from math import isfinite
from typing import Any, NoReturn

from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python

from pillion._failures import PillionError

# Two decimals of at most 15 digits are never the same double, outside the smallest and largest exponents.
_ALWAYS_EXACT = 15
_PLAIN = frozenset((str, int, float, bool, type(None)))
_WIDE = 2**64


class JsonRefused(PillionError, ValueError):
    """A value that has no JSON text of the same meaning, or a text that is not JSON. Quotes no value."""


def encode(value: Any) -> bytes:
    """The JSON text of a value, in UTF-8.

    Objects are dicts with text keys; arrays are lists and tuples; numbers are ints of any size, floats and Decimals.
    Other values are first made plain as pydantic does, so models, data classes, dates and enums may be given.

    :raises JsonRefused: if a key is no text, a number is not finite, an integer has over 4,300 digits, a text holds
        half of a surrogate pair, the value contains itself, or is of a type without a JSON form.
    """
    try:
        if _is_plain(value):
            return to_json(value)
        return "".join(_parts(value)).encode()
    except (UnicodeEncodeError, PydanticSerializationError):
        raise JsonRefused("A text holds half of a surrogate pair, or the value nests too deep.") from None
    except RecursionError:
        raise JsonRefused("The value nests too deep, or contains itself.") from None
    except JsonRefused:
        raise
    except ValueError as error:
        raise JsonRefused(_reason(error)) from None


def encode_arguments(arguments: Any) -> bytes:
    """The JSON text of a call's arguments: bytes are taken as they are, and a mapping is encoded.

    :raises JsonRefused: as `encode`, and if the value is neither.
    """
    if isinstance(arguments, bytes):
        return arguments
    if isinstance(arguments, dict) or hasattr(arguments, "__pydantic_serializer__"):
        return encode(arguments)
    if hasattr(arguments, "keys"):
        return encode(dict(arguments))
    raise JsonRefused("Arguments are a mapping by name, or the bytes of a JSON object.")


def decode(text: bytes) -> Any:
    """The value of a JSON text.

    :raises JsonRefused: if the text is not UTF-8 or not JSON, holds NaN or Infinity, nests too deep for Python, or has
        an integer of over 4,300 digits.
    """
    try:
        decoded = text.decode().strip(" \t\n\r")
        value, end = _scan(decoded, 0)
    except JsonRefused:
        raise
    except (StopIteration, json.JSONDecodeError, UnicodeDecodeError):
        raise JsonRefused("The text is not JSON.") from None
    except ValueError:
        raise JsonRefused("An integer has over 4,300 digits.") from None
    except RecursionError:
        raise JsonRefused("The value nests too deep.") from None
    if end != len(decoded):
        raise JsonRefused("Something follows the JSON value.")
    return value


def _decimal(text: str) -> float | Decimal:
    number = float(text)
    if len(text) <= _ALWAYS_EXACT and "e" not in text and "E" not in text:
        return number
    try:
        exact = Decimal(text)
        return number if isfinite(number) and Decimal(repr(number)) == exact else exact
    except InvalidOperation:
        raise JsonRefused("A number has too large an exponent.") from None


def _constant(_: str) -> NoReturn:
    raise JsonRefused("NaN and Infinity are not JSON.")


_decoder = json.JSONDecoder(parse_float=_decimal, parse_constant=_constant)
# What `decode` of the decoder wraps; asked directly, a small text costs half.
_scan: Callable[[str, int], tuple[Any, int]] = vars(_decoder)["scan_once"]

_scalar = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


def _is_plain(value: Any) -> bool:
    """Whether `to_json` writes this exactly: it would make texts of keys and of Decimals, and take NaN."""
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return True
    if kind is int:
        return bool(-_WIDE < value < _WIDE)
    if kind is float:
        return isfinite(value)
    if kind is dict:
        for key, item in value.items():
            # Most items are texts and small numbers, and are not worth a call.
            of = type(item)
            if type(key) is not str or not (of is str or (of is int and -_WIDE < item < _WIDE) or _is_plain(item)):
                return False
        return True
    if kind is list or kind is tuple:
        return all(map(_is_plain, value))
    return False


def _parts(value: Any) -> list[str]:
    parts: list[str] = []
    _write(value, parts.append)
    return parts


def _write(value: Any, put: Callable[[str], None]) -> None:
    """Writes any value; slower, and exact in all that the quick encoder is not."""
    if type(value) in _PLAIN:
        put(to_json(value).decode() if _is_plain(value) else _scalar(value))
    elif isinstance(value, str):
        put(_scalar(str.__str__(value)))
    elif isinstance(value, int):
        put(_scalar(int(value)))
    elif isinstance(value, float):
        put(_scalar(float(value)))
    elif isinstance(value, Decimal):
        put(_text_of(value))
    elif isinstance(value, dict):
        before = "{"
        for key, item in value.items():
            if not isinstance(key, str):
                raise JsonRefused("A key of an object is a text.")
            put(f"{before}{_scalar(str(key))}:")
            _write(item, put)
            before = ","
        put("}" if value else "{}")
    elif isinstance(value, list | tuple) and not hasattr(value, "__pydantic_serializer__"):
        before = "["
        for item in value:
            put(before)
            _write(item, put)
            before = ","
        put("]" if value else "[]")
    else:
        _write(_made_plain(value), put)


def _made_plain(value: Any) -> Any:
    try:
        plain = to_jsonable_python(value, by_alias=True)
    except (PydanticSerializationError, UnicodeDecodeError):
        raise JsonRefused(f"A {type(value).__name__} has no JSON form.") from None
    if type(plain) in _PLAIN or isinstance(plain, dict | list):
        return plain
    raise JsonRefused(f"A {type(value).__name__} has no JSON form.")


def _text_of(number: Decimal) -> str:
    if not number.is_finite():
        raise JsonRefused("NaN and Infinity are not JSON.")
    if not isfinite(float(number)):
        raise JsonRefused("A number is too large for a double, which some readers have: send it as text.")
    return str(number)


def _reason(error: ValueError) -> str:
    text = str(error)
    if "Out of range float" in text:
        return "NaN and Infinity are not JSON."
    if "Circular" in text:
        return "The value contains itself."
    return "An integer has over 4,300 digits."
