"""How long to wait before the next try."""

import random


class Backoff:
    """Full jitter: each wait is anything up to a ceiling, which doubles with each failure up to a most."""

    def __init__(self, first: float = 0.1, most: float = 10.0) -> None:
        self._first = first
        self._most = most
        self._failures = 0

    def next(self) -> float:
        """The next wait, in seconds."""
        ceiling = min(self._most, self._first * 2.0 ** min(self._failures, 30))
        self._failures += 1
        return random.uniform(0.0, ceiling)  # noqa: S311  # spreads tries, and keeps nothing secret

    def reset(self) -> None:
        """Something worked."""
        self._failures = 0
