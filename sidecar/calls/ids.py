"""Ids that are unique, cheap, and say nothing."""

import itertools
import secrets


class Ids:
    """Ids of one process: a random part that no other process has, and a number that counts."""

    __slots__ = ("_count", "_prefix", "process")

    def __init__(self) -> None:
        self.process = secrets.token_hex(8)
        """The part that every id of this process shares."""
        self._prefix = f"exe_{self.process}_"
        self._count = itertools.count(1)

    def execution(self) -> str:
        """An id for an execution. Unique, not secret."""
        return self._prefix + str(next(self._count))
