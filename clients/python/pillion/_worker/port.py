"""What a tool's context stands on."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

from pillion._facts import TeardownReason
from pillion._gen.pillion.v1.artifacts_pb2 import DownloadRequest
from pillion._gen.pillion.v1.outbound_pb2 import OutboundRequest, Reply, TeardownAccepted
from pillion._gen.pillion.v1.worker_pb2 import RegisterTeardown
from pillion._wire.channel import Transport
from pillion._worker.requests import Deliveries

Cleanup = Callable[[TeardownReason], object]
"""Cleans up. What it cleans may be gone already. A plain function runs in a thread; what it returns is awaited."""


class Port(Protocol):
    """The way from one running call to its sidecar."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop that requests are made on."""
        ...

    @property
    def inline_bytes(self) -> int:
        """The largest payload of an artifact that rides inside a frame."""
        ...

    async def open_upload(self) -> Transport:
        """A stream to upload an artifact by, which begins with a token of this call."""
        ...

    async def open_download(self, request: DownloadRequest) -> Transport:
        """A stream of an artifact, likewise."""
        ...

    def report(self, payload: bytes) -> bool:
        """Sends progress, from any thread. False: it is too large."""
        ...

    def log(self, level: int, message: str, fields: Mapping[str, str]) -> None:
        """Sends a line of log, from any thread."""
        ...

    async def ask(
        self,
        request: OutboundRequest,
        timeout: float | None = None,
        reported: Callable[[bytes], None] | None = None,
    ) -> Reply:
        """The answer to a request. `reported` is told, on the loop, what a call reports that was asked for.

        :raises RequestRefused: if there is none, or it is an error.
        """
        ...

    async def register(self, registration: RegisterTeardown, cleanup: Cleanup) -> TeardownAccepted:
        """Registers a cleanup.

        :raises RequestRefused: if it is not registered.
        """
        ...

    def deliveries(self, subscription: str) -> Deliveries:
        """What comes for a subscription."""
        ...

    def forget(self, subscription: str) -> None:
        """A subscription is over."""
        ...
