"""Guarantee 14: settings with which somebody could call who should not refuse to start, and say what would do."""

import asyncio
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, create_subprocess_exec
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from sidecar.config import ConfigRefused, Listen, Settings
from sidecar.serving import serve
from tests.support import on_unix
from tests.support.documents import ROOT

PATIENCE = 20.0
TOO_LONG = "unix:/" + "x" * 108


def listening(**listen: object) -> Callable[[Path], Settings]:
    """Settings with these addresses."""
    return lambda directory: Settings(state_dir=directory / "state", listen=Listen.model_validate(listen))


def open_state(directory: Path) -> Settings:
    (directory / "state").mkdir(mode=0o755)
    (directory / "state").chmod(0o755)
    return Settings(state_dir=directory / "state")


def file_in_the_way(directory: Path) -> Settings:
    (directory / "callers.sock").write_text("mine")
    return Settings(state_dir=directory / "state", listen=Listen(callers=f"unix:{directory}/callers.sock"))


UNSAFE: dict[str, tuple[Callable[[Path], Settings], str]] = {
    "callers by TCP": (listening(callers="127.0.0.1:0"), "use a unix socket, or set listen.insecure for a test"),
    "callers by TCP on IPv6": (listening(callers="[::1]:0"), "use a unix socket, or set listen.insecure for a test"),
    "workers by TCP": (listening(workers="localhost:0"), "use a unix socket, or set listen.insecure for a test"),
    "callers from everywhere": (listening(callers="0.0.0.0:0", insecure=True), "use a unix socket"),
    "callers from everywhere on IPv6": (listening(callers="[::]:0", insecure=True), "use a unix socket"),
    "callers by an address": (listening(callers="192.0.2.1:80", insecure=True), "use a unix socket"),
    "callers by a name": (listening(callers="example.com:80", insecure=True), "use a unix socket"),
    "callers by a name like loopback": (listening(callers="localhost.example.com:80", insecure=True), "unix socket"),
    "workers from everywhere": (listening(workers="0.0.0.0:0", insecure=True), "use a unix socket"),
    "a bare port": (listening(callers=":8080", insecure=True), "write unix:/path/to/socket or 127.0.0.1:port"),
    "a path over the system's limit": (listening(callers=TOO_LONG), "107 bytes"),
    "a state directory that others see": (open_state, "chmod 700"),
    "a file in place of a socket": (file_in_the_way, "name another path to listen at"),
}


def listening_at(directory: Path) -> list[object]:
    """Where this process listens by TCP, and the sockets that are in the directory."""
    ports = [each.laddr for each in psutil.Process().net_connections("tcp") if each.status == psutil.CONN_LISTEN]
    return [*ports, *(path for path in directory.rglob("*") if path.is_socket())]


@on_unix
@pytest.mark.parametrize("case", UNSAFE)
async def test_guarantee_14_unsafe_listeners_are_refused_with_the_fix(tmp_path: Path, case: str) -> None:
    make, fix = UNSAFE[case]
    settings = make(tmp_path)
    with pytest.raises(BaseException) as refused:  # noqa: PT011  # looked at below, in whatever group it comes
        async with asyncio.timeout(PATIENCE):
            await serve(lambda: settings)
    error = refused.value
    while isinstance(error, BaseExceptionGroup):
        (error,) = error.exceptions
    assert isinstance(error, ConfigRefused)
    assert fix in str(error)
    assert not listening_at(tmp_path)


@on_unix
@pytest.mark.parametrize("command", ["serve", "check"])
async def test_guarantee_14_the_program_ends_and_says_so(tmp_path: Path, command: str) -> None:
    config = tmp_path / "pillion.toml"
    config.write_text('state_dir = "state"\n[listen]\ncallers = "0.0.0.0:0"\ninsecure = true\n')
    process = await create_subprocess_exec(
        sys.executable,
        *("-m", "sidecar", command, "--config", str(config)),
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=PIPE,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    try:
        async with asyncio.timeout(PATIENCE):
            said, told = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 2
    assert not said
    assert told.startswith(b"0.0.0.0:0 is not on loopback, where anyone could connect; use a unix socket.\n")
