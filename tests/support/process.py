"""A sidecar as a process of its own, which may be killed."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping
from pathlib import Path

from tests.support.caller import CallerPeer
from tests.support.host import SETS
from tests.support.links import ATTACH, EXECUTE, GrpcLink
from tests.support.peer import Peer
from tests.support.worker import WorkerPeer, token_of

ROOT = Path(__file__).resolve().parents[2]
_PATIENCE = 15.0


class SidecarProcess:
    """`python -m sidecar` over unix sockets in a directory, which outlives it: start it again after a kill."""

    transport = "unix"

    def __init__(self, directory: Path, sets: Mapping[str, frozenset[str]] = SETS) -> None:
        self.callers_at = f"unix:{directory}/callers.sock"
        self.workers_at = f"unix:{directory}/workers.sock"
        self.config = directory / "pillion.toml"
        self._peers: list[Peer] = []
        self._process: Process | None = None
        lines = [
            f'state_dir = "{directory}/state"',
            "[listen]",
            f'callers = "{self.callers_at}"',
            f'workers = "{self.workers_at}"',
        ]
        for name, tools in sets.items():
            token_file = directory / f"{name}.token"
            token_file.write_text(token_of(name))
            listed = ", ".join(f'"{each}"' for each in sorted(tools))
            lines += ["[[worker]]", f'name = "{name}"', f'token_file = "{token_file}"', f"tools = [{listed}]"]
        self.config.write_text("\n".join(lines) + "\n")

    @property
    def pid(self) -> int:
        """The process, once it was started."""
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        """Starts it; returns once it says that it listens."""
        environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'clients' / 'python'}", "PYTHONUNBUFFERED": "1"}
        self._process = process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "sidecar", "--config", str(self.config)),
            stdin=DEVNULL,
            stdout=DEVNULL,
            stderr=PIPE,
            cwd=ROOT,
            env=environment,
        )
        assert process.stderr is not None
        said: list[bytes] = []
        async with asyncio.timeout(_PATIENCE):
            while not (said and b"callers at" in said[-1]):
                said.append(await process.stderr.readline())
                assert said[-1], b"".join(said).decode()

    async def kill(self) -> None:
        """Kills it, without a word to anybody, and waits until it is gone."""
        await self._end(signal.SIGKILL)

    async def caller(self) -> CallerPeer:
        """A caller on a new stream."""
        peer = CallerPeer(GrpcLink(self.callers_at, EXECUTE), virtual=False)
        self._peers.append(peer)
        return peer

    async def worker(self) -> WorkerPeer:
        """A worker on a new stream, which has said nothing yet."""
        peer = WorkerPeer(GrpcLink(self.workers_at, ATTACH), virtual=False)
        self._peers.append(peer)
        return peer

    async def counters(self) -> Mapping[str, int]:
        """Not told here."""
        raise NotImplementedError

    async def aclose(self) -> None:
        """Cuts the streams of all peers, and ends it if it runs."""
        for peer in self._peers:
            await peer.aclose()
        self._peers.clear()
        await self._end(signal.SIGTERM)

    async def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            process.send_signal(how)
        async with asyncio.timeout(_PATIENCE):
            await process.communicate()
