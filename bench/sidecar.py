"""The sidecar under test: started from a configuration of its own, with default settings, and always ended."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import grpc.aio
import psutil

from bench.grpc_options import CHANNEL_OPTIONS
from bench.processes import Child, ProcessError, child, end, rss_mib
from bench.tools import SERVICE, SIGNED

STARTS_WITHIN = 15.0
STOPS_WITHIN = 10.0
HEALTH = "/grpc.health.v1.Health/Check"
SERVING = b"\x08\x01"
"""A `HealthCheckResponse` whose status is SERVING."""
VARIABLE = "PILLION_BENCH_TOKEN"
"""The variable of the sidecar with the credential of `signed`."""
SUPERVISED = "supervised"
"""The worker set that the sidecar starts itself, where it is asked to."""


class Sidecar:
    """A running sidecar, and the way to give it workers and callers: of the SDK, or bare ones."""

    def __init__(
        self, process: asyncio.subprocess.Process, directory: Path, sets: Mapping[str, list[str]], *, bare: bool
    ) -> None:
        self.start_seconds = 0.0
        self._peers = "bench.bare" if bare else "bench.sdk"
        self._process = process
        self._directory = directory
        self._sets = sets

    @property
    def pid(self) -> int:
        """The process id, valid until the sidecar is stopped."""
        return self._process.pid

    @property
    def callers(self) -> str:
        """Where callers connect."""
        return f"unix:{self._directory}/callers.sock"

    def rss_mib(self) -> float:
        """Resident memory of the sidecar and of its guardian; the workers below that are not counted."""
        return rss_mib(self.pid) + sum(rss_mib(process.pid) for process in psutil.Process(self.pid).children())

    def worker(self, name: str, concurrency: int) -> contextlib.AbstractAsyncContextManager[Child]:
        """Runs an instance of the worker set `name`, attached for the length of the block."""
        return child(
            f"{self._peers}.worker",
            f"unix:{self._directory}/workers.sock",
            name,
            str(self._directory / f"{name}.token"),
            str(concurrency),
            *self._sets[name],
        )

    def caller(self) -> contextlib.AbstractAsyncContextManager[Child]:
        """Runs a caller, connected for the length of the block."""
        return child(f"{self._peers}.caller", self.callers)

    def bare_caller(self) -> contextlib.AbstractAsyncContextManager[Child]:
        """Runs a caller over bare stubs, for what the SDK does not do."""
        return child("bench.bare.caller", self.callers)

    async def serving(self, began: float) -> None:
        """Waits until health says SERVING, and notes how long after `began` that was."""
        path = self._directory / "callers.sock"
        while not await _accepts(path):
            self._check(began)
            await asyncio.sleep(0.005)
        await self._healthy("", began)
        self.start_seconds = time.perf_counter() - began

    async def attached(self, name: str) -> None:
        """Waits until an instance of the worker set takes calls."""
        await self._healthy(f"worker/{name}", time.perf_counter())

    async def _healthy(self, service: str, began: float) -> None:
        request = b"\x0a" + bytes((len(service),)) + service.encode()  # a `HealthCheckRequest`
        async with grpc.aio.insecure_channel(self.callers, options=CHANNEL_OPTIONS) as channel:
            check: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(HEALTH)
            while True:
                self._check(began)
                with contextlib.suppress(grpc.aio.AioRpcError):
                    if await check(request, timeout=1) == SERVING:
                        return
                await asyncio.sleep(0.005)

    def _check(self, began: float) -> None:
        if self._process.returncode is not None:
            raise ProcessError(f"the sidecar ended with code {self._process.returncode}")
        if time.perf_counter() - began > STARTS_WITHIN:
            raise ProcessError(f"the sidecar did not serve within {STARTS_WITHIN:.0f} s")


async def _accepts(path: Path) -> bool:
    try:
        _, writer = await asyncio.open_unix_connection(path)
    except OSError:
        return False
    writer.close()
    return True


@contextlib.asynccontextmanager
async def sidecar(
    sets: Mapping[str, list[str]], *, bare: bool = False, supervised: bool = False
) -> AsyncIterator[Sidecar]:
    """Runs a sidecar with a state directory of its own, configured with worker `sets` (name to tools).

    Its peers are those of the SDK, or bare ones; `supervised` has it start a worker of its own as well. What it logged
    is printed if the block fails. The process is ended and the directory removed in any case.
    """
    directory = Path(tempfile.mkdtemp(prefix="pillion-bench-"))
    log = directory / "sidecar.log"
    try:
        config = _configure(directory, sets, supervised=supervised)
        began = time.perf_counter()
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "sidecar",
                "serve",
                "--config",
                str(config),
                env={**os.environ, VARIABLE: secrets.token_urlsafe(32)},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        instance = Sidecar(process, directory, sets, bare=bare)
        try:
            await instance.serving(began)
            yield instance
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            await end(process, grace=STOPS_WITHIN)
    except Exception:
        if log.exists():
            sys.stderr.write(log.read_text(errors="replace")[-4000:])
        raise
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _configure(directory: Path, sets: Mapping[str, list[str]], *, supervised: bool) -> Path:
    """Writes the configuration and the token files; returns the configuration's path."""
    lines = [
        f'state_dir = "{directory}/state"',
        "[listen]",
        f'callers = "unix:{directory}/callers.sock"',
        f'workers = "unix:{directory}/workers.sock"',
    ]
    for name, tools in sets.items():
        token = directory / f"{name}.token"
        token.touch(mode=0o600)
        token.write_text(secrets.token_urlsafe(32) + "\n")
        quoted = ", ".join(f'"{tool}"' for tool in tools)
        lines += ["[[worker]]", f'name = "{name}"', f'token_file = "{token}"', f"tools = [{quoted}]"]
        if SIGNED in tools:
            lines.append(f'credentials = ["{SERVICE}"]')
    if supervised:
        command = json.dumps([sys.executable, "-m", "bench.sdk.supervised"])
        lines += ["[[worker]]", f'name = "{SUPERVISED}"', f"command = {command}"]
    if any(SIGNED in tools for tools in sets.values()):
        lines += ["[[credential]]", f'service = "{SERVICE}"', 'provider = "environment"', f'variable = "{VARIABLE}"']
    config = directory / "pillion.toml"
    config.write_text("\n".join(lines) + "\n")
    return config
