"""Unix sockets that a group may use: by other users, and by workers that the sidecar starts as another user."""

import asyncio
import os
import pwd
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import pillion
from sidecar.config import Settings
from tests.support import SocketHost, on_unix
from tests.support.documents import ROOT
from tests.support.process import HOSTED

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user as well")

GROUP, OTHER_GROUP, USER = 54_321, 54_322, 54_323
CONNECT = """
import os, socket, sys
uid, gid, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
os.setgroups([]); os.setgid(gid); os.setuid(uid)
try:
    socket.socket(socket.AF_UNIX).connect(path)
except PermissionError:
    sys.exit(13)
"""
CONNECTED, NOT_LET_IN = 0, 13


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory that every user gets to."""
    with tempfile.TemporaryDirectory(prefix="pg-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        yield directory


@pytest.fixture
async def serve() -> AsyncIterator[Any]:
    hosts: list[SocketHost] = []

    async def start(settings: Settings) -> SocketHost:
        host = SocketHost("unix", settings)
        await host.open()
        hosts.append(host)
        return host

    yield start
    for host in hosts:
        await host.aclose()


async def connects(uid: int, gid: int, address: str) -> int:
    """Whether another user can connect."""
    command = (sys.executable, "-c", CONNECT, str(uid), str(gid), address.removeprefix("unix:"))
    ended = await asyncio.to_thread(subprocess.run, command, check=False, capture_output=True)
    assert ended.returncode in (CONNECTED, NOT_LET_IN), ended.stderr
    return ended.returncode


def mode_of(path: Path) -> tuple[int, int]:
    state = path.stat()
    return stat.S_IMODE(state.st_mode), state.st_gid


@on_unix
async def test_members_of_the_group_connect_and_nobody_else(serve: Any, public: Path) -> None:
    state = public / "state"
    host = await serve(Settings.model_validate({"state_dir": state, "listen": {"socket_group": GROUP}}))
    for address in (host.callers_at, host.workers_at):
        assert mode_of(Path(address.removeprefix("unix:"))) == (0o660, GROUP)
        assert await connects(USER, GROUP, address) == CONNECTED
        assert await connects(USER, OTHER_GROUP, address) == NOT_LET_IN
    # Passing through the state directory shows nothing that is in it.
    assert mode_of(state) == (0o710, GROUP)
    files = [path for path in state.iterdir() if path.is_file()]
    assert {path.name for path in files} >= {"lock", "pillion.db"}
    assert all(mode_of(path)[0] == 0o600 for path in files)


@on_unix
async def test_the_workers_socket_alone_may_be_a_groups(serve: Any, public: Path) -> None:
    listen = {"callers": f"unix:{public}/c/callers.sock", "workers": f"unix:{public}/w/x.sock"}
    host = await serve(
        Settings.model_validate({"state_dir": public / "state", "listen": listen | {"worker_socket_group": GROUP}})
    )
    assert await connects(USER, GROUP, host.workers_at) == CONNECTED
    assert await connects(USER, GROUP, host.callers_at) == NOT_LET_IN
    assert mode_of(public / "w") == (0o710, GROUP)
    assert mode_of(public / "c")[0] == mode_of(public / "state")[0] == 0o700


@on_unix
async def test_sockets_may_be_of_two_groups_in_two_directories(serve: Any, public: Path) -> None:
    listen = {
        "callers": f"unix:{public}/c/callers.sock",
        "socket_group": str(GROUP),
        "worker_socket_group": OTHER_GROUP,
    }
    host = await serve(Settings.model_validate({"state_dir": public / "state", "listen": listen}))
    assert await connects(USER, GROUP, host.callers_at) == CONNECTED
    assert await connects(USER, GROUP, host.workers_at) == NOT_LET_IN
    assert await connects(USER, OTHER_GROUP, host.workers_at) == CONNECTED
    assert await connects(USER, OTHER_GROUP, host.callers_at) == NOT_LET_IN


@on_unix
async def test_a_mode_without_a_group_is_of_the_sidecars_own(serve: Any, public: Path) -> None:
    settings = {"state_dir": public / "state", "listen": {"socket_mode": "0660"}}
    host = await serve(Settings.model_validate(settings))
    assert mode_of(public / "state" / "callers.sock") == (0o660, os.getegid())
    assert await connects(USER, os.getegid(), host.callers_at) == CONNECTED
    assert await connects(USER, GROUP, host.callers_at) == NOT_LET_IN


@on_unix
async def test_a_state_directory_that_is_there_is_opened_that_far_and_no_further(serve: Any, public: Path) -> None:
    state = public / "state"
    state.mkdir(0o700)
    settings = Settings.model_validate({"state_dir": state, "listen": {"socket_group": GROUP}})
    for _ in range(2):
        host = SocketHost("unix", settings)
        await host.open()
        assert mode_of(state) == (0o710, GROUP)
        await host.aclose()


@on_unix
async def test_by_default_nobody_else_connects(serve: Any, public: Path) -> None:
    listen = {"callers": f"unix:{public}/callers.sock", "workers": f"unix:{public}/workers.sock"}
    host = await serve(Settings.model_validate({"state_dir": public / "state", "listen": listen}))
    for address in (host.callers_at, host.workers_at):
        assert mode_of(Path(address.removeprefix("unix:")))[0] == 0o600
        assert await connects(USER, os.getegid(), address) == NOT_LET_IN


def interpreter_of(user: str, environment: dict[str, str]) -> str:
    """A Python that another user can run, and has gRPC there."""
    nobody = pwd.getpwnam(user)
    for candidate in (sys.executable, shutil.which("python3", path="/usr/local/bin:/usr/bin")):
        if candidate is not None:
            try:
                subprocess.run(
                    (candidate, "-c", "import grpc, pillion"),
                    user=nobody.pw_uid,
                    group=nobody.pw_gid,
                    extra_groups=(),
                    env=environment,
                    cwd="/",
                    capture_output=True,
                    check=True,
                )
            except (OSError, subprocess.CalledProcessError):
                continue
            return candidate
    pytest.skip(f"the user {user} can run no Python here that has gRPC")


@on_unix
async def test_a_worker_of_another_user_attaches_and_cannot_call(serve: Any, public: Path) -> None:
    packages = next(path for path in sys.path if path.endswith("site-packages"))
    environment = {"PYTHONPATH": f"{ROOT}:{ROOT / 'clients' / 'python'}:{packages}", "PYTHONDONTWRITEBYTECODE": "1"}
    python = await asyncio.to_thread(interpreter_of, "nobody", environment | {"PATH": os.environ["PATH"]})
    nobody = pwd.getpwnam("nobody")
    listen = {
        "callers": f"unix:{public}/c/callers.sock",
        "workers": f"unix:{public}/w/x.sock",
        "worker_socket_group": nobody.pw_gid,
    }
    worker = {
        "name": "apart",
        "command": (python, str(HOSTED), "echo"),
        "user": "nobody",
        "environment": environment,
        "directory": "/",
        "tools": ("echo",),
    }
    host = await serve(Settings.model_validate({"state_dir": public / "state", "listen": listen, "worker": [worker]}))
    async with pillion.connect(host.callers_at) as caller:
        assert await caller.call("echo", {"n": 1}, timeout=20) == {"n": 1}
    assert await connects(nobody.pw_uid, nobody.pw_gid, host.callers_at) == NOT_LET_IN
