"""The parent's half: processes of the benchmark, started, asked and always ended."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

import psutil


class ProcessError(RuntimeError):
    """A process of the benchmark ended early, stayed silent or reported a failed measurement."""


class Child:
    """A process that speaks the control line. One command at a time; safe to have many children busy at once."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self.ready: dict[str, Any] = {}
        self._process = process

    @property
    def pid(self) -> int:
        """The process id, valid until the child is stopped."""
        return self._process.pid

    async def ask(self, command: str, *, within: float = 60.0, **arguments: object) -> dict[str, Any]:
        """Sends `command` and returns its answer; raises ProcessError after `within` seconds or on a reported error."""
        stdin = self._process.stdin
        if stdin is None:
            raise ProcessError(f"{self.name}: has no control line")
        stdin.write(json.dumps({"command": command, "arguments": arguments}).encode() + b"\n")
        answer = await self._line(within)
        if "error" in answer:
            raise ProcessError(f"{self.name}: {command}: {answer['error']}")
        return answer

    async def _line(self, within: float) -> dict[str, Any]:
        stdout = self._process.stdout
        if stdout is None:
            raise ProcessError(f"{self.name}: has no control line")
        try:
            async with asyncio.timeout(within):
                line = await stdout.readline()
        except TimeoutError:
            raise ProcessError(f"{self.name}: no answer within {within:.0f} s") from None
        if not line:
            raise ProcessError(f"{self.name}: ended with code {await self._process.wait()}")
        message = json.loads(line)
        if not isinstance(message, dict):
            raise ProcessError(f"{self.name}: not an object: {line[:80]!r}")
        return message

    async def await_ready(self, within: float) -> None:
        """Waits for the child's announcement, kept in `ready`."""
        self.ready = (await self._line(within))["ready"]

    async def stop(self) -> None:
        """Ends the child: the end of stdin, then a kill after 5 s. Never raises for a child that is gone."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        await end(self._process, grace=5.0)


@contextlib.asynccontextmanager
async def child(module: str, *arguments: str, within: float = 30.0) -> AsyncIterator[Child]:
    """Runs `python -m module arguments...` for the length of the block and ends it afterwards, whatever happens."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        module,
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
        limit=1 << 20,
    )
    instance = Child(module.rpartition(".")[2], process)
    try:
        await instance.await_ready(within)
        yield instance
    finally:
        await instance.stop()


async def end(process: asyncio.subprocess.Process, *, grace: float) -> None:
    """Waits `grace` seconds for `process` to end by itself, then kills it and waits for that."""
    try:
        async with asyncio.timeout(grace):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def rss_mib(pid: int) -> float:
    """Resident memory of one process."""
    return float(psutil.Process(pid).memory_info().rss) / (1 << 20)
