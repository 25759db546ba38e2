"""Has the store know of pins, a little behind: no call waits for that."""

import asyncio
import logging

from sidecar.calls.stores import Pin, PinStore, StoreUnavailable
from sidecar.scope import ScopeKey
from sidecar.telemetry import Counters

_log = logging.getLogger(__name__)


class PinRecord:
    """Writes each pin that comes or goes, all that have since the last write at once."""

    def __init__(self, store: PinStore, counters: Counters) -> None:
        self._store = store
        self._counters = counters
        self._changed: dict[Pin, str | None] = {}
        self._writing: asyncio.Task[None] | None = None

    def changed(self, key: ScopeKey, worker: str, instance_id: str | None) -> None:
        """A scope is pinned to this instance from now on, or to none."""
        self._changed[key, worker] = instance_id
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write())

    async def settled(self) -> None:
        """Returns when all is written."""
        while self._writing is not None:
            await asyncio.wait((self._writing,))

    async def _write(self) -> None:
        try:
            while self._changed:
                changed, self._changed = self._changed, {}
                try:
                    await self._store.pin(changed)
                except StoreUnavailable:
                    # After a crash their scopes would begin anew, as if what was held had never been.
                    _log.exception("which sessions are pinned could not be stored")
                    self._counters.add("unrecorded_pins", len(changed))
        finally:
            self._writing = None
