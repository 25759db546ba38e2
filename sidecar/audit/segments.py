"""The files of a chain: one behind the other, each named after its first entry."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from sidecar.audit.chain import Entry, parse

_NAME = re.compile(r"audit-(\d{12,19})\.log")
_STEP = 64 * 1024


class Segment(NamedTuple):
    """A file of the chain."""

    first: int
    """The sequence number of its first entry, as its name has it."""
    path: Path


class Tail(NamedTuple):
    """The end of a segment."""

    before: Entry | None
    """The entry before the last, if the last is not the first; `None` too where it is none."""
    last: Entry | None
    """The last line that is whole; `None` where there is none, or it is no entry."""
    size: int
    """Bytes up to and with that line."""
    torn: int
    """Bytes behind it: of an entry that was not written to its end."""


def segments_in(directory: Path) -> list[Segment]:
    """The segments, in the order of the chain."""
    try:
        names = sorted(directory.iterdir())
    except FileNotFoundError:
        return []
    found = [(_NAME.fullmatch(path.name), path) for path in names]
    return sorted(Segment(int(match[1]), path) for match, path in found if match is not None)


def segment_path(directory: Path, first: int) -> Path:
    """Where the segment that begins with this entry is."""
    return directory / f"audit-{first:012d}.log"


def lines_of(segment: Segment) -> Iterator[tuple[bytes, bool]]:
    """Its lines without their ends, and of each whether it has one.

    :raises OSError: if it cannot be read.
    """
    with segment.path.open("rb") as file:
        for line in file:
            yield line.removesuffix(b"\n"), line.endswith(b"\n")


def tail_of(segment: Segment) -> Tail:
    """Its end, read from there.

    :raises OSError: if it cannot be read.
    """
    with segment.path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        text = _last_lines(file, size, 3)
    *_, before, last, torn = (b"", b"", *text)
    whole = size - len(torn)
    return Tail(parse(before), parse(last), whole, len(torn))


def _last_lines(file: BinaryIO, size: int, count: int) -> list[bytes]:
    """The last lines without their ends; the very last is what follows the last end of a line."""
    text, start = b"", size
    while start and text.count(b"\n") < count:
        step = min(start, max(_STEP, len(text)))
        start -= step
        file.seek(start)
        text = file.read(step) + text
    return text.split(b"\n")[-count:]
