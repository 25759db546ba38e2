"""Streams of frames over each carrier."""

from collections.abc import AsyncIterator, Awaitable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

import pytest

from sidecar.wire.limits import WireLimits
from sidecar.wire.streams import Streams
from tests.wire.links import Link, tasks_over
from tests.wire.receivers import Recorder
from tests.wire.transports import KINDS, Carrier, grpc_carrier, memory_carrier


class Opens(Protocol):
    """Opens a stream and waits until it runs."""

    def __call__(
        self,
        limits: WireLimits = ...,
        *,
        ping_interval: float | None = ...,
        receiver: Recorder | None = ...,
    ) -> Awaitable[Link]: ...


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """What carries the streams."""
    return str(request.param)


@pytest.fixture
def anyio_backend(kind: str) -> tuple[str, dict[str, bool]]:
    """Over TCP the loop is uvloop, as in a sidecar; else asyncio's own."""
    return "asyncio", {"use_uvloop": kind == "tcp"}


@pytest.fixture
def socket_directory() -> Iterator[Path]:
    """A directory whose path is short enough for a socket."""
    with TemporaryDirectory(prefix="wire-") as directory:
        yield Path(directory)


@pytest.fixture
async def carrier(kind: str, socket_directory: Path) -> AsyncIterator[Carrier]:
    """Opens streams of the kind."""
    if kind == "memory":
        async with memory_carrier() as carrier:
            yield carrier
    else:
        async with grpc_carrier(socket_directory / "s" if kind == "unix" else None) as carrier:
            yield carrier


@pytest.fixture
def streams() -> Streams:
    """All streams that are open."""
    return Streams(most_lingering=2)


@pytest.fixture
async def open_stream(carrier: Carrier, streams: Streams) -> AsyncIterator[Opens]:
    """Opens streams; at the end each is cut, and none may leave a task behind."""
    links: list[Link] = []

    async def opens(
        limits: WireLimits = WireLimits(),  # noqa: B008  # frozen
        *,
        ping_interval: float | None = None,
        receiver: Recorder | None = None,
    ) -> Link:
        link = Link(carrier, limits, ping_interval, receiver or Recorder(), streams)
        links.append(link)
        await link.start()
        return link

    yield opens
    for link in links:
        link.transport.release()
        link.peer.cut()
        # In memory, a writer that has nothing to write does not learn that its peer left after a half-close.
        link.stream.finish()
        await link.ended()
        assert link.receiver.told.count("ended") == 1
        assert link.outbox.undelivered_bytes == 0
    # A stream that was cancelled again while it ended does not wait for what it has cancelled.
    await tasks_over()
    assert len(streams) == 0


@pytest.fixture
async def link(open_stream: Opens) -> Link:
    """One stream with the default limits."""
    return await open_stream()
