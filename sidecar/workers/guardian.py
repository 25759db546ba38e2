"""The guardian: a small process between the sidecar and its workers, which outlives the sidecar by seconds.

It starts workers when the sidecar asks, and is the reaper of everything that comes of them, whatever sessions they
make: when the pipe to the sidecar closes, however the sidecar ended, it asks the workers to stop, gives them a few
seconds, and kills every process that is left below it. It imports neither gRPC nor asyncio, nor anything else that it
can do without, so that it stays small and cannot hang in either.

Run by path, as `python guardian.py SOCKET_FD`, by the interpreter that runs the sidecar. Over the socket go messages,
see `packed`: from the sidecar `{"spawn": {...}}` with three descriptors (stdout, stderr, token) and
`{"stop": {"worker": ID, "kill": BOOL}}`; to it `{"started": {"worker": ID, "pid": PID}}`,
`{"failed": {"worker": ID, "why": TEXT}}` and `{"exited": {"worker": ID, "status": N}}`.
"""

import ctypes
import errno
import marshal
import os
import select
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    import socket
    from typing import Any
else:
    # What Python has around these two is a megabyte, of names for numbers.
    import _signal as signal
    import _socket as socket

_PR_SET_CHILD_SUBREAPER = 36
_LENGTH = 4
_DESCRIPTORS = 3
_MOST_DESCRIPTORS = 16
_DESCRIPTOR_BYTES = 4
_CANNOT = 127
_ABSENT = (errno.ENOENT, errno.ENOTDIR)
_CLEANUP_SECONDS = 5.0
_KILL_SECONDS = 2.0
_POLL_SECONDS = 0.02
_MARK = "PILLION_WORKER_PROCESS"
_PROCESSES = "/proc"
_THREADS = 17
"""Where the number of threads is in a process's `stat`, behind its name."""


class Guardian:
    """Starts, stops and reaps workers for the sidecar at the other end of a socket."""

    def __init__(self, control: "socket.socket") -> None:
        self._control = control
        self._pending = b""
        self._descriptors: list[int] = []
        self._workers: dict[int, str] = {}
        """The workers that run, by process id. Ours to reap, so an id here is never another process's."""

    def run(self) -> None:
        """Serves the sidecar until it is gone, then ends all that is left."""
        wake, waker = os.pipe()
        os.set_blocking(waker, False)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for passed_over in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # A terminal sends these to everyone; the guardian ends when the sidecar does.
            signal.signal(passed_over, lambda *_: None)
        # Not by `select`, which takes no descriptor over 1,023, and this one has the number that it had in the sidecar.
        waiting = select.poll()
        waiting.register(wake, select.POLLIN)
        waiting.register(self._control, select.POLLIN)
        while True:
            ready = [descriptor for descriptor, _ in waiting.poll()]
            if wake in ready:
                os.read(wake, 4096)
                self._reap()
            if self._control.fileno() in ready and not self._receive():
                break
        self._end_all()

    # --- the sidecar's wishes

    def _receive(self) -> bool:
        """Takes what came from the sidecar; False once it is gone."""
        try:
            data, ancillary, _, _ = self._control.recvmsg(
                65_536, socket.CMSG_SPACE(_MOST_DESCRIPTORS * _DESCRIPTOR_BYTES)
            )
        except OSError:
            return False
        if not data:
            return False
        for level, kind, numbers in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                for start in range(0, len(numbers), _DESCRIPTOR_BYTES):
                    number = numbers[start : start + _DESCRIPTOR_BYTES]
                    self._descriptors.append(int.from_bytes(number, sys.byteorder))
        self._pending += data
        wishes, self._pending = unpacked(self._pending)
        for wish in wishes:
            self._obey(wish)
        return True

    def _obey(self, wish: "dict[str, Any]") -> None:
        if "spawn" in wish:
            self._spawn(wish["spawn"])
        elif "stop" in wish:
            stop = wish["stop"]
            self._stop(stop["worker"], signal.SIGKILL if stop["kill"] else signal.SIGTERM)

    def _spawn(self, wish: "dict[str, Any]") -> None:
        worker = wish["worker"]
        stdout, stderr, token = self._descriptors[:_DESCRIPTORS]
        del self._descriptors[:_DESCRIPTORS]
        environment = {**wish["environment"], "PILLION_WORKER_TOKEN_FD": str(token), _MARK: worker}
        try:
            pid = _start(wish, environment, stdout, stderr, token)
        except (OSError, ValueError) as error:
            self._tell({"failed": {"worker": worker, "why": getattr(error, "strerror", None) or str(error)}})
        else:
            self._workers[pid] = worker
            self._tell({"started": {"worker": worker, "pid": pid}})
        finally:
            for descriptor in (stdout, stderr, token):
                os.close(descriptor)

    def _stop(self, worker: str, with_signal: "signal.Signals") -> None:
        """Signals a worker, and with a kill everything that came of it."""
        for pid, name in self._workers.items():
            if name == worker:
                send(pid, with_signal)
        if with_signal == signal.SIGKILL:
            for pid in descendants(os.getpid()):
                if _mark_of(pid) == worker:
                    send(pid, with_signal)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            worker = self._workers.pop(pid, None)
            if worker is not None:
                self._tell({"exited": {"worker": worker, "status": os.waitstatus_to_exitcode(status)}})

    def _tell(self, message: "dict[str, Any]") -> None:
        try:
            self._control.sendall(packed(message))
        except OSError:
            # The sidecar is gone; the next read says so.
            return

    # --- when the sidecar is gone

    def _end_all(self) -> None:
        """Asks the workers to stop, waits a little, then kills until nothing is left below this process."""
        for pid in self._workers:
            send(pid, signal.SIGTERM)
        self._wait_until_alone(_CLEANUP_SECONDS, kill=False)
        self._wait_until_alone(_KILL_SECONDS, kill=True)

    def _wait_until_alone(self, seconds: float, *, kill: bool) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._reap()
            left = descendants(os.getpid())
            if not left:
                return
            if kill:
                for pid in left:
                    send(pid, signal.SIGKILL)
            time.sleep(_POLL_SECONDS)


def packed(message: "dict[str, Any]") -> bytes:
    """A message as it is sent: its length, and what this very interpreter reads back."""
    data = marshal.dumps(message)
    return len(data).to_bytes(_LENGTH, "big") + data


def unpacked(data: bytes) -> "tuple[list[dict[str, Any]], bytes]":
    """The messages that have come whole, and the rest."""
    messages = []
    while len(data) >= _LENGTH:
        end = _LENGTH + int.from_bytes(data[:_LENGTH], "big")
        if len(data) < end:
            break
        messages.append(marshal.loads(data[_LENGTH:end]))  # noqa: S302  # from the sidecar, over a socket of its own
        data = data[end:]
    return messages, data


def _start(wish: "dict[str, Any]", environment: "dict[str, str]", stdout: int, stderr: int, token: int) -> int:
    """Starts a worker in a session of its own, with the token's descriptor and no other; answers its process id.

    :raises OSError: if the system refuses.
    :raises ValueError: if there is a NUL in what it is to be started with.
    """
    failed, tells = os.pipe()
    pid = os.fork()
    if not pid:
        # From here on nothing is done but what leads to the worker, or to saying why there is none.
        try:
            os.setsid()
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(stdout, 1)
            os.dup2(stderr, 2)
            os.set_inheritable(token, True)  # noqa: FBT003  # it takes no names
            for changed in (signal.SIGPIPE, signal.SIGXFSZ):
                # Python ignores these; a worker is to have them as any program.
                signal.signal(changed, signal.SIG_DFL)
            _close_all_but(token, tells)
            _become(wish["user"], wish["group"], wish["groups"])
            if wish["directory"] is not None:
                os.chdir(wish["directory"])
            _run(wish["command"], environment)
        except OSError as error:
            os.write(tells, str(error.errno).encode())
        except ValueError:
            os.write(tells, b"0")
        finally:
            os._exit(_CANNOT)
    os.close(tells)
    with open(failed, "rb") as told:
        why = told.read()
    if not why:
        return pid
    os.waitpid(pid, 0)
    if why == b"0":
        raise ValueError("there is a NUL in its command, directory or environment")
    raise OSError(int(why), os.strerror(int(why)))


def _run(command: "list[str]", environment: "dict[str, str]") -> None:
    """Becomes the worker, which is looked for where its own PATH says. Loads nothing: its user may not read where from.

    :raises OSError: if it is nowhere, or cannot be run.
    """
    name = command[0]
    path = [""] if os.sep in name else environment.get("PATH", os.defpath).split(os.pathsep)
    refused: OSError | None = None
    for directory in path:
        try:
            os.execve(os.path.join(directory, name), command, environment)  # noqa: S606  # as it is configured
        except OSError as error:
            if refused is None or refused.errno in _ABSENT:
                refused = error
    if refused is not None:
        raise refused


def _close_all_but(*kept: int) -> None:
    first = 3
    for descriptor in sorted(kept):
        os.closerange(first, descriptor)
        first = descriptor + 1
    os.closerange(first, os.sysconf("SC_OPEN_MAX"))


def _become(user: "int | None", group: "int | None", groups: "list[int] | None") -> None:
    """Gives up what the sidecar may do, where the worker has a user of its own."""
    if groups is not None:
        os.setgroups(groups)
    if group is not None:
        os.setregid(group, group)
    if user is not None:
        os.setreuid(user, user)


def send(pid: int, what: "signal.Signals") -> None:
    """Signals a process by a handle of its own, so that an id which was given to another meanwhile is not hit."""
    try:
        handle = os.pidfd_open(pid)
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EPERM):
            # Where the system has no handles, or lets nobody have one, an id is better than nothing.
            try:
                os.kill(pid, what)
            except (ProcessLookupError, PermissionError):
                return
        return
    try:
        signal.pidfd_send_signal(handle, what)
    except OSError as error:
        if error.errno not in (errno.ESRCH, errno.EPERM):
            raise
    finally:
        os.close(handle)


def descendants(root: int) -> list[int]:
    """Every process below one, nearest first. One that loses its parent comes to the reaper, so none is missed."""
    parents: dict[int, list[int]] = {}
    for entry in os.listdir(_PROCESSES):
        if entry.isdecimal():
            try:
                # The name in brackets may hold anything, brackets and spaces too.
                facts = _read(entry, "stat").rpartition(b")")[2].split()
                state, parent, threads = facts[0], facts[1], facts[_THREADS]
            except (OSError, IndexError):
                continue
            # One whose first thread alone has ended reads like one that has.
            if state != b"Z" or threads != b"1":
                parents.setdefault(int(parent), []).append(int(entry))
    found: list[int] = []
    level = [root]
    while level:
        level = [child for parent in level for child in parents.get(parent, ())]
        found += level
    return found


def _mark_of(pid: int) -> str | None:
    """The worker that a process came of, by its environment; `None` where that cannot be told."""
    try:
        environment = _read(str(pid), "environ")
    except OSError:
        return None
    marks = [entry for entry in environment.split(b"\0") if entry.startswith(_MARK.encode() + b"=")]
    return marks[0].partition(b"=")[2].decode(errors="replace") if marks else None


def _read(process: str, name: str) -> bytes:
    with open(f"{_PROCESSES}/{process}/{name}", "rb") as file:
        return file.read()


def become_reaper() -> None:
    """Makes this process the parent of every process below it that loses its own.

    :raises OSError: where the system has no such thing.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "cannot become the reaper of what is started")


def main() -> None:
    """Runs the guardian on the socket whose descriptor is the one argument."""
    os.setsid()
    become_reaper()
    control = socket.socket(fileno=int(sys.argv[1]))
    try:
        Guardian(control).run()
    finally:
        control.close()


if __name__ == "__main__":
    main()
