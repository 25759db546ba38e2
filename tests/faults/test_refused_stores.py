"""Databases that cannot be used: `pillion serve` says what to do, ends, and leaves every byte as it was."""

import asyncio
import contextlib
import gc
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from sidecar import cli
from sidecar.storage.database import Database
from sidecar.storage.migrations import APPLICATION_ID, MIGRATIONS
from tests.faults.test_bad_settings import GRPC_LOG, Ended, Place, run, wrong_in
from tests.support import SidecarProcess, on_unix
from tests.support.artifacts import ANN, Artifacts
from tests.support.machines import lacking, of_a_stranger, refused, with_small_disk
from tests.support.process import ROOT

_NEWEST = len(MIGRATIONS)
_PAGE = 4_096
_OWNERS = 100
_RESTORE = "put a backup of its whole directory in place, or name another state_dir."
_DAMAGED = f"is damaged: {_RESTORE}"
_NO_DATABASE = f"is not a database: {_RESTORE}"
_FOREIGN = "belongs to another program: move it away, or name another state_dir."
_NEWER = f"was written by a newer Pillion (its version {_NEWEST + 1}, this one's {_NEWEST}): run that one, {_RESTORE}"
_IN_USE = "is in use by another process: stop that one, or name another state_dir."
_LOST = "is gone or empty, and {state}/artifacts has the files that it had the records of: put a backup of the"
_LACKING = lacking()
on_other_machines = pytest.mark.skipif(bool(_LACKING), reason=_LACKING)

FILL = """
import asyncio, os, signal, sys
from pathlib import Path
from sidecar.artifacts import ArtifactInput
from sidecar.artifacts.files import FileArtifactStore
from sidecar.scope import Owner, Scope
from sidecar.storage import Database, SqliteIdempotencyStore

async def main(state, newer):
    async with Database(state / "pillion.db") as database:
        store, requests = FileArtifactStore(database, state / "artifacts"), SqliteIdempotencyStore(database)
        await store.open()
        scope = Scope(Owner("acme", "named:ann"), "run:1")
        for number in range(40):
            await store.put(scope, ArtifactInput("note", "text/plain", label="x" * 200), b"kept")
            await requests.begin(scope, "tool", str(number), b"digest", "exec")
            await requests.finish(scope, "tool", str(number), b"outcome" * 100)
        if newer:
            await database.write(lambda connection: connection.execute(newer).close())
        if sys.argv[2] == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        await store.aclose()

asyncio.run(main(Path(sys.argv[1]), sys.argv[3]))
"""
"""Keeps artifacts and records in a state directory, and is killed or not."""


@pytest.fixture
def transport() -> str:
    return "unix"


def made(state: Path) -> Path:
    """A state directory with nothing in it."""
    state.mkdir(mode=0o700)
    return state


def filled(state: Path, end: str, newer: str = "") -> Path:
    """A state directory with something in it."""
    subprocess.run(
        (sys.executable, "-c", FILL, str(made(state)), end, newer),
        check=end != "killed",
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        timeout=30,
    )
    return state


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a sidecar leaves that ended in order."""
    return filled(tmp_path_factory.mktemp("closed") / "state", "closed")


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one leaves that was killed: most of what was committed is in the log beside the database."""
    state = filled(tmp_path_factory.mktemp("killed") / "state", "killed")
    assert (state / "pillion.db-wal").stat().st_size > 10 * _PAGE
    return state


@pytest.fixture(scope="module")
def killed_and_newer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a newer one leaves that was killed just after it had brought the database to its version."""
    state = tmp_path_factory.mktemp("newer") / "state"
    return filled(state, "killed", f"PRAGMA user_version = {_NEWEST + 1}")


Spoil = Callable[[Path], object]


def holding(content: bytes) -> Spoil:
    return lambda database: database.write_bytes(content)


def cut(size: int) -> Spoil:
    """Cuts it to so many bytes, or by so many where there are fewer than none."""
    return lambda database: os.truncate(database, size if size >= 0 else database.stat().st_size + size)


def overwritten(start: int, content: bytes) -> Spoil:
    def spoil(database: Path) -> None:
        with database.open("r+b") as file:
            file.seek(start)
            file.write(content)

    return spoil


def made_by(*statements: str) -> Spoil:
    """Another program's in its place."""

    def spoil(database: Path) -> None:
        database.unlink()
        with contextlib.closing(sqlite3.connect(database, isolation_level=None)) as connection:
            for statement in statements:
                connection.execute(statement)

    return spoil


def altered(*statements: str) -> Spoil:
    def spoil(database: Path) -> None:
        with contextlib.closing(sqlite3.connect(database, isolation_level=None)) as connection:
            for statement in statements:
                connection.execute(statement)

    return spoil


def without_its_log(spoil: Spoil) -> Spoil:
    def both(database: Path) -> None:
        spoil(database)
        database.with_name("pillion.db-wal").unlink()

    return both


def in_its_place(make: Callable[[Path], object]) -> Spoil:
    def spoil(database: Path) -> None:
        database.unlink()
        make(database)

    return spoil


def _noise(size: int) -> bytes:
    """Bytes as good as drawn by chance, and the same each time."""
    return bytes((number * number * 7 + number // 3) % 251 for number in range(size))


CASES: dict[str, tuple[str, Spoil, str]] = {
    "any bytes": ("closed", holding(_noise(50_000)), _NO_DATABASE),
    "few bytes": ("closed", holding(_noise(7)), _NO_DATABASE),
    "zeros": ("closed", holding(bytes(3 * _PAGE)), _NO_DATABASE),
    "any bytes behind the right beginning": ("closed", holding(b"SQLite format 3\0" + _noise(2 * _PAGE)), _DAMAGED),
    "zeros behind the right beginning": ("closed", overwritten(16, bytes(84)), _NO_DATABASE),
    "nothing, beside artifacts": ("closed", cut(0), _LOST),
    "no file, beside artifacts": ("closed", lambda database: database.unlink(), _LOST),
    "cut in its first word": ("closed", cut(10), _NO_DATABASE),
    "cut in its header": ("closed", cut(60), _DAMAGED),
    "cut behind its header": ("closed", cut(100), _DAMAGED),
    "cut in its first page": ("closed", cut(1_000), _DAMAGED),
    "cut behind its first page": ("closed", cut(_PAGE), _DAMAGED),
    "cut in its middle": ("closed", cut(-10 * _PAGE), _DAMAGED),
    "cut by a byte": ("closed", cut(-1), _DAMAGED),
    "pages that were written over": ("closed", overwritten(3 * _PAGE, b"\xff" * 5 * _PAGE), _DAMAGED),
    "nothing, beside its log": ("killed", cut(0), _DAMAGED),
    "no file, beside its log": ("killed", lambda database: database.unlink(), _DAMAGED),
    "cut, beside its log": ("killed", cut(_PAGE), _DAMAGED),
    "any bytes beside its log": ("killed", holding(_noise(10 * _PAGE)), _NO_DATABASE),
    "any bytes behind the right beginning, beside its log": (
        "killed",
        holding(b"SQLite format 3\0" + _noise(10 * _PAGE)),
        "pillion.db",
    ),
    "cut, without its log": ("killed", without_its_log(cut(3 * _PAGE)), _DAMAGED),
    "nothing, without its log": ("killed", without_its_log(cut(0)), _LOST),
    "newer": ("closed", altered(f"PRAGMA user_version = {_NEWEST + 1}"), _NEWER),
    "newer by what is in its log": ("killed_and_newer", lambda _: None, _NEWER),
    "of another program by its mark": (
        "closed",
        made_by("CREATE TABLE theirs (id)", "PRAGMA application_id = 252006674"),
        _FOREIGN,
    ),
    "of another program that marks nothing": ("closed", made_by("CREATE TABLE theirs (id)"), _FOREIGN),
    "of another program with a log": (
        "closed",
        made_by("PRAGMA journal_mode = WAL", "CREATE TABLE theirs (id)"),
        _FOREIGN,
    ),
    "of another program with our tables": ("closed", altered("PRAGMA application_id = 1"), _FOREIGN),
    "of another program, empty but for its mark": ("closed", made_by("PRAGMA application_id = 1"), _FOREIGN),
    "a directory": ("closed", in_its_place(Path.mkdir), "Is a directory: move away what is in its place"),
    "a pipe": ("closed", in_its_place(os.mkfifo), _NO_DATABASE),
}


def serve(config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ended:
    """`pillion serve`, in this process."""
    # What it does to the whole process is not this one's to have.
    monkeypatch.setattr("sidecar.cli.serve.keep_memory_warm", lambda: None)
    monkeypatch.setattr(sys, "argv", ["pillion", "serve", "--config", str(config)])
    level = GRPC_LOG.level
    try:
        return Ended(cli.main(), capsys.readouterr().err)
    finally:
        GRPC_LOG.setLevel(level)
        # gRPC waits for a thread of its own when the last of it is freed: here, and not amid what may not block.
        gc.collect()


def all_in(state: Path) -> dict[str, tuple[int, bytes]]:
    """Everything that is there, but for the lock of who was here."""
    return {
        str(path.relative_to(state)): (path.lstat().st_mode, path.read_bytes() if path.is_file() else b"")
        for path in state.rglob("*")
        if path.name != "lock"
    }


@pytest.mark.parametrize("case", CASES)
def test_a_database_that_cannot_be_used_is_refused_and_left_as_it_was(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    case: str,
) -> None:
    template, spoil, sentence = CASES[case]
    place = Place(tmp_path / "place")
    place.write()
    shutil.copytree(request.getfixturevalue(template), place.state)
    spoil(place.database)
    before = all_in(place.state)
    ended = serve(place.config, monkeypatch, capsys)
    assert not wrong_in(ended, sentence.format(state=place.state))
    assert ended.said.count("\n") == 1
    assert ended.said.startswith(f"{place.database} ")
    assert all_in(place.state) == before


@pytest.mark.parametrize("template", ["closed", "killed"])
def test_a_database_that_another_program_holds_is_refused_and_left_as_it_was(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    template: str,
) -> None:
    place = Place(tmp_path / "place")
    place.write()
    shutil.copytree(request.getfixturevalue(template), place.state)
    with contextlib.closing(sqlite3.connect(place.database, isolation_level=None)) as holder:
        holder.execute("PRAGMA locking_mode = EXCLUSIVE")
        holder.execute("BEGIN EXCLUSIVE")
        before = all_in(place.state)
        ended = serve(place.config, monkeypatch, capsys)
        assert not wrong_in(ended, _IN_USE)
        assert all_in(place.state) == before
        holder.execute("ROLLBACK")


@pytest.fixture
async def process(tmp_path: Path) -> AsyncIterator[SidecarProcess]:
    """A sidecar in a process of its own, not started."""
    process = SidecarProcess(tmp_path)
    yield process
    await process.aclose()


@on_unix
async def test_a_database_of_a_sidecar_that_runs_is_refused_also_where_its_lock_is_gone(
    sidecar_process: SidecarProcess, tmp_path: Path
) -> None:
    async with Artifacts(sidecar_process.callers_at) as artifacts:
        kept = (await artifacts.put(ANN, b"kept")).meta.reference
        place = Place(tmp_path / "second")
        place.state = tmp_path / "state"
        place.write()
        (place.state / "lock").unlink()
        assert not wrong_in(await run(place.config), _IN_USE)
        assert (await artifacts.get(ANN, kept)).data.content == b"kept"
        later = (await artifacts.put(ANN, b"later")).meta.reference
        await sidecar_process.kill()
        await sidecar_process.start()
    async with Artifacts(sidecar_process.callers_at) as artifacts:
        assert await artifacts.references(ANN) == [later, kept]


# --- machines on which it cannot be written


@on_other_machines
@pytest.mark.parametrize("template", ["closed", "killed"])
@pytest.mark.parametrize("name", ["pillion.db", "pillion.db-wal"])
async def test_a_database_that_this_user_may_not_write_is_refused(
    request: pytest.FixtureRequest, tmp_path: Path, template: str, name: str
) -> None:
    state = tmp_path / "state"
    shutil.copytree(request.getfixturevalue(template), state)
    if not (state / name).exists():
        return
    (state / name).chmod(0o400)
    before = all_in(state)
    said = await refused(of_a_stranger(), tmp_path)
    assert said.startswith(f"{state}/pillion.db cannot be ")
    assert said.endswith("or name another state_dir.\n")
    assert all_in(state) == before


async def make_older(state: Path) -> Path:
    """A database of the version before this one's, with something in it."""
    path = made(state) / "pillion.db"
    rows = [(f"tenant:{number}", "x" * 1_000) for number in range(_OWNERS)]
    async with Database(path, migrations=MIGRATIONS[:-1]) as database:
        await database.write(
            lambda connection: connection.executemany(
                "INSERT INTO idempotency_owner (tenant, subject) VALUES (?, ?)", rows
            ).close()
        )
    return path


def marks_of(database: Path) -> tuple[int, int, int]:
    """Whose a database is, of which version, and how much is in it."""
    queries = ("PRAGMA application_id", "PRAGMA user_version", "SELECT count(*) FROM idempotency_owner")
    with contextlib.closing(sqlite3.connect(database)) as connection:
        application, version, owners = (connection.execute(query).fetchone()[0] for query in queries)
        return application, version, owners


@on_unix
async def test_an_older_database_is_brought_to_this_version_and_a_copy_of_it_is_kept(
    process: SidecarProcess, tmp_path: Path
) -> None:
    database = await make_older(tmp_path / "state")
    await process.start()
    async with Artifacts(process.callers_at) as artifacts:
        kept = (await artifacts.put(ANN, b"kept")).meta.reference
    process.send(signal.SIGTERM)
    assert await process.ended() == 0
    await process.aclose()
    copy = database.with_name(f"pillion.db.v{_NEWEST - 1}.1.bak")
    assert copy.stat().st_mode & 0o777 == 0o600
    assert await asyncio.to_thread(marks_of, database) == (APPLICATION_ID, _NEWEST, _OWNERS)
    assert await asyncio.to_thread(marks_of, copy) == (APPLICATION_ID, _NEWEST - 1, _OWNERS)
    # There is nothing to copy the next time.
    await process.start()
    async with Artifacts(process.callers_at) as artifacts:
        assert await artifacts.references(ANN) == [kept]
    assert [path.name for path in database.parent.glob("*.bak*")] == [copy.name]


@on_other_machines
@pytest.mark.parametrize("fits", ["nothing more", "a copy and no more"])
async def test_an_older_database_on_a_disk_that_is_too_small_is_refused_and_left_as_it_was(
    tmp_path: Path, fits: str
) -> None:
    database = await make_older(tmp_path / "state")
    before = all_in(database.parent)
    size = database.stat().st_size
    room = size + size // 2 if fits == "nothing more" else 2 * size + _PAGE
    left = tmp_path / "left"
    said = await refused(with_small_disk(database.parent, str(room), left), tmp_path)
    assert said == f"There is no room to write {database}: free some space on its disk.\n"
    assert all_in(left) == before
