"""The sidecar of the soak, as `pillion serve` runs it, and the worker that attaches by itself."""

import asyncio
import os
import re
import secrets
import signal
import socket
import sys
import urllib.request
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil

from tests.support.documents import ROOT

WORKER = ROOT / "tests" / "soak" / "worker.py"
MARK = "PILLION_SOAK"
END_SECONDS = 45.0
LOG_LINES = 25
_BEFORE, _BEHIND = 500, 3_000
PING_SECONDS = 1.0
"""How often workers are pinged: three missed, and one that was stopped is given up."""

_SAMPLE = re.compile(r"(pillion_\w+)(?:\{[^}]*\})? ([0-9.e+-]+)")


class Broken(Exception):
    """The soak itself could not go on; the text says why."""


class Served:
    """The sidecar and the attached worker, in a directory of their own. Made by `served`."""

    def __init__(self, home: Path, mark: str) -> None:
        self.home = home
        self.mark = mark
        self.address = f"unix:{home}/callers.sock"
        self.config = home / "pillion.toml"
        self.token = home / "token"
        self.instances, self.with_other = 2, True
        """What the settings say of the worker `main`, and whether there is the worker `other`."""
        self.sidecar: Process
        self.attached: Process
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._metrics_port = free.getsockname()[1]

    def configure(self, *, mistaken: bool = False) -> None:
        """Writes the settings, whole or not at all."""
        main, other = (
            f'[[worker]]\nname = "{name}"\ncommand = ["{sys.executable}", "{WORKER}", "{name}"]\ninstances = {count}\n'
            for name, count in (("main", self.instances), ("other", 1))
        )
        text = (
            f'state_dir = "{self.home}"\n[log]\nformat = "text"\n[metrics]\nlisten = "127.0.0.1:{self._metrics_port}"\n'
            f"[limits.workers]\nping_interval = {PING_SECONDS}\n"
            f'[[worker]]\nname = "attached"\ntoken_file = "{self.token}"\n{main}{other if self.with_other else ""}'
        )
        new = self.config.with_suffix(".new")
        new.write_text(text + ('[[worker]]\nname = "main"\n' if mistaken else ""))
        new.replace(self.config)

    async def start(self) -> None:
        """Starts the sidecar."""
        with (self.home / "sidecar.log").open("ab") as log:
            self.sidecar = await self._run(log.fileno(), "-m", "sidecar", "serve", "--config", str(self.config))

    async def attach(self) -> None:
        """Starts the worker that attaches by itself."""
        self.attached = await self._run(
            DEVNULL,
            *(str(WORKER), "attached"),
            PILLION_WORKER_TARGET=f"unix:{self.home}/workers.sock",
            PILLION_WORKER_NAME="attached",
            PILLION_WORKER_TOKEN_FILE=str(self.token),
        )

    async def ready(self) -> None:
        """Returns once all workers of the settings are attached."""
        workers = ["main", "attached", *(["other"] if self.with_other else [])]
        waiting = await self._run(None, "-m", "sidecar", "wait-ready", "--address", self.address, *workers)
        if await waiting.wait():
            raise Broken("The sidecar or a worker was not ready in time.")

    async def _run(self, output: int | None, *command: str, **variables: str) -> Process:
        paths = os.pathsep.join((str(ROOT), str(ROOT / "clients" / "python")))
        return await asyncio.create_subprocess_exec(
            sys.executable,
            *command,
            stdin=DEVNULL,
            stdout=output,
            stderr=output,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": paths, MARK: self.mark} | variables,
            start_new_session=True,
        )

    def workers(self) -> list[psutil.Process]:
        """The processes of workers that the sidecar has started."""
        found = []
        for process in psutil.Process(self.sidecar.pid).children(recursive=True):
            try:
                if str(WORKER) in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.NoSuchProcess:
                continue
        return found

    async def metrics(self) -> dict[str, float]:
        """What the sidecar says of itself, summed over labels."""
        page = await asyncio.to_thread(self._page)
        sums: dict[str, float] = {}
        for name, value in _SAMPLE.findall(page):
            sums[name] = sums.get(name, 0.0) + float(value)
        return sums

    def _page(self) -> str:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{self._metrics_port}/metrics", timeout=10
        ) as answer:  # it is http
            return str(answer.read().decode())

    def log(self) -> str:
        """The end of its log."""
        return "\n".join((self.home / "sidecar.log").read_text(errors="replace").splitlines()[-LOG_LINES:])

    async def stop(self) -> list[str]:
        """Asks sidecar and worker to end; answers what was not in order, a sentence each."""
        wrong = []
        for name, process in (("sidecar", self.sidecar), ("attached worker", self.attached)):
            # The worker leaves by itself when the sidecar drains it. A signal to who is leaving might come too late to
            # be handled, and end it.
            if process is self.sidecar and process.returncode is None:
                process.send_signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(process.wait(), END_SECONDS)
            except TimeoutError:
                process.kill()
                await process.wait()
            if process.returncode:
                wrong.append(f"The {name} ended with code {process.returncode}.")
        if left := self.left():
            wrong.append(f"The sidecar left {len(left)} processes behind.")
        log = (self.home / "sidecar.log").read_text(errors="replace")
        if tracebacks := log.count("Traceback"):
            place = log.index("Traceback")
            first = log[max(0, place - _BEFORE) : place + _BEHIND]
            wrong.append(f"The sidecar's log has {tracebacks} tracebacks, the first of them:\n{first}")
        return wrong

    def left(self) -> list[psutil.Process]:
        """The processes of this soak that still run."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self.mark:
                    found.append(process)
            except psutil.Error:  # Gone, a zombie, or not ours to read.
                continue
        return found


@asynccontextmanager
async def served(home: Path) -> AsyncIterator[Served]:
    """A sidecar that serves with all its workers attached. None of its processes outlives the block."""
    soaked = Served(home, secrets.token_hex(8))
    soaked.token.touch(0o600)
    soaked.token.write_text(secrets.token_urlsafe(32))
    soaked.configure()
    try:
        await soaked.start()
        await soaked.attach()
        await soaked.ready()
        yield soaked
    except BaseException:
        sys.stderr.write(f"--- the end of the sidecar's log\n{soaked.log()}\n")
        raise
    finally:
        for process in soaked.left():
            process.kill()
