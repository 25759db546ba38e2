"""The ways in which a secret value turns up in a text."""

import base64
import json
from collections.abc import Iterator
from typing import TypeVar
from urllib.parse import quote, quote_plus

T = TypeVar("T", str, bytes)

SHORTEST = 4
"""Characters of the shortest value that is looked for: shorter ones are in every text."""
_SHORTEST_CORE = 6
_BLOCK = 4_096
_SHORTEST_LINE = 8
_GROUP = 3
# Bits of the first characters of base64 that belong to what is before the value, by how much of a group that is.
_LED = (0, 2, 3)
_CHARACTER_BITS = 6
_HTML = {ord(character): f"\\u{ord(character):04x}" for character in "<>&'"}


def renderings_of(value: str | bytes) -> frozenset[str]:
    """The texts to look for: the value itself, and its escaped and encoded forms, in base64 wherever it begins there.

    Lines of a long value are looked for one by one, since that is how they are logged. Values under four characters
    give none.
    """
    if isinstance(value, bytes):
        raw = value
        text = value.decode("utf-8", "replace")
        found = set() if "\ufffd" in text else set(_of_text(text))
        found |= {raw.hex(), raw.hex().upper(), repr(raw)[2:-1]} if len(raw) >= SHORTEST else set()
    else:
        raw = value.encode("utf-8", "surrogatepass")
        found = set(_of_text(value))
    for part in _parts(raw):
        found |= set(_of_base64(part))
    return frozenset(rendering for rendering in found if len(rendering) >= SHORTEST)


def _of_text(value: str) -> Iterator[str]:
    lines = [line for line in value.splitlines() if len(line) >= _SHORTEST_LINE]
    for text in (value, value.strip(), *lines):
        if len(text) < SHORTEST:
            continue
        for part in _parts(text):
            yield part
            yield from _escaped(part)


def _escaped(text: str) -> Iterator[str]:
    encodable = text.encode("utf-8", "replace").decode()
    for form in (quote(encodable, safe=""), quote(encodable), quote_plus(encodable)):
        yield form
        yield _lower_escapes(form)
    for ascii_only in (True, False):
        once = json.dumps(text, ensure_ascii=ascii_only)[1:-1]
        yield once
        yield once.replace("/", "\\/")
        yield once.translate(_HTML)
        yield json.dumps(once, ensure_ascii=ascii_only)[1:-1]
    yield repr(text)[1:-1]


def _lower_escapes(form: str) -> str:
    pieces = form.split("%")
    return "%".join([pieces[0], *(piece[:2].lower() + piece[2:] for piece in pieces[1:])])


def _of_base64(value: bytes) -> Iterator[str]:
    """Base64 of the value, and what it is certain to be within base64 of anything longer."""
    if len(value) < SHORTEST:
        return
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        whole = encode(value).decode()
        yield whole
        yield whole.rstrip("=")
        for lead in range(_GROUP):
            padded = encode(bytes(lead) + value).decode().rstrip("=")
            bits = 8 * (lead + len(value))
            core = padded[_LED[lead] : bits // _CHARACTER_BITS]
            if len(core) >= _SHORTEST_CORE:
                yield core


def _parts(value: T) -> Iterator[T]:
    return (value[start : start + _BLOCK] for start in range(0, len(value), _BLOCK))
