"""`pillion audit verify` and `pillion audit tail`."""

import argparse
import json
import os
import time
from collections import deque
from collections.abc import Iterator

from sidecar.audit.chain import Entry, Key, parse
from sidecar.audit.log import Places
from sidecar.audit.segments import lines_of, segments_in
from sidecar.audit.verification import verify
from sidecar.auditing import audit_key, audit_places
from sidecar.cli.console import say, tell
from sidecar.cli.main import USAGE, settings_file
from sidecar.config import ConfigRefused, read

_WRONG = 1
_LOOK_EVERY = 0.5


def run(options: argparse.Namespace) -> int:
    """Judges the log, or shows its end; answers 0 where it is whole, 1 where it is not."""
    try:
        settings = read(settings_file(options), os.environ)
        places = audit_places(settings)
        if not segments_in(places.directory):
            tell(f"There is no audit log in {places.directory}: is it that of these settings?")
            return USAGE
        if options.action == "tail":
            _tail(places, options.lines, follow=options.follow)
            return 0
        return _verify(places, audit_key(settings, make=False))
    except ConfigRefused as refused:
        tell(str(refused))
    except OSError as error:
        tell(f"The audit log cannot be read: {error.filename}: {error.strerror}.")
    return USAGE


def _verify(places: Places, key: Key) -> int:
    verification = verify(places, key)
    for note in verification.notes:
        tell(f"note: {note}")
    for sentence in verification.found:
        tell(sentence)
    if verification.found:
        return _WRONG
    say(f"{places.directory}: whole; entries {verification.first} to {verification.last}")
    return 0


def _tail(places: Places, lines: int, *, follow: bool) -> None:
    """Prints the newest entries as JSON, a line each, the oldest first. What they say is not judged."""
    last = 0
    for entry in deque(_entries(places, last), lines):
        last = _show(entry)
    while follow:
        time.sleep(_LOOK_EVERY)
        for entry in _entries(places, last):
            last = _show(entry)


def _entries(places: Places, after: int) -> Iterator[Entry]:
    segments = segments_in(places.directory)
    for number, segment in enumerate(segments, 1):
        if number < len(segments) and segments[number].first <= after + 1:
            continue
        for line, is_whole in lines_of(segment):
            entry = parse(line) if is_whole else None
            if entry is not None and entry.link.sequence > after:
                yield entry


def _show(entry: Entry) -> int:
    facts = entry.facts
    del facts["previous"]
    say(json.dumps(facts))
    return entry.link.sequence
