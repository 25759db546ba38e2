"""Calls that wait for a worker set, in order and fair by subject."""

from collections import deque

from sidecar.calls.call import Call
from sidecar.scope import Owner

_NOBODY = Owner(None, "")


class FairQueue:
    """Calls that wait for one tool. Each subject's calls keep their order, and subjects take turns."""

    def __init__(self) -> None:
        self._by_owner: dict[Owner, deque[Call]] = {}
        self._turns: deque[Owner] = deque()
        self._count = 0

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

    def first(self) -> Call:
        """The call whose turn it is. There must be one."""
        return self._by_owner[self._turns[0]][0]

    def pop(self) -> Call:
        """Takes out the call whose turn it is; the next turn is another subject's. There must be one."""
        owner = self._turns[0]
        self._turns.rotate(-1)
        call = self._by_owner[owner].popleft()
        self._left(owner)
        return call

    def pop_newest(self) -> Call:
        """Takes out the newest call of the subject that has the most. There must be one."""
        owner = max(self._by_owner, key=lambda owner: len(self._by_owner[owner]))
        call = self._by_owner[owner].pop()
        self._left(owner)
        return call

    def remove(self, call: Call) -> bool:
        """Takes a call out; answers whether it was there."""
        owner = _owner(call)
        calls = self._by_owner.get(owner)
        if calls is None or call not in calls:
            return False
        calls.remove(call)
        self._left(owner)
        return True

    def _left(self, owner: Owner) -> None:
        self._count -= 1
        if not self._by_owner[owner]:
            del self._by_owner[owner]
            self._turns.remove(owner)


def _owner(call: Call) -> Owner:
    return call.scope.owner if call.scope is not None else _NOBODY
