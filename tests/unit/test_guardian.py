"""The guardian: small, and sure of whom it signals."""

import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sidecar.workers import guardian

EXIT = {"x86_64": 60, "aarch64": 93}
"""The system call that ends one thread alone, by machine."""
SLEEP = "import time; print(flush=True); time.sleep(600)"


@contextmanager
def child(*command: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that has begun, and that is ended."""
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()


def test_it_loads_neither_grpc_nor_asyncio_and_needs_no_package() -> None:
    look = (
        f"import runpy, sys; runpy.run_path({guardian.__file__!r}, run_name='looked_at')\n"
        "print(sorted({'grpc', 'asyncio', 'sidecar', 'site'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", look], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_everything_below_a_process_is_found_whatever_it_is_called(tmp_path: Path) -> None:
    name = tmp_path / "a ) S 1 (b"
    name.symlink_to(sys.executable)
    nested = f"import subprocess; subprocess.run([{sys.executable!r}, '-c', {SLEEP!r}])"
    with child(str(name), "-c", nested) as process:
        (below,) = guardian.descendants(process.pid)
        assert guardian.descendants(below) == []
        found = guardian.descendants(os.getpid())
        assert found.index(process.pid) < found.index(below)
        os.kill(below, signal.SIGKILL)
        process.wait()


@pytest.mark.skipif(platform.machine() not in EXIT, reason="the number of the system call is not known here")
def test_a_process_whose_first_thread_has_ended_is_found_and_ended() -> None:
    script = (
        "import ctypes, threading, time; threading.Thread(target=time.sleep, args=(600,)).start(); print(flush=True); "
        f"ctypes.CDLL(None).syscall({EXIT[platform.machine()]}, 0)"
    )
    with child(sys.executable, "-c", script) as process:
        while "Z" not in Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]:
            time.sleep(0.01)
        assert process.pid in guardian.descendants(os.getpid())
        guardian.send(process.pid, signal.SIGKILL)
        assert process.wait(10) == -signal.SIGKILL


def test_a_process_that_has_ended_is_neither_found_nor_signalled() -> None:
    with child(sys.executable, "-c", "print()") as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert process.pid not in guardian.descendants(os.getpid())
        guardian.send(process.pid, signal.SIGKILL)
    guardian.send(process.pid, signal.SIGKILL)
    assert process.returncode == 0


def test_a_signal_reaches_its_process() -> None:
    with child(sys.executable, "-c", SLEEP) as process:
        guardian.send(process.pid, signal.SIGTERM)
        assert process.wait() == -signal.SIGTERM


@pytest.mark.parametrize("environment", [{}, {"PILLION_WORKER_PROCESS": "proc_1"}, {"A": "PILLION_WORKER_PROCESS=x"}])
def test_the_mark_of_a_process_is_read_from_its_environment(environment: dict[str, str]) -> None:
    with subprocess.Popen([sys.executable, "-c", SLEEP], env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            assert guardian._mark_of(process.pid) == environment.get("PILLION_WORKER_PROCESS")
        finally:
            process.kill()
    assert guardian._mark_of(process.pid) is None
