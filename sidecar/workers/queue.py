"""Calls that wait for a worker set, in order and fair by subject."""

from collections import deque
from collections.abc import Callable

from sidecar.calls.call import Call
from sidecar.scope import Owner

_NOBODY = Owner(None, "")


class FairQueue:
    """Waiting calls. Each subject's calls keep their order, and subjects take turns."""

    def __init__(self) -> None:
        self._by_owner: dict[Owner, deque[Call]] = {}
        self._turns: deque[Owner] = deque()
        self._count = 0
        self._serving = False

    def __len__(self) -> int:
        return self._count

    def push(self, call: Call) -> None:
        """Adds a call behind those of its subject."""
        owner = _owner(call)
        calls = self._by_owner.get(owner)
        if calls is None:
            calls = self._by_owner[owner] = deque()
            self._turns.append(owner)
        calls.append(call)
        self._count += 1

    def remove(self, call: Call) -> None:
        """Takes a call out, if it is there."""
        owner = _owner(call)
        calls = self._by_owner.get(owner)
        if calls is not None and call in calls:
            calls.remove(call)
            self._count -= 1
            if not calls:
                del self._by_owner[owner]
                self._turns.remove(owner)

    def serve(self, ready: Callable[[Call], bool], take: Callable[[Call], None]) -> None:
        """Takes every call that is ready out, one of each subject in turn; a subject's first call holds up its others.

        `take` may push and remove calls; what it makes ready is served by the same walk.
        """
        if self._serving:
            return
        self._serving = True
        try:
            misses = 0
            while misses < len(self._turns):
                owner = self._turns[0]
                self._turns.rotate(-1)
                call = self._by_owner[owner][0]
                if not ready(call):
                    misses += 1
                    continue
                misses = 0
                self.remove(call)
                take(call)
        finally:
            self._serving = False


def _owner(call: Call) -> Owner:
    return call.scope.owner if call.scope is not None else _NOBODY
