"""The artifact store of a sidecar, with all that callers, workers and tools reach it by."""

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import anyio
import grpc

from sidecar._gen.pillion.v1 import artifacts_pb2
from sidecar.artifacts import Eviction, EvictionReason
from sidecar.artifacts.files import FileArtifactStore
from sidecar.artifacts.provision import provide
from sidecar.artifacts.tokens import CallTokens
from sidecar.artifacts.transfers import Transfers
from sidecar.calls.pipeline import Pipeline
from sidecar.config import Settings
from sidecar.doors.access import Context
from sidecar.doors.artifacts import ArtifactDoor
from sidecar.doors.bulk import Bulk
from sidecar.doors.transfers import TransferDoor
from sidecar.doors.unsupported import unsupported_handler
from sidecar.policy import Policy
from sidecar.scope import Principal
from sidecar.storage import Database
from sidecar.telemetry import Counters

_SERVICE = artifacts_pb2.DESCRIPTOR.services_by_name["ArtifactService"]


def artifacts_in(settings: Settings) -> Path:
    """The directory of the artifacts."""
    return settings.state_dir / "artifacts"


class Keeping:
    """The parts of one sidecar that keep artifacts; where the settings want none, what refuses everything."""

    def __init__(self, settings: Settings, database: Database, pipeline: Pipeline, counters: Counters) -> None:
        self.store: FileArtifactStore | None = None
        self.transfers = Transfers()
        self._settings = settings
        self._counters = counters
        self._tokens: CallTokens | None = None
        if not settings.artifacts.enabled:
            return
        limits = settings.limits
        self.store = store = FileArtifactStore(
            database, artifacts_in(settings), limits.artifacts, told=self._count_removed
        )
        self._tokens = provide(
            pipeline,
            store,
            self.transfers,
            inline_bytes=limits.wire.max_inline_bytes,
            frame_bytes=limits.wire.max_frame_bytes,
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """The store's life. Begins after the database's, and ends before it.

        :raises StoreRefused: if the directory cannot be used.
        """
        if self.store is None or self._tokens is None:
            yield
            return
        async with self.store:
            try:
                yield
            finally:
                with anyio.CancelScope(shield=True):
                    await self._tokens.settled()

    async def keep_tidy(self) -> None:
        """Removes what has expired, until cancelled."""
        if self.store is not None:
            await self.store.keep_tidy()

    def for_callers(self, policy: Policy, principal_of: Callable[[Context], Principal]) -> grpc.GenericRpcHandler:
        """The service on the callers' listener."""
        if self.store is None:
            return unsupported_handler(_SERVICE)
        return ArtifactDoor(self.store, policy, self._settings.limits.wire, self._bulk(), principal_of).handler()

    def for_workers(self) -> grpc.GenericRpcHandler:
        """The service on the workers' listener."""
        if self.store is None:
            return unsupported_handler(_SERVICE, ("Upload", "Download"))
        return TransferDoor(self.store, self.transfers, self._bulk()).handler()

    def _bulk(self) -> Bulk:
        limits = self._settings.limits
        return Bulk(limits.artifacts.transfers, limits.wire.stall_after)

    def _count_removed(self, evictions: Sequence[Eviction]) -> None:
        for eviction in evictions:
            has_expired = eviction.reason is EvictionReason.EXPIRED
            self._counters.add("expired_artifacts" if has_expired else "evicted_artifacts")
