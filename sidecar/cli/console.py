"""What commands say: results to stdout, all else to stderr, in whatever encoding the terminal has."""

import os
import sys
from typing import TextIO

_SUBSTITUTES = str.maketrans({"…": "...", "·": "-", "→": "->", "✓": "ok"})


def say(text: str) -> None:
    """Writes a line of the result."""
    _write(sys.stdout, text)


def tell(text: str) -> None:
    """Writes a line for the person."""
    _write(sys.stderr, text)


def is_terminal(stream: TextIO) -> bool:
    """Whether a person looks at the stream on a terminal that can redraw a line."""
    return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def spoken(text: str, stream: TextIO) -> str:
    """A text as the stream can carry it; characters that it has no bytes for are replaced."""
    encoding = stream.encoding or "ascii"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(_SUBSTITUTES).encode(encoding, "backslashreplace").decode(encoding)
    return text


def _write(stream: TextIO | None, text: str) -> None:
    if stream is None:
        # Closed before the start.
        return
    stream.write(spoken(text, stream) + "\n")
    stream.flush()
