"""What commands say: results to stdout, all else to stderr, in whatever encoding the terminal has."""

import os
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

_SUBSTITUTES = str.maketrans({"…": "...", "·": "-", "→": "->", "✓": "ok"})
# Texts of tools are shown here too, and must not steer the terminal of who reads them.
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


class CannotSay(Exception):
    """A result cannot be written. The text says why."""


def say(text: str) -> None:
    """Writes a line of the result.

    :raises BrokenPipeError: if whoever reads it went away.
    :raises CannotSay: if it cannot be written for another reason, such as a full disk.
    """
    with _saying():
        _write(sys.stdout, text)


def tell(text: str) -> None:
    """Writes a line for the person. Where it cannot be written, nobody would be told of that either."""
    with suppress(OSError):
        _write(sys.stderr, text)


def finish() -> None:
    """Writes what others left to be written; raises as `say` does."""
    if sys.stdout is not None:  # as it is where it was closed before the start
        with _saying():
            sys.stdout.flush()


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


@contextmanager
def _saying() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        # What is still kept goes nowhere: a second failure at exit would only be noise.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise
        raise CannotSay(f"The result cannot be written: {error.strerror}.") from None


def _write(stream: TextIO | None, text: str) -> None:
    if stream is None:
        # Closed before the start.
        return
    stream.write(spoken(text, stream) + "\n")
    stream.flush()
