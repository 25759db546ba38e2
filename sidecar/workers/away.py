"""The instances of a worker set that have no stream, and may come back as themselves."""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from sidecar.scope import KeptInstance


class _Absent(NamedTuple):
    instance: KeptInstance
    holder: str
    timer: asyncio.TimerHandle


class Away:
    """Waits for lost instances, for a window of seconds each; tells of each that does not come back."""

    def __init__(self, window: float, lost: Callable[[str], object]) -> None:
        self._window = window
        self._lost = lost
        self._absent: dict[str, _Absent] = {}

    def __len__(self) -> int:
        return len(self._absent)

    def __contains__(self, instance_id: object) -> bool:
        return instance_id in self._absent

    def find(self, instance_id: str) -> KeptInstance | None:
        """The one of this id."""
        absent = self._absent.get(instance_id)
        return absent.instance if absent is not None else None

    def add(self, instance: KeptInstance, holder: str) -> None:
        """One has no stream from now on; `holder`: whom its token was given to."""
        timer = asyncio.get_running_loop().call_later(self._window, self._give_up, instance.id)
        self._absent[instance.id] = _Absent(instance, holder, timer)

    def back(self, instance_id: str) -> None:
        """One is back, or is not waited for. One that is not away is no error."""
        absent = self._absent.pop(instance_id, None)
        if absent is not None:
            absent.timer.cancel()

    def give_up(self, holder: str) -> None:
        """Those of this holder do not come back."""
        for instance_id in [number for number, absent in self._absent.items() if absent.holder == holder]:
            self._give_up(instance_id)

    def close(self) -> None:
        """Drops all timers."""
        for instance_id in tuple(self._absent):
            self.back(instance_id)

    def _give_up(self, instance_id: str) -> None:
        self.back(instance_id)
        self._lost(instance_id)
