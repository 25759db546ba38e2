"""Worker processes, as the sidecar sees them through its guardian."""

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

from sidecar.workers import guardian

_log = logging.getLogger(__name__)

# As it was compiled for this process, where that is kept: compiling it again would cost the guardian memory.
_GUARDIAN = next(
    path for path in (Path(cache_from_source(guardian.__file__)), Path(guardian.__file__)) if path.exists()
)
_READ_BYTES = 65_536
_ENDS_WITHIN = 10.0
_AGAIN_SECONDS = 0.05


class CannotStart(Exception):
    """A command could not be started. The text says why."""


@dataclass(frozen=True, slots=True)
class Command:
    """How a worker process is started."""

    arguments: Sequence[str]
    directory: str | None
    environment: Mapping[str, str] = field(repr=False)
    """All of it: nothing is inherited. It may hold secrets, so it is not printed."""
    user: int | None
    """The user it runs as. None: the sidecar's own, with all groups of it."""
    group: int | None
    groups: Sequence[int] | None
    """All groups of the user."""


class WorkerProcess:
    """One process of a worker, from its start until it is reaped."""

    def __init__(self, guardian_: "Guardian", id_: str, stdout: int, stderr: int) -> None:
        self.id = id_
        """Marks it and all that comes of it."""
        self.pid = 0
        self.stdout = stdout
        """The reading end of its output. Whoever started the process closes it."""
        self.stderr = stderr
        self.started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """Its exit code, negative for a signal."""
        self._guardian = guardian_

    def terminate(self) -> None:
        """Asks it to end."""
        self._guardian.tell({"stop": {"worker": self.id, "kill": False}})

    def kill(self) -> None:
        """Ends it, and everything that came of it."""
        self._guardian.tell({"stop": {"worker": self.id, "kill": True}})


class Guardian:
    """The guardian process, and the worker processes that it keeps."""

    def __init__(self) -> None:
        self.lost = False
        """Whether the guardian ended by itself. Another can be started once `gone` is done."""
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when nothing is left of a lost guardian's processes."""
        self._processes: dict[str, WorkerProcess] = {}
        self._pending = b""
        ours, theirs = socket.socketpair()
        ours.settimeout(0)
        self._control = ours
        with theirs:
            # Isolated and without site packages: it needs nothing but the standard library, and is small.
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_GUARDIAN), str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
            )
        asyncio.get_running_loop().add_reader(ours, self._receive)

    @property
    def pid(self) -> int:
        """The guardian's process id."""
        return self._process.pid

    async def start(self, command: Command, token: str) -> WorkerProcess:
        """Starts a worker.

        :raises CannotStart: if the system refuses; the text says why.
        """
        if self.lost:
            raise CannotStart("its guardian was lost")
        with contextlib.ExitStack() as ours:
            with contextlib.ExitStack() as theirs:
                token_read, token_write = _pipe(theirs, theirs)
                stdout_read, stdout_write = _pipe(ours, theirs)
                stderr_read, stderr_write = _pipe(ours, theirs)
                process = WorkerProcess(self, f"proc_{secrets.token_hex(8)}", stdout_read, stderr_read)
                self._processes[process.id] = process
                # At most a pipe's buffer, so this does not wait.
                os.write(token_write, token.encode())
                wish = {
                    "worker": process.id,
                    "command": list(command.arguments),
                    "directory": command.directory,
                    "environment": dict(command.environment),
                    "user": command.user,
                    "group": command.group,
                    "groups": command.groups,
                }
                self._send({"spawn": wish}, (stdout_write, stderr_write, token_read))
            await process.started
            ours.pop_all()
        return process

    def tell(self, message: Mapping[str, Any]) -> None:
        """Sends the guardian a wish; does nothing once it is gone."""
        self._send(message, ())

    async def end(self) -> None:
        """Lets the guardian end everything that is left, and itself."""
        if not self.lost:
            asyncio.get_running_loop().remove_reader(self._control)
            self._control.close()
            try:
                await asyncio.wait_for(asyncio.to_thread(self._process.wait), _ENDS_WITHIN)
            except TimeoutError:
                _log.warning("the guardian hangs; it is killed, and what it kept is ended from here")
                self.lost = True
                self._process.kill()
                self._end_orphans()
        if self.lost:
            await asyncio.wait((self.gone,), timeout=_ENDS_WITHIN)

    def _send(self, message: Mapping[str, Any], descriptors: Sequence[int]) -> None:
        if self.lost:
            return
        data = guardian.packed(dict(message))
        # The guardian reads at once, so waiting for it is short; a wish cut in half could not be taken back.
        self._control.settimeout(None)
        try:
            sent = socket.send_fds(self._control, [data], list(descriptors))
            self._control.sendall(data[sent:])
        except OSError:
            self._lost()
        finally:
            if self._control.fileno() >= 0:
                self._control.settimeout(0)

    def _receive(self) -> None:
        try:
            data = self._control.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lost()
            return
        messages, self._pending = guardian.unpacked(self._pending + data)
        for message in messages:
            self._learn(message)

    def _learn(self, message: Mapping[str, Any]) -> None:
        for what, facts in message.items():
            process = self._processes.get(facts["worker"])
            if process is None:
                continue
            if what == "started":
                process.pid = facts["pid"]
                if process.started.done():
                    # Whoever wanted it has left meanwhile, and nobody else would end it.
                    process.kill()
                else:
                    process.started.set_result(None)
            elif what == "failed":
                del self._processes[process.id]
                if not process.started.done():
                    process.started.set_exception(CannotStart(facts["why"]))
            elif what == "exited":
                del self._processes[process.id]
                process.exited.set_result(facts["status"])

    def _lost(self) -> None:
        """The guardian is gone: what it kept has come to this process, and is ended with everything that came of it."""
        if self.lost:
            return
        self.lost = True
        asyncio.get_running_loop().remove_reader(self._control)
        self._control.close()
        self._process.poll()
        self._end_orphans()

    def _end_orphans(self) -> None:
        """Kills what the guardian left, again until nothing is there: a process may start others meanwhile."""
        for pid in guardian.descendants(os.getpid()):
            guardian.send(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            self._settle_orphans()
        else:
            asyncio.get_running_loop().call_later(_AGAIN_SECONDS, self._end_orphans)

    def _settle_orphans(self) -> None:
        processes, self._processes = self._processes, {}
        for process in processes.values():
            if process.started.done():
                process.exited.set_result(-signal.SIGKILL)
            else:
                process.started.set_exception(CannotStart("its guardian was lost"))
        self.gone.set_result(None)


def _pipe(reading: contextlib.ExitStack, writing: contextlib.ExitStack) -> tuple[int, int]:
    """A pipe whose ends are closed with these."""
    ends = os.pipe()
    for stack, end in zip((reading, writing), ends, strict=True):
        stack.callback(os.close, end)
    return ends
