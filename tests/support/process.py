"""A sidecar as a process of its own, which may be killed."""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.caller import CallerPeer
from tests.support.host import SETS
from tests.support.links import ATTACH, EXECUTE, GrpcLink
from tests.support.peer import Peer
from tests.support.worker import WorkerPeer, token_of

ROOT = Path(__file__).resolve().parents[2]
HOSTED = ROOT / "tests" / "support" / "hosted_worker.py"
_PATIENCE = 25.0
_END_PATIENCE = 20.0


def hosted(name: str, tools: str, *options: str, settings: str = "") -> str:
    """The settings of a worker that the sidecar starts, as `hosted_worker.py` with these tools and options."""
    command = json.dumps([sys.executable, str(HOSTED), *options, *tools.split()])
    return f'[[worker]]\nname = "{name}"\ncommand = {command}\ntools = {json.dumps(tools.split())}\n{settings}\n'


class SidecarProcess:
    """`python -m sidecar` over unix sockets in a directory, which outlives it: start it again after a kill.

    `write` gives it other workers, which a running one takes over when it sees them. What it says is kept in `said`.
    It is started by the command `within`, if there is one, and with `limits` in its settings; it sees `environment`, in
    which a variable may be left out.
    """

    transport = "unix"

    def __init__(
        self,
        directory: Path,
        sets: Mapping[str, frozenset[str]] = SETS,
        *,
        within: Sequence[str] = (),
        limits: str = "",
        environment: Mapping[str, str | None] | None = None,
    ) -> None:
        self._within = within
        self._environment = environment or {}
        self.said: list[str] = []
        """The lines of its log so far."""
        self._news = asyncio.Event()
        self._hears = asyncio.Event()
        self._hears.set()
        self._reader: asyncio.Task[None] | None = None
        self.callers_at = f"unix:{directory}/callers.sock"
        self.workers_at = f"unix:{directory}/workers.sock"
        self.config = directory / "pillion.toml"
        self._peers: list[Peer] = []
        self._process: Process | None = None
        self._head = (
            f'state_dir = "{directory}/state"\n[listen]\ncallers = "{self.callers_at}"\nworkers = "{self.workers_at}"\n'
            f"{limits}"
        )
        workers = ""
        for name, tools in sets.items():
            token_file = directory / f"{name}.token"
            token_file.write_text(token_of(name))
            listed = ", ".join(f'"{each}"' for each in sorted(tools))
            workers += f'[[worker]]\nname = "{name}"\ntoken_file = "{token_file}"\ntools = [{listed}]\n'
        self.write(workers)

    def write(self, workers: str) -> None:
        """Gives it these workers, and all else that is behind the addresses in its settings."""
        text = self._head + workers
        # Whole or not at all, as the sidecar may be looking.
        new = self.config.with_suffix(".new")
        new.write_text(text)
        new.replace(self.config)

    @property
    def pid(self) -> int:
        """The process, once it was started."""
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        """Starts it; returns once it says that it listens."""
        environment: dict[str, str | None] = {
            **os.environ,
            "PYTHONPATH": f"{ROOT}:{ROOT / 'clients' / 'python'}",
            "PYTHONUNBUFFERED": "1",
            **self._environment,
        }
        self._process = process = await asyncio.create_subprocess_exec(
            *self._within,
            sys.executable,
            *("-m", "sidecar", "--config", str(self.config)),
            stdin=DEVNULL,
            stdout=DEVNULL,
            stderr=PIPE,
            cwd=ROOT,
            env={name: value for name, value in environment.items() if value is not None},
        )
        self.said.clear()
        self._reader = asyncio.ensure_future(self._read(process))
        await self.says("callers at")

    async def says(self, text: str, times: int = 1) -> None:
        """Returns once it has said this in so many lines of its log."""
        try:
            async with asyncio.timeout(_PATIENCE):
                while sum(text in line for line in self.said) < times:
                    self._news.clear()
                    assert self._reader is not None
                    assert not self._reader.done(), "".join(self.said)
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"it did not say {text!r}, but:\n{''.join(self.said)}") from None

    def ignore(self) -> None:
        """Reads what it says no more, until `listen`: soon what it writes to is full."""
        self._hears.clear()

    def listen(self) -> None:
        """Reads on."""
        self._hears.set()

    async def _read(self, process: Process) -> None:
        assert process.stderr is not None
        try:
            async for line in process.stderr:
                self.said.append(line.decode(errors="replace"))
                self._news.set()
                await self._hears.wait()
        finally:
            self._news.set()

    def send(self, what: signal.Signals) -> None:
        """Sends it a signal."""
        os.kill(self.pid, what)

    async def ended(self) -> int:
        """Its exit code, once it has ended."""
        assert self._process is not None
        async with asyncio.timeout(_END_PATIENCE):
            return await self._process.wait()

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
        try:
            async with asyncio.timeout(_END_PATIENCE):
                await process.wait()
                self.listen()
                if self._reader is not None:
                    await self._reader
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
