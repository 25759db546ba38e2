"""Gate 7: how many calls run at once."""

from typing import Final

from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind
from sidecar.calls.limits import CallLimits
from sidecar.calls.outcome import Refusal
from sidecar.scope import Owner

_OVERLOADED: Final = FailureKind.FAILURE_KIND_OVERLOADED
_RETRY_AFTER: Final = 1.0


class Admission:
    """Counts each subject's running calls."""

    def __init__(self, limits: CallLimits) -> None:
        self._most = limits.in_flight_per_subject
        self._running: dict[Owner, int] = {}

    def enter(self, owner: Owner) -> None:
        """Counts a call in.

        :raises Refusal: as OVERLOADED if its subject has too many.
        """
        running = self._running.get(owner, 0)
        if running >= self._most:
            raise Refusal(
                _OVERLOADED,
                f"This subject has {running} calls in flight, which is the most; try again when some have ended.",
                retryable=True,
                retry_after=_RETRY_AFTER,
            )
        self._running[owner] = running + 1

    def leave(self, owner: Owner) -> None:
        """Counts a call out."""
        running = self._running[owner]
        if running > 1:
            self._running[owner] = running - 1
        else:
            del self._running[owner]

    def __len__(self) -> int:
        return sum(self._running.values())
