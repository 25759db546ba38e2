"""What commands say: results to stdout, all else to stderr, in whatever encoding the terminal has."""

import os
import sys
import unicodedata
from typing import TextIO

_SUBSTITUTES = str.maketrans({"…": "...", "·": "-", "→": "->", "✓": "ok"})
# Texts of tools are shown here too, and must not steer the terminal of who reads them.
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


def say(text: str) -> None:
    """Writes a line of the result."""
    _write(sys.stdout, text)


def tell(text: str) -> None:
    """Writes a line for the person."""
    _write(sys.stderr, text)


def is_terminal(stream: TextIO) -> bool:
    """Whether a person looks at the stream on a terminal that can redraw a line."""
    return stream.isatty() and os.environ.get("TERM") not in (None, "", "dumb")


def spoken(text: str, stream: TextIO) -> str:
    """A text as the stream can carry it; characters that it has no bytes for are replaced.

    On a terminal so are control characters; elsewhere the text is data.
    """
    if stream.isatty():
        text = text.translate(_CONTROLS)
    encoding = stream.encoding or "ascii"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(_SUBSTITUTES).encode(encoding, "backslashreplace").decode(encoding)
    return text


def fitted(text: str, cells: int) -> str:
    """As much of a text as fits into so many cells of a terminal: some characters take two, and some none."""
    for position, character in enumerate(text):
        cells -= _cells(character)
        if cells < 0:
            return text[:position]
    return text


def _cells(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1


def _write(stream: TextIO | None, text: str) -> None:
    if stream is None:
        # Closed before the start.
        return
    stream.write(spoken(text, stream) + "\n")
    stream.flush()
