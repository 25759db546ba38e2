"""Takes the secrets that were issued out of all that is written down."""

import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple, Self

from sidecar.credentials.renderings import SHORTEST, renderings_of
from sidecar.credentials.secret import Secret

MASK = "[redacted]"
"""What stands where a secret stood."""

_MOST_VALUES = 4_096
_MOST_CHARACTERS = 16 * 1024 * 1024
# From so many on it is cheaper to look at the text once, for what each of them begins with.
_MANY = 64
_HEAD = SHORTEST


class RedactorFull(Exception):
    """So many secrets are held that no further one can be looked for. It is not to be issued."""


class RedactorStatistics(NamedTuple):
    """What a redactor looks for."""

    values: int
    """Secrets."""
    held: int
    """Those of them that a call holds."""
    characters: int
    """Of all their forms."""


class _Entry:
    __slots__ = ("characters", "holders", "renderings")

    def __init__(self, renderings: frozenset[str]) -> None:
        self.renderings = renderings
        self.characters = sum(map(len, renderings))
        self.holders = 0


class Hold:
    """Keeps secrets looked for until `release`. Releasing again does nothing; `with` does it."""

    def __init__(self, redactor: "Redactor", entries: Iterable[_Entry]) -> None:
        self._redactor = redactor
        self._entries = tuple(entries)

    def release(self) -> None:
        """The call has ended. Its secrets are looked for still, as long as there is room."""
        entries, self._entries = self._entries, ()
        self._redactor._released(entries)  # noqa: SLF001  # a hold and its redactor are one thing in two classes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class Redactor:
    """Replaces secrets in texts, in the forms that they take there: escaped, URL-encoded, in base64.

    It knows a bounded number of them: those that calls hold, and of the others the latest. Values under four characters
    are not looked for. It learns of them in one thread, as all that issues credentials is; any thread may redact.
    """

    def __init__(self, *, most_values: int = _MOST_VALUES, most_characters: int = _MOST_CHARACTERS) -> None:
        self._most_values = most_values
        self._most_characters = most_characters
        self._entries: OrderedDict[str | bytes, _Entry] = OrderedDict()
        self._characters = 0
        self._held = 0
        self._patterns: dict[str, int] = {}
        """What is looked for, and for how many secrets."""
        self._heads: dict[str, list[str]] = {}
        """The same, by what it begins with."""
        self._starts: dict[str, int] = {}
        """The heads of heads, and of how many."""
        self._changing = threading.Lock()
        """Held for moments: while these change, and while it is read what of them may be in a text."""

    @property
    def knows_any(self) -> bool:
        """Whether there is anything that it looks for."""
        return bool(self._entries)

    def statistics(self) -> RedactorStatistics:
        """What it looks for now."""
        return RedactorStatistics(len(self._entries), self._held, self._characters)

    def remember(self, secrets: Iterable[Secret[str] | Secret[bytes]]) -> None:
        """Looks for these from now on, until there are too many later ones.

        :raises RedactorFull: if calls hold as many as there may be; some of these may not be looked for then.
        """
        for secret in secrets:
            self._add(secret.reveal())

    def hold(self, secrets: Iterable[Secret[str] | Secret[bytes]]) -> Hold:
        """Looks for these until the hold is released, and as long afterwards as there is room.

        :raises RedactorFull: if calls hold as many as there may be.
        """
        entries = [self._add(secret.reveal()) for secret in secrets]
        for entry in entries:
            self._held += entry.holders == 0
            entry.holders += 1
        return Hold(self, entries)

    def redact(self, text: str) -> str:
        """The text without the secrets that are whole in it."""
        if not self._entries:
            return text
        return _masked(text, self._spans(text), 0)

    def stream(self) -> "RedactedStream":
        """For texts that follow one another, between which a secret may be split."""
        return RedactedStream(self)

    def _add(self, value: str | bytes) -> _Entry:
        entry = self._entries.get(value)
        if entry is None:
            entry = _Entry(renderings_of(value))
            self._make_room(entry.characters)
            self._entries[value] = entry
            self._characters += entry.characters
            with self._changing:
                for rendering in entry.renderings:
                    self._look_for(rendering)
        else:
            self._entries.move_to_end(value)
        return entry

    def _make_room(self, characters: int) -> None:
        while len(self._entries) >= self._most_values or self._characters + characters > self._most_characters:
            oldest = next((value for value, entry in self._entries.items() if not entry.holders), None)
            if oldest is None:
                raise RedactorFull("Too many secrets are held by running calls; try again when some have ended.")
            entry = self._entries.pop(oldest)
            self._characters -= entry.characters
            with self._changing:
                for rendering in entry.renderings:
                    self._look_no_more(rendering)

    def _released(self, entries: Iterable[_Entry]) -> None:
        for entry in entries:
            entry.holders -= 1
            self._held -= entry.holders == 0

    def _look_for(self, pattern: str) -> None:
        known = self._patterns.get(pattern, 0)
        self._patterns[pattern] = known + 1
        if known:
            return
        head = pattern[:_HEAD]
        if head not in self._heads:
            self._heads[head] = []
            for length in range(1, _HEAD):
                self._starts[head[:length]] = self._starts.get(head[:length], 0) + 1
        self._heads[head].append(pattern)

    def _look_no_more(self, pattern: str) -> None:
        self._patterns[pattern] -= 1
        if self._patterns[pattern]:
            return
        del self._patterns[pattern]
        head = pattern[:_HEAD]
        self._heads[head].remove(pattern)
        if self._heads[head]:
            return
        del self._heads[head]
        for start in (head[:length] for length in range(1, _HEAD)):
            self._starts[start] -= 1
            if not self._starts[start]:
                del self._starts[start]

    def _candidates(self, text: str) -> Iterable[str]:
        """All that may be in the text, and perhaps more."""
        if len(self._patterns) < _MANY:
            with self._changing:
                return tuple(self._patterns)
        begun = {text[start : start + _HEAD] for start in range(len(text) - _HEAD + 1)}
        with self._changing:
            return [pattern for head in self._heads.keys() & begun for pattern in self._heads[head]]

    def _spans(self, text: str) -> list[tuple[int, int]]:
        """From where to where secrets are in the text; they may overlap."""
        spans = []
        for pattern in self._candidates(text):
            start = text.find(pattern)
            while start >= 0:
                spans.append((start, start + len(pattern)))
                start = text.find(pattern, start + 1)
        return spans

    def _begun(self, text: str) -> int:
        """How many characters the text ends with that may be the beginning of a secret, of which more may come."""
        longest = 0
        for pattern in self._candidates(text):
            start = text.find(pattern[:_HEAD], max(len(text) - len(pattern) + 1, 0))
            while 0 <= start < len(text) - longest:
                if pattern.startswith(text[start:]):
                    longest = len(text) - start
                    break
                start = text.find(pattern[:_HEAD], start + 1)
        if longest == 0:
            ends = (text[-length:] for length in range(min(_HEAD - 1, len(text)), 0, -1))
            longest = next((len(end) for end in ends if end in self._starts), 0)
        return longest


class RedactedStream:
    """Texts of one source, such as the lines that a worker prints, one after another.

    A secret that is split over them is found: the end of a text that may begin one is replaced at once, from four
    characters on, and so is what the next text adds to it. So nothing is held back, and of a split secret at most its
    first three characters are seen.
    """

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._tail = ""

    def write(self, text: str) -> str:
        """The next text, without secrets."""
        redactor = self._redactor
        if not redactor.knows_any:
            self._tail = ""
            return text
        tail, self._tail = self._tail, ""
        whole = tail + text
        spans = redactor._spans(whole)  # noqa: SLF001  # a stream and its redactor are one thing in two classes
        begun = redactor._begun(whole)  # noqa: SLF001  # the same
        if begun:
            self._tail = whole[-begun:]
            if begun >= _HEAD:
                spans.append((len(whole) - begun, len(whole)))
        return _masked(whole, spans, len(tail))


def _masked(text: str, spans: list[tuple[int, int]], start: int) -> str:
    """The text from `start` on, with each run of overlapping spans replaced."""
    if not spans:
        return text[start:]
    parts = []
    at = start
    for begin, end in _merged(spans):
        if end <= start:
            continue
        parts += [text[at : max(begin, at)], MASK]
        at = end
    parts.append(text[at:])
    return "".join(parts)


def _merged(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged
