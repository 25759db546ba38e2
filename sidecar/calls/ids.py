"""Ids that are unique, cheap, and say nothing."""

import itertools
import secrets


class Ids:
    """Ids of one process: a random part that no other process has, and a number that counts."""

    __slots__ = ("_count", "_prefix", "_process")

    def __init__(self) -> None:
        self._process = secrets.token_hex(8)
        self._prefix = f"exe_{self._process}_"
        self._count = itertools.count(1)

    @property
    def process(self) -> str:
        """The part that every id of this process shares."""
        return self._process

    def execution(self) -> str:
        """An id for an execution. Unique, not secret."""
        return self._prefix + str(next(self._count))
