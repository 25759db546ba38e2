"""Sidecars that listen in every way there is, and peers of theirs."""

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from sidecar._gen.pillion.v1.execute_pb2 import GetInfoRequest, GetInfoResponse
from sidecar.config import Settings
from tests.support import CallerPeer, SocketHost, WorkerPeer, token_of
from tests.support.certificates import Authority, Shown
from tests.support.links import ATTACH, EXECUTE, GrpcLink, bearing, channel_to

LOOPBACK = ("127.0.0.1:0", "[::1]:0")
EVERYWHERE = ("0.0.0.0:0", "[::]:0")
TOKENS = {"backend": "token-of-the-backend-0123456789", "other": "token-of-the-other-0123456789"}
WRONG = "token-of-nobody-0123456789"
GET_INFO = "/pillion.v1.ToolHostService/GetInfo"
TOOLS = ("echo", "read")
PATIENCE = 20.0


class Place:
    """The files that settings name, in one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = Authority(directory)
        self.server = self.authority.issue("localhost", "127.0.0.1", "::1", stem="server")
        self.tokens = {name: self.secret(f"{name}.token", token) for name, token in TOKENS.items()}

    def secret(self, name: str, text: str) -> Path:
        """A file with a secret, written over whole."""
        new = self.directory / f"{name}.new"
        new.write_text(text + "\n")
        new.chmod(0o600)
        return new.replace(self.directory / name)

    @property
    def tls(self) -> dict[str, Path]:
        """The section of a listener by TLS."""
        return {"certificate": self.server.certificate, "key": self.server.key, "client_ca": self.authority.ca}

    def shown(self, *names: Any) -> Shown:
        """What a peer with a certificate for these names shows."""
        return Shown(self.authority.ca, self.authority.issue(*names))

    def settings(self, listen: dict[str, Any], allow: Iterable[dict[str, Any]] = ()) -> Settings:
        """Settings with a worker set `main` of two tools."""
        worker = {"name": "main", "token_file": self.secret("main.token", token_of("main")), "tools": TOOLS}
        return Settings.model_validate(
            {"state_dir": self.directory / "state", "listen": listen, "allow": allow, "worker": [worker]}
        )

    def by_token(self, callers: str = "127.0.0.1:0", **listen: Any) -> Settings:
        """Callers show tokens; the backend's may do everything for anybody, and the other's runs `read` for itself."""
        return self.settings(
            {"callers": callers, "caller_tokens": self.tokens} | listen,
            [anything("token:backend"), {"principal": "token:other", "tools": ["read"]}],
        )

    def by_jwt(self, callers: str = "127.0.0.1:0", *, jwt: dict[str, Any], **listen: Any) -> Settings:
        """Callers show tokens of an issuer, and each may do everything."""
        return self.settings({"callers": callers, "caller_jwt": jwt} | listen, [anything("jwt:*")])

    def by_certificate(self, callers: str = "0.0.0.0:0", **listen: Any) -> Settings:
        """Callers show certificates, and each may do everything."""
        return self.settings({"callers": callers, "caller_tls": self.tls} | listen, [anything("*")])


def anything(principal: str) -> dict[str, Any]:
    """A rule that lets somebody do everything."""
    return {"principal": principal, "tools": ["*"], "tenants": ["*"], "subjects": ["*"]}


class Listening(SocketHost):
    """A sidecar with these settings. Peers show what they are given to show."""

    def __init__(self, settings: Settings) -> None:
        super().__init__("tcp", settings)

    @property
    def target(self) -> str:
        """Where callers on this machine find it."""
        return local(self.callers_at)

    async def caller(self, token: str | None = None, shown: Shown | None = None) -> CallerPeer:
        link = GrpcLink(self.target, EXECUTE, token=token, shown=shown.credentials if shown else None)
        peer = CallerPeer(link, virtual=False)
        self._peers.append(peer)
        return peer

    async def worker(self, shown: Shown | None = None) -> WorkerPeer:
        link = GrpcLink(local(self.workers_at), ATTACH, shown=shown.credentials if shown else None)
        peer = WorkerPeer(link, virtual=False)
        self._peers.append(peer)
        return peer

    async def who_am_i(self, token: str | None = None, shown: Shown | None = None) -> str | None:
        """The principal that the sidecar takes a caller for; `None` for nobody that it would vouch for."""
        async with channel_to(self.target, shown.credentials if shown else None) as channel:
            method: Callable[..., Awaitable[GetInfoResponse]] = channel.unary_unary(
                GET_INFO, GetInfoRequest.SerializeToString, GetInfoResponse.FromString
            )
            info = await method(GetInfoRequest(), metadata=bearing(token), timeout=PATIENCE)
            return info.caller_principal if info.HasField("caller_principal") else None

    async def refuses(self, token: str | None = None, shown: Shown | None = None) -> grpc.aio.AioRpcError:
        """How it refuses a caller."""
        try:
            principal = await self.who_am_i(token, shown)
        except grpc.aio.AioRpcError as error:
            return error
        raise AssertionError(f"it takes the caller for {principal}")

    async def aclose(self) -> None:
        await super().aclose()
        # gRPC waits for a thread of its own when the last of it is freed: here, and not amid what may not block.
        self._serving = None
        self.__dict__.pop("sidecar", None)
        gc.collect()

    @property
    def count(self) -> Callable[[str], int]:
        """What it has counted, by name."""
        return self.sidecar._counters.__getitem__


def local(address: str) -> str:
    """Where somebody on this machine finds a listener."""
    return address.replace(EVERYWHERE[0].partition(":")[0], "127.0.0.1").replace("[::]", "[::1]")


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Returns once a condition holds. Each look is a round trip."""
    async with asyncio.timeout(PATIENCE):
        while not await condition():
            continue
