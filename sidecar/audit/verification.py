"""Whether an audit log is whole, and as it was written: what was changed, moved, taken out or cut off, by entry."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sidecar.audit.chain import START, Entry, Key, Link, parse
from sidecar.audit.head import HeadBroken, read_head
from sidecar.audit.log import Places
from sidecar.audit.segments import Segment, lines_of, segments_in

_MOST_FOUND = 100


class Verification(NamedTuple):
    """What was found."""

    first: int
    """The first entry that is there; 0 where there is none."""
    last: int
    """The last."""
    entries: int
    """How many are there and as they were written."""
    found: list[str]
    """A sentence for each thing that is wrong, at most 100; empty for a log that is whole."""
    notes: list[str]
    """Sentences of what is no tampering: older entries that are not kept, an end that a crash tore."""


class _Walk:
    """A walk along the chain, from its first segment that is there to its end."""

    def __init__(self, key: Key) -> None:
        self.found: list[str] = []
        self.notes: list[str] = []
        self.entries = 0
        self.first = 0
        self.link = START
        self._key = key
        self._moved: set[int] = set()

    def segment(self, segment: Segment, *, is_last: bool) -> None:
        """Walks one file."""
        for number, (line, is_whole) in enumerate(lines_of(segment), 1):
            place = f"line {number} of {segment.path.name}"
            if not is_whole and is_last:
                self.notes.append(f"The last line is torn after {len(line)} bytes, as a crash leaves it.")
            elif (entry := parse(line) if is_whole else None) is None:
                self.found.append(f"{place} is no entry.")
            elif not entry.is_authentic(self._key):
                self.found.append(f"{place}, which says that it is entry {entry.link.sequence}, was changed.")
                # Taken at its word, so that one change is told once.
                self._step(entry, place)
            else:
                self.entries += 1
                self._step(entry, place)
            if len(self.found) >= _MOST_FOUND:
                return

    def _step(self, entry: Entry, place: str) -> None:
        sequence, expected = entry.link.sequence, self.link.sequence + 1
        if not self.first:
            self.first = sequence
            if sequence > 1:
                self.notes.append(f"The log begins with entry {sequence}; the ones before are not kept.")
        elif sequence < expected:
            if sequence in self._moved:
                self._moved.discard(sequence)
                self.found.append(f"{place} is entry {sequence}, which was moved behind entry {self.link.sequence}.")
            else:
                self.found.append(f"{place} is entry {sequence}, which stands there a second time.")
            return
        elif sequence > expected:
            self._moved.update(range(expected, min(sequence, expected + _MOST_FOUND)))
            if sequence == expected + 1:
                missing = f"Entry {expected} is not where it should be"
            else:
                missing = f"Entries {expected} to {sequence - 1} are not where they should be"
            self.found.append(f"{missing}, before {place}.")
        elif not entry.follows(self.link):
            self.found.append(f"{place}, entry {sequence}, follows another entry {self.link.sequence} than this one.")
        self.link = entry.link


def verify(places: Places, key: Key) -> Verification:
    """Reads the whole log and judges it. It may be written meanwhile.

    :raises OSError: if it cannot be read.
    """
    walk = _Walk(key)
    try:
        # Read first: what is written meanwhile is behind it.
        head = read_head(places.head, key)
    except HeadBroken:
        head = None
        walk.found.append(f"The head, {places.head}, was not sealed with this key.")
    segments = segments_in(places.directory)
    for number, segment in enumerate(segments, 1):
        walk.segment(segment, is_last=number == len(segments))
    walk.found += _cut(head, walk.link, segments, places)
    return Verification(walk.first, walk.link.sequence, walk.entries, walk.found[:_MOST_FOUND], walk.notes)


def _cut(head: Link | None, end: Link, segments: Sequence[Segment], places: Places) -> Iterator[str]:
    if head is None and segments and not places.head.exists():
        yield f"The head, {places.head}, is missing: whether the end of the log was cut off cannot be told."
    elif head is not None and head.sequence > end.sequence:
        yield f"The log ends with entry {end.sequence}, and the head says that there were {head.sequence}: it was cut."
