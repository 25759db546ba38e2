"""A store of registrations that takes its time, as a test wishes."""

import asyncio
from collections.abc import Sequence

from sidecar._gen.pillion.v1.context_pb2 import TeardownReason
from sidecar.calls.stores import StoreUnavailable
from sidecar.scope import Registration


class SlowStore:
    """Keeps registrations at once, and says so once it may go on. With `broken`, it keeps none and says that."""

    def __init__(self) -> None:
        self.kept: dict[str, Registration] = {}
        self.claimed: list[str] = []
        """What was claimed, in order."""
        self.broken = False
        self._may = asyncio.Event()

    def go_on(self) -> None:
        """From now on nothing waits."""
        self._may.set()

    async def add(self, registration: Registration) -> None:
        if self.broken:
            raise StoreUnavailable("The store was broken on purpose.")
        self.kept[registration.id] = registration
        await self._may.wait()

    async def claim(self, registrations: Sequence[Registration], reason: "TeardownReason.ValueType") -> None:
        if self.broken:
            raise StoreUnavailable("The store was broken on purpose.")
        await self._may.wait()
        self.claimed += [registration.id for registration in registrations]

    async def unclaim(self, registrations: Sequence[Registration]) -> None:
        raise NotImplementedError

    async def remove(self, registrations: Sequence[Registration]) -> None:
        if self.broken:
            raise StoreUnavailable("The store was broken on purpose.")
        for registration in registrations:
            self.kept.pop(registration.id, None)
