"""Settings that cannot be used: the program ends with 2 and a sentence, and leaves everything as it was."""

import asyncio
import logging
import os
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import anyio
import pytest

from sidecar import cli
from sidecar.config import Settings
from sidecar.serving import serve
from tests.support import Setup, SidecarProcess, attach, on_unix, settings
from tests.support.documents import ROOT

GRPC_LOG = logging.getLogger("grpc._cython.cygrpc")
_PATIENCE = 30.0


class Place:
    """A directory with settings that can be used, for a test to spoil."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self.directory = directory
        self.state = directory / "state"
        self.database = self.state / "pillion.db"
        self.token = directory / "main.token"
        self.token.write_text("token-of-main")
        self.config = directory / "pillion.toml"
        self.callers = f"unix:{directory}/callers.sock"
        self.workers = f"unix:{directory}/workers.sock"
        self.rest = ""
        self.insecure = ""
        self.tools = '["echo"]'
        self.name = "main"

    def write(self) -> None:
        self.config.write_text(
            f'state_dir = "{self.state}"\n{self.rest}\n'
            f'[listen]\ncallers = "{self.callers}"\nworkers = "{self.workers}"\n{self.insecure}\n'
            f'[[worker]]\nname = "{self.name}"\ntoken_file = "{self.token}"\ntools = {self.tools}\n'
        )

    def keep(self, path: Path, content: bytes) -> None:
        """A file that is there before the program runs."""
        path.parent.mkdir(mode=0o700, exist_ok=True)
        path.write_bytes(content)

    def files(self) -> dict[str, bytes]:
        """All that is there, but for the marks that a sidecar was here."""
        return {
            str(path): path.read_bytes()
            for path in self.directory.rglob("*")
            if path.is_file() and path.name != "lock" and path.suffix != ".lock"
        }


class Ended(NamedTuple):
    code: int
    said: str


async def run(config: Path) -> Ended:
    """Runs the program to its end. In a thread: the loop's own way to start one forks, which gRPC does not like."""
    ended = await asyncio.to_thread(
        subprocess.run,
        (sys.executable, "-m", "sidecar", "--config", str(config)),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        timeout=_PATIENCE,
        check=False,
    )
    return Ended(ended.returncode, ended.stderr.decode())


def spoil(name: str, value: str | Path) -> Callable[[Place], None]:
    return lambda place: setattr(place, name, value)


def insecurely(workers: str) -> Callable[[Place], None]:
    def listen(place: Place) -> None:
        place.workers, place.insecure = workers, "insecure = true"

    return listen


def another_database(place: Place) -> None:
    place.state.mkdir(mode=0o700)
    with sqlite3.connect(place.database) as connection:
        connection.execute("CREATE TABLE other (value)")
    connection.close()


def newer_database(place: Place) -> None:
    place.state.mkdir(mode=0o700)
    with sqlite3.connect(place.database) as connection:
        connection.execute("CREATE TABLE later (value)")
        connection.execute(f"PRAGMA application_id = {0x50494C4C}")
        connection.execute("PRAGMA user_version = 999")
    connection.close()


MISTAKES: dict[str, tuple[Callable[[Place], object], str]] = {
    "no TOML": (spoil("rest", "= what"), "is not TOML"),
    "not of UTF-8": (lambda place: place.keep(place.config, b'state_dir = "\xff"'), "is not UTF-8"),
    "an unknown key": (spoil("rest", "colour = 1"), "colour"),
    "an unknown key of a part": (spoil("insecure", "colour = 1"), "listen.colour"),
    "an unknown limit": (spoil("rest", "limits.calls.patience = 1"), "limits.calls.patience is not a setting"),
    "a limit that is none": (spoil("rest", "limits.wire.stall_after = 0"), "must be a positive number"),
    "a limit that is too small": (
        spoil("rest", "limits.wire.max_frame_bytes = 4095"),
        "must be a number of at least 4,096",
    ),
    "a limit that is a text": (spoil("rest", 'limits.calls.timeout = "long"'), "must be a positive number"),
    "a limit that is no whole number": (spoil("rest", "limits.workers.strikes = 1.5"), "strikes"),
    "no address": (spoil("callers", "callers.sock"), "is no address"),
    "TCP to everybody here": (spoil("callers", "127.0.0.1:0"), "listen.insecure"),
    "TCP to everybody": (insecurely("0.0.0.0:0"), "not on loopback"),
    "TCP at a name": (insecurely("example.com:80"), "not on loopback"),
    "a long socket path": (spoil("callers", f"unix:/tmp/{'x' * 108}"), "over the 107 bytes"),
    "one socket for both": (lambda place: spoil("workers", place.callers)(place), "a socket each"),
    "a file in place of a socket": (lambda place: place.keep(Path(place.callers[5:]), b"mine"), "not a socket"),
    "no token file": (lambda place: place.token.unlink(), "cannot be read"),
    "an empty token file": (lambda place: place.token.write_text(" \n"), "is empty"),
    "a token of no encoding": (lambda place: place.token.write_bytes(b"\xff\xfe"), "cannot be read"),
    "a worker of no name that can be": (spoil("name", "main worker"), "worker[1].name must be 1 to 64 letters"),
    "a worker without tools": (spoil("tools", "[]"), "worker[1].tools must not be empty"),
    "a file in place of the state": (lambda place: place.keep(place.state, b"mine"), "cannot be made"),
    "a state where nothing can be made": (
        lambda place: setattr(place, "state", Path("/proc/pillion")),
        "cannot be made",
    ),
    "a state that others see": (lambda place: place.state.mkdir(0o755), "chmod 700"),
    "a database that is none": (lambda place: place.keep(place.database, b"my diary"), "is not a database"),
    "a database that is damaged": (
        lambda place: place.keep(place.database, b"SQLite format 3\0" + b"\xee" * 8192),
        "pillion.db",
    ),
    "a database of another program": (another_database, "belongs to another program"),
    "a database of a newer version": (newer_database, "newer Pillion"),
}


def wrong_in(ended: Ended, sentence: str) -> str:
    """What is wrong with how the program refused settings; nothing if all is right."""
    if ended.code != 2:
        return f"ended with {ended.code}: {ended.said}"
    if sentence not in ended.said or "Traceback" in ended.said or "Error" in ended.said:
        return f"said: {ended.said}"
    return ""


@pytest.mark.parametrize("case", MISTAKES)
def test_settings_that_cannot_be_used_are_refused_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    mistake, sentence = MISTAKES[case]
    place = Place(tmp_path / "place")
    place.write()
    mistake(place)
    if place.config.read_bytes().isascii():
        place.write()
    before = place.files()
    # What it does to the whole process is not this one's to have.
    monkeypatch.setattr("sidecar.cli.serve.keep_memory_warm", lambda: None)
    monkeypatch.setattr(sys, "argv", ["pillion", "serve", "--config", str(place.config)])
    level = GRPC_LOG.level
    try:
        code = cli.main()
    finally:
        GRPC_LOG.setLevel(level)
    assert not wrong_in(Ended(code, capsys.readouterr().err), sentence)
    assert place.files() == before


@on_unix
async def test_settings_that_are_not_there_are_refused_in_a_sentence(tmp_path: Path) -> None:
    for config in (tmp_path / "none.toml", tmp_path):
        ended = await run(config)
        assert ended.code == 2
        assert ended.said.startswith(f"{config} cannot be read")


@on_unix
async def test_a_port_that_is_taken_is_refused_in_a_sentence(tmp_path: Path) -> None:
    place = Place(tmp_path / "place")
    place.insecure = "insecure = true"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place.callers = f"127.0.0.1:{taken.getsockname()[1]}"
        place.write()
        ended = await run(place.config)
    assert ended.code == 2
    assert ended.said.endswith(f"{place.callers} cannot be listened on; is it in use?\n")
    assert "Traceback" not in ended.said


@on_unix
@pytest.mark.parametrize("shared", ["state", "sockets"])
async def test_a_second_sidecar_is_refused_and_the_first_goes_on(
    sidecar_process: SidecarProcess, tmp_path: Path, shared: str
) -> None:
    worker, caller = await attach(sidecar_process), await sidecar_process.caller()
    call = await caller.start()
    run_of_call = await worker.next_invoke()
    place = Place(tmp_path / "second")
    if shared == "state":
        place.state = tmp_path / "state"
    else:
        place.callers, place.workers = sidecar_process.callers_at, sidecar_process.workers_at
    place.write()
    before = place.files()
    assert not wrong_in(await run(place.config), "Another sidecar is running")
    assert place.files() == before
    await worker.result(run_of_call.call, "still here")
    assert (await caller.outcome(call)).result.json == b'"still here"'
    later = await sidecar_process.caller()
    call = await later.start()
    await worker.result((await worker.next_invoke()).call, "and for others")
    assert (await later.outcome(call)).result.json == b'"and for others"'


async def test_a_reload_that_fails_in_whatever_way_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = iter([settings(Setup(), "unix", tmp_path)])

    def source() -> Settings:
        for each in first:
            return each
        raise RuntimeError("a fault of the sidecar")

    async with anyio.create_task_group() as tasks:
        sidecar = await tasks.start(serve, source)
        os.kill(os.getpid(), signal.SIGHUP)
        async with asyncio.timeout(_PATIENCE):
            while "the settings were not reloaded, and those before stay" not in caplog.text:  # noqa: ASYNC110  # a log
                await asyncio.sleep(0.01)
        assert not sidecar.stopping.is_set()
        sidecar.stop(0)
    caplog.clear()
