"""A chain of entries: each carries a MAC, and names that of the one before it.

An entry is a line: 64 hexadecimal digits, a blank, and a JSON object. The object's first members are its `sequence`,
from 1, and `previous`, the first half of the digits of the entry before; the digits are the HMAC-SHA256 of the object
under the log's key. So each entry can be judged alone, and none can be changed, moved, taken out or put in between.
"""

import hmac
import json
import re
from collections.abc import Mapping
from json.encoder import encode_basestring_ascii
from typing import Any, Final, NamedTuple

_LINE = re.compile(rb'([0-9a-f]{64}) (\{"sequence":([1-9][0-9]{0,17}),"previous":"([0-9a-f]{32})"[,}].*)', re.DOTALL)
quoted = encode_basestring_ascii
"""A text as JSON has it."""


class Key:
    """What a log is written with."""

    def __init__(self, secret: bytes) -> None:
        self._begun = hmac.new(secret, digestmod="sha256")

    def __repr__(self) -> str:
        return "Key(...)"

    def mac(self, data: bytes) -> str:
        """The HMAC-SHA256 of the data, in hexadecimal digits."""
        begun = self._begun.copy()
        begun.update(data)
        return begun.hexdigest()


class Link(NamedTuple):
    """A place in a chain."""

    sequence: int
    """Of the entry that ends there; 0 before the first."""
    mac: str
    """Of that entry, in hexadecimal digits."""


START: Final = Link(0, "0" * 64)
"""Where a chain begins."""


class Entry(NamedTuple):
    """An entry as it was read, which proves nothing yet."""

    link: Link
    """The place in the chain that it claims to end at."""
    previous: str
    """What it names of the entry before."""
    body: bytes
    """The JSON object."""

    @property
    def facts(self) -> dict[str, Any]:
        """What it says.

        :raises ValueError: if that is no JSON, as it always is in an authentic entry.
        """
        facts: dict[str, Any] = json.loads(self.body)
        return facts

    def is_authentic(self, key: Key) -> bool:
        """Whether it is as it was written with this key."""
        return hmac.compare_digest(self.link.mac, key.mac(self.body))

    def follows(self, link: Link) -> bool:
        """Whether it was written at the end of a chain that ended there."""
        return self.link.sequence == link.sequence + 1 and self.previous == link.mac[:32]


def members(facts: Mapping[str, Any]) -> str:
    """Facts as the members of a JSON object, without its brackets."""
    return json.dumps(facts, separators=(",", ":"))[1:-1]


def append(key: Key, link: Link, told: str) -> tuple[str, Link]:
    """The line of the next entry, which tells these members, and where the chain ends then."""
    sequence = link.sequence + 1
    body = f'{{"sequence":{sequence},"previous":"{link.mac[:32]}",{told}}}'
    mac = key.mac(body.encode())
    return f"{mac} {body}\n", Link(sequence, mac)


def parse(line: bytes) -> Entry | None:
    """The entry of a line without its end; `None` where it is none."""
    match = _LINE.fullmatch(line)
    if match is None:
        return None
    mac, body, sequence, previous = match.groups()
    return Entry(Link(int(sequence), mac.decode()), previous.decode(), body)
