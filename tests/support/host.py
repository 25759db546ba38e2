"""A sidecar in the test's own process: without gRPC over memory, or whole over sockets."""

import asyncio
import os
import signal
import time
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import anyio
import grpc.aio

from sidecar._gen.pillion.v1.execute_pb2 import GetInfoRequest, GetInfoResponse
from sidecar._gen.pillion.v1.tool_pb2 import ToolDescriptor
from sidecar.app import Sidecar
from sidecar.artifacts import ArtifactLimits
from sidecar.artifacts.memory import MemoryArtifactStore
from sidecar.artifacts.provision import provide
from sidecar.artifacts.transfers import Transfers
from sidecar.calls.detached import Detached
from sidecar.calls.limits import CallLimits
from sidecar.calls.pauses import Pauses
from sidecar.calls.pipeline import Pipeline
from sidecar.calls.stores import IdempotencyStore
from sidecar.calls.waiting import until_idle
from sidecar.config import Artifacts as ArtifactSettings
from sidecar.config import Limits, Listen, Settings, Worker
from sidecar.credentials.facade import Credentials
from sidecar.credentials.grant import CredentialGrant
from sidecar.credentials.making import Maker
from sidecar.credentials.settings import CredentialSettings
from sidecar.doors.callers import CallerHost
from sidecar.issuing import Issuing
from sidecar.policy import StaticPolicy
from sidecar.scope import Principal, ScopeLimits, local_principal
from sidecar.serving import serve
from sidecar.telemetry import Counters
from sidecar.wire.limits import WireLimits
from sidecar.wire.stream import FrameStream
from sidecar.wire.streams import Streams
from sidecar.workers.catalogue import Catalogue
from sidecar.workers.grant import Grant
from sidecar.workers.host import WorkerHost
from sidecar.workers.limits import WorkerLimits
from tests.support.caller import CallerPeer
from tests.support.links import ATTACH, EXECUTE, GrpcLink, MemoryLink
from tests.support.peer import Peer
from tests.support.store import (
    FollowedCalls,
    InMemoryDetachedStore,
    InMemoryIdempotencyStore,
    InMemoryPauseStore,
)
from tests.support.tools import tool
from tests.support.worker import WorkerPeer, token_of

SETS: Mapping[str, frozenset[str]] = {
    "main": frozenset(("echo", "read", "put", "send", "slow")),
    "other": frozenset(("other",)),
}
"""The worker sets that a host knows where a test names none, and their tools."""


async def attach(host: "Host", *tools: ToolDescriptor, worker: str = "main", **hello: Any) -> WorkerPeer:
    """A worker that was welcomed with these tools; by default `echo`. Other arguments are those of its hello."""
    peer = await host.worker()
    welcome = await peer.hello(*(tools or (tool(),)), worker=worker, **hello)
    assert not welcome.refused, welcome.refused
    return peer


@dataclass(frozen=True, slots=True)
class Setup:
    """What a host is made with."""

    calls: CallLimits = field(default_factory=CallLimits)
    wire: WireLimits = field(default_factory=WireLimits)
    workers: WorkerLimits = field(default_factory=WorkerLimits)
    sets: Mapping[str, frozenset[str]] = field(default_factory=lambda: SETS)
    artifacts: ArtifactLimits = field(default_factory=ArtifactLimits)
    credentials: str = ""
    """The settings of credentials: `[credentials]` and `[[credential]]`s."""
    granted: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """What each worker set may be issued."""

    scopes: ScopeLimits = field(default_factory=ScopeLimits)

    keeps_artifacts: bool | None = None
    """Whether there is an artifact store. None: as a whole sidecar has it by default, and none in memory."""

    def credential_settings(self) -> CredentialSettings:
        """The settings of credentials, as they are read."""
        return CredentialSettings.model_validate(tomllib.loads(self.credentials))


class Host(Protocol):
    """A running sidecar, by what peers can do with it."""

    transport: str
    """memory, unix or tcp."""

    async def caller(self) -> CallerPeer:
        """A caller on a new stream."""
        ...

    async def worker(self) -> WorkerPeer:
        """A worker on a new stream, which has said nothing yet."""
        ...

    async def counters(self) -> Mapping[str, int]:
        """What the sidecar has counted. Not over TCP, where it is not told."""
        ...

    async def aclose(self) -> None:
        """Cuts the streams of all peers and ends the sidecar."""
        ...


class WatchedStreams(Streams):
    """Open streams that can be looked at one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.open: set[FrameStream] = set()
        """Those that are open."""

    @contextmanager
    def keeping(self, stream: FrameStream) -> Iterator[None]:
        self.open.add(stream)
        try:
            with super().keeping(stream):
                yield
        finally:
            self.open.discard(stream)


class MemoryHost:
    """The sidecar's parts without gRPC, composed as `sidecar.app` does, for streams in memory.

    The parts are there to be looked at. `principal` is who the next caller is, and `until` when that expires.
    """

    transport = "memory"

    def __init__(self, setup: Setup, store: IdempotencyStore | None = None) -> None:
        self.principal = local_principal(os.getuid())
        self.until: float | None = None
        self.store = InMemoryIdempotencyStore()
        self.counts = Counters()
        grants = [Grant.of(name, tools, token_of(name)) for name, tools in setup.sets.items()]
        self.catalogue = Catalogue(grants, setup.workers, setup.calls, self.counts)
        self.policy = policy = StaticPolicy((self.principal.name, _ANYONE.name))
        self.pipeline = Pipeline(
            self.catalogue,
            policy,
            store or self.store,
            setup.calls,
            self.counts,
            max_frame_bytes=setup.wire.max_frame_bytes,
            scopes=setup.scopes,
        )
        self.pause_store = InMemoryPauseStore(setup.calls.paused_per_subject)
        began, now = time.time(), self.pipeline.loop.time()
        self.pauses = Pauses(
            self.pipeline, self.pause_store, b"secret", clock=lambda: began + self.pipeline.loop.time() - now
        )
        self.detached_store = InMemoryDetachedStore()
        self._detached: list[Detached] = []
        self.forget_detached()
        self.artifacts: MemoryArtifactStore | None = None
        if setup.keeps_artifacts:
            self.artifacts = MemoryArtifactStore()
            limits = setup.wire
            provide(
                self.pipeline,
                self.artifacts,
                Transfers(),
                inline_bytes=limits.max_inline_bytes,
                frame_bytes=limits.max_frame_bytes,
            )
        self.streams = WatchedStreams()
        self._callers = CallerHost(self.pipeline, self.streams, setup.wire, self.counts)
        made = Maker(setup.credential_settings(), Path(), {}).made()
        self.credentials = Credentials(made.providers, resources=made.resources)
        words = setup.granted
        self.issuing = Issuing(
            self.credentials, self.pipeline, [CredentialGrant.of(name, words.get(name, ())) for name in setup.sets]
        )
        self._workers = WorkerHost(
            self.catalogue,
            self.streams,
            setup.workers,
            setup.wire,
            self.counts,
            redaction=self.credentials.redactor,
        )
        self._keepers = [asyncio.ensure_future(self.streams.run()), asyncio.ensure_future(self.pauses.keep_tidy())]
        self._peers: list[Peer] = []

    async def caller(self) -> CallerPeer:
        principal, until = self.principal, self.until
        link = MemoryLink(lambda transport: self._callers.execute(transport, principal, until))
        peer = CallerPeer(link, virtual=True)
        self._peers.append(peer)
        return peer

    async def worker(self) -> WorkerPeer:
        peer = WorkerPeer(MemoryLink(self._workers.attach), virtual=True)
        self._peers.append(peer)
        return peer

    async def counters(self) -> Mapping[str, int]:
        return self.counts.snapshot()

    @property
    def detached(self) -> Detached:
        """The detached calls."""
        return self._detached[-1]

    def forget_detached(self) -> None:
        """Knows no detached call any more but by the store, as a sidecar that has just been started."""
        self._detached.append(Detached(self.pipeline, self.detached_store, FollowedCalls()))
        self.pipeline.detached = self.detached

    def drain(self, grace: float) -> None:
        """Begins to stop, as a signal does: tells callers, and takes no new calls."""
        self._callers.drain(grace)
        self.pipeline.draining = True

    async def aclose(self) -> None:
        for peer in self._peers:
            await peer.aclose()
        await until_idle(self.pipeline)
        self.pipeline.teardowns.close()
        await self.pipeline.teardowns.settled()
        for detached in self._detached:
            await detached.settled()
        await self.credentials.aclose()
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        await self.pauses.settled()
        self.catalogue.close()


_ANYONE = Principal("anyone", authenticated=False)


def settings(setup: Setup, transport: str, directory: Path) -> Settings:
    """Settings for a sidecar in this directory, with the token files that they name."""
    workers = []
    for name, tools in setup.sets.items():
        token_file = directory / f"{name}.token"
        token_file.write_text(token_of(name))
        granted = setup.granted.get(name, ())
        workers.append(Worker(name=name, token_file=token_file, tools=tools, credentials=granted))
    if transport == "unix":
        listen = Listen(callers=f"unix:{directory}/callers.sock", workers=f"unix:{directory}/workers.sock")
    else:
        listen = Listen(callers="127.0.0.1:0", workers="127.0.0.1:0", insecure=True)
    limits = Limits(
        calls=setup.calls, wire=setup.wire, workers=setup.workers, artifacts=setup.artifacts, scopes=setup.scopes
    )
    secrets = setup.credential_settings()
    return Settings(
        state_dir=directory / "state",
        listen=listen,
        worker=tuple(workers),
        limits=limits,
        credentials=secrets.credentials,
        credential=secrets.credential,
        artifacts=ArtifactSettings(enabled=setup.keeps_artifacts is not False),
    )


class SocketHost:
    """The whole sidecar, as `python -m sidecar` runs it, over unix sockets or loopback TCP and with its database."""

    def __init__(self, transport: str, made_with: Settings) -> None:
        self.transport = transport
        self.settings = made_with
        self.callers_at = self.workers_at = ""
        self._peers: list[Peer] = []
        self._serving: asyncio.Task[None] | None = None
        self._stopping = False

    async def open(self) -> None:
        """Starts it; returns once it listens."""
        ready: asyncio.Future[Sidecar] = asyncio.get_running_loop().create_future()
        self._serving = asyncio.ensure_future(serve(lambda: self.settings, task_status=_Told(ready)))
        await asyncio.wait((ready, self._serving), return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            await self._serving
        self.sidecar = ready.result()
        self.callers_at, self.workers_at = self.sidecar.callers_at, self.sidecar.workers_at

    async def caller(self) -> CallerPeer:
        peer = CallerPeer(GrpcLink(self.callers_at, EXECUTE), virtual=False)
        self._peers.append(peer)
        return peer

    async def worker(self) -> WorkerPeer:
        peer = WorkerPeer(GrpcLink(self.workers_at, ATTACH), virtual=False)
        self._peers.append(peer)
        return peer

    async def counters(self) -> Mapping[str, int]:
        return (await self.info()).counters

    async def info(self) -> GetInfoResponse:
        """What the sidecar says of itself."""
        async with grpc.aio.insecure_channel(self.callers_at) as channel:
            method = channel.unary_unary(
                "/pillion.v1.ToolHostService/GetInfo", GetInfoRequest.SerializeToString, GetInfoResponse.FromString
            )
            answer: GetInfoResponse = await method(GetInfoRequest())
            return answer

    async def aclose(self) -> None:
        for peer in self._peers:
            await peer.aclose()
        if self._serving is not None:
            if not self._stopping and not self._serving.done():
                self.stop()
            await self._serving

    async def ended(self) -> None:
        """Returns once it has ended by itself."""
        self._stopping = True
        if self._serving is not None:
            await self._serving

    def stop(self) -> None:
        """Tells it to stop, by SIGTERM; once more ends the drain. Only while something still runs in it."""
        self._stopping = True
        signal.raise_signal(signal.SIGTERM)


class _Told(anyio.abc.TaskStatus[Sidecar]):
    def __init__(self, ready: asyncio.Future[Sidecar]) -> None:
        self._ready = ready

    def started(self, value: Sidecar | None = None) -> None:
        if value is not None:
            self._ready.set_result(value)
