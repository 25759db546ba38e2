"""The database: group commit, what survives, and what it refuses to open."""

import asyncio
import contextlib
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from pathlib import Path

import pytest

from sidecar.storage import Database, StoreBusy, StoreRefused, StoreUnavailable
from sidecar.storage.migrations import APPLICATION_ID, MIGRATIONS

pytestmark = pytest.mark.anyio

NOTES = (("CREATE TABLE note (id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE)",),)
MORE_NOTES = (*NOTES, ("ALTER TABLE note ADD COLUMN author TEXT NOT NULL DEFAULT 'nobody'",))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "pillion.db"


@pytest.fixture
async def database(path: Path) -> AsyncIterator[Database]:
    async with Database(path, migrations=NOTES, most_queued=100) as database:
        yield database


def adding(text: str) -> Callable[[sqlite3.Connection], int | None]:
    return lambda connection: connection.execute("INSERT INTO note (text) VALUES (?)", (text,)).lastrowid


def notes(connection: sqlite3.Connection) -> list[str]:
    return [text for (text,) in connection.execute("SELECT text FROM note ORDER BY id")]


class Gate:
    """An operation that holds the database's thread until it is opened."""

    def __init__(self) -> None:
        self._begun = threading.Event()
        self._open = threading.Event()

    def __call__(self, _: sqlite3.Connection) -> None:
        self._begun.set()
        assert self._open.wait(30)

    async def begun(self) -> None:
        assert await asyncio.to_thread(self._begun.wait, 30)

    def open(self) -> None:
        self._open.set()


@contextlib.asynccontextmanager
async def held(database: Database) -> AsyncIterator[Gate]:
    """While it lasts, nothing else is done by the database."""
    gate = Gate()
    holding = asyncio.ensure_future(database.write(gate))
    await gate.begun()
    try:
        yield gate
    finally:
        gate.open()
        await holding


async def test_writes_are_read_back_and_survive_closing(path: Path) -> None:
    async with Database(path, migrations=NOTES) as database:
        assert await database.write(adding("one")) == 1
        assert await database.read(notes) == ["one"]
    async with Database(path, migrations=NOTES) as database:
        assert await database.read(notes) == ["one"]


async def test_the_file_is_private_and_marked_and_synced(database: Database, path: Path) -> None:
    def settings(connection: sqlite3.Connection) -> list[object]:
        names = ("application_id", "user_version", "journal_mode", "synchronous", "foreign_keys")
        return [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names]

    assert await database.read(settings) == [APPLICATION_ID, 1, "wal", 2, 1]
    for file in path.parent.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


async def test_writes_that_wait_share_one_commit_and_keep_their_order(database: Database) -> None:
    before = database.statistics()
    async with held(database) as gate:
        writes = [asyncio.ensure_future(database.write(adding(f"{number}"))) for number in range(50)]
        await asyncio.sleep(0)
        assert database.statistics().waiting == 50
        assert not any(write.done() for write in writes)
        gate.open()
        assert await asyncio.gather(*writes) == list(range(1, 51))

    after = database.statistics()
    assert (after.writes - before.writes, after.commits - before.commits, after.waiting) == (51, 2, 0)
    assert await database.read(notes) == [f"{number}" for number in range(50)]


async def test_a_failing_write_undoes_itself_alone(database: Database) -> None:
    def add_two_and_fail(connection: sqlite3.Connection) -> None:
        adding("half")(connection)
        raise KeyError("a fault of the operation's own")

    async with held(database) as gate:
        writes = [
            asyncio.ensure_future(database.write(operation))
            for operation in (adding("one"), add_two_and_fail, adding("one"), adding("two"))
        ]
        gate.open()
        first, fault, duplicate, last = await asyncio.gather(*writes, return_exceptions=True)

    assert (first, last) == (1, 2)
    assert isinstance(fault, KeyError)
    assert isinstance(duplicate, StoreUnavailable)
    assert isinstance(duplicate.__cause__, sqlite3.IntegrityError)
    assert "note" not in str(duplicate)
    assert await database.read(notes) == ["one", "two"]


async def test_a_failing_read_fails_alone(database: Database) -> None:
    await database.write(adding("one"))

    broken = database.read(lambda connection: connection.execute("SELECT * FROM nothing").fetchall())
    results = await asyncio.gather(database.read(notes), broken, database.read(notes), return_exceptions=True)

    assert results[0] == results[2] == ["one"]
    assert isinstance(results[1], StoreUnavailable)


async def test_a_full_disk_fails_the_writes_and_not_the_database(database: Database) -> None:
    def limit(pages: int) -> Callable[[sqlite3.Connection], None]:
        return lambda connection: connection.execute(f"PRAGMA max_page_count = {pages}").close()

    await database.write(adding("one"))
    await database.read(limit(1))
    async with held(database) as gate:
        writes = [asyncio.ensure_future(database.write(adding(f"{number}" * 10_000))) for number in range(3)]
        gate.open()
        results = await asyncio.gather(*writes, return_exceptions=True)
    await database.read(limit(1_000_000))

    assert all(isinstance(result, StoreUnavailable) for result in results)
    assert await database.read(notes) == ["one"]
    await database.write(adding("two"))
    assert await database.read(notes) == ["one", "two"]


async def test_cancelling_the_wait_does_not_cancel_the_write(database: Database) -> None:
    async with held(database) as gate:
        write = asyncio.ensure_future(database.write(adding("one")))
        failing = asyncio.ensure_future(database.write(lambda connection: connection.execute("nonsense").close()))
        await asyncio.sleep(0)
        write.cancel()
        failing.cancel()
        await asyncio.wait({write, failing})
        gate.open()
        await database.write(adding("two"))

    assert write.cancelled()
    assert await database.read(notes) == ["one", "two"]
    assert database.statistics().waiting == 0


async def test_refuses_what_is_too_much(database: Database) -> None:
    async with held(database) as gate:
        waiting = [asyncio.ensure_future(database.write(adding(f"{number}"))) for number in range(100)]
        reading = [asyncio.ensure_future(database.read(notes)) for _ in range(100)]
        await asyncio.sleep(0)

        with pytest.raises(StoreBusy):
            await database.write(adding("one too many"))
        with pytest.raises(StoreBusy):
            await database.read(notes)

        gate.open()
        await asyncio.gather(*waiting, *reading)

    assert len(await database.read(notes)) == 100
    await database.write(adding("one more"))


async def test_reads_do_not_keep_writes_waiting_nor_writes_reads(database: Database) -> None:
    order: list[str] = []

    def noting(word: str) -> Callable[[sqlite3.Connection], None]:
        return lambda _: order.append(word)

    async with held(database) as gate:
        waiting = [asyncio.ensure_future(database.write(noting("write"))) for _ in range(2)]
        waiting += [asyncio.ensure_future(database.read(noting("read"))) for _ in range(2)]
        await asyncio.sleep(0)
        waiting[2].add_done_callback(
            lambda _: waiting.extend(asyncio.ensure_future(database.read(noting("late"))) for _ in range(2))
        )
        gate.open()
        await waiting[1]
    await asyncio.gather(*waiting)

    assert order == ["read", "read", "write", "write", "late", "late"]


async def test_closing_does_what_waits_and_refuses_what_comes(path: Path) -> None:
    database = Database(path, migrations=NOTES)
    await database.open()
    async with held(database) as gate:
        write = asyncio.ensure_future(database.write(adding("one")))
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(database.aclose())
        await asyncio.sleep(0)
        with pytest.raises(StoreUnavailable):
            await database.write(adding("two"))
        gate.open()
        assert await write == 1
        await closing
    await database.aclose()

    with pytest.raises(StoreUnavailable):
        await database.read(notes)
    assert not path.with_name("pillion.db-wal").exists()


async def test_cancelling_the_opening_closes_again(path: Path) -> None:
    opening = asyncio.ensure_future(Database(path, migrations=NOTES).open())
    await asyncio.sleep(0)
    opening.cancel()
    await asyncio.wait({opening})

    threads = [thread for thread in threading.enumerate() if thread.name.startswith("pillion-database")]
    await asyncio.gather(*(asyncio.to_thread(thread.join, 30) for thread in threads))
    async with Database(path, migrations=NOTES) as database:
        await database.write(adding("one"))


PROGRAM = """
import asyncio, sys
from itertools import count
from pathlib import Path
from sidecar.storage import Database

async def main(path):
    database = Database(Path(path), migrations=(("CREATE TABLE note (id INTEGER PRIMARY KEY, text TEXT NOT NULL)",),))
    await database.open()
    numbers = count()
    async def write():
        for number in numbers:
            await database.write(lambda c: c.execute("INSERT INTO note (text) VALUES (?)", (str(number),)).close())
            print(number, flush=True)
    await asyncio.gather(*(write() for _ in range(32)))

asyncio.run(main(sys.argv[1]))
"""


async def test_after_kill_9_every_acknowledged_write_is_there(path: Path) -> None:
    with subprocess.Popen(  # noqa: ASYNC220  # nothing else runs here
        [sys.executable, "-c", PROGRAM, str(path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        acknowledged = [process.stdout.readline() for _ in range(500)]
        os.kill(process.pid, signal.SIGKILL)
        acknowledged += process.stdout.readlines()

    async with Database(path, migrations=NOTES) as database:
        stored = await database.read(notes)
    missing = {line.strip() for line in acknowledged if line.endswith("\n")} - set(stored)
    assert missing == set()
    assert len(stored) >= 500
    assert len(set(stored)) == len(stored)


async def test_an_older_file_is_migrated_and_copied_first(path: Path) -> None:
    async with Database(path, migrations=NOTES) as database:
        await database.write(adding("one"))
    first = path.with_name("pillion.db.v1.1.bak")
    first.write_text("an earlier copy")

    async with Database(path, migrations=MORE_NOTES) as database:
        assert await database.read(
            lambda connection: connection.execute("SELECT text, author FROM note").fetchall()
        ) == [("one", "nobody")]

    copy = path.with_name("pillion.db.v1.2.bak")
    assert first.read_text() == "an earlier copy"
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    async with Database(copy, migrations=NOTES) as database:
        assert await database.read(notes) == ["one"]


async def test_a_migration_that_fails_changes_nothing(path: Path) -> None:
    async with Database(path, migrations=NOTES) as database:
        await database.write(adding("one"))

    with pytest.raises(StoreRefused):
        await Database(path, migrations=(*NOTES, ("DROP TABLE note", "nonsense"))).open()

    async with Database(path, migrations=NOTES) as database:
        assert await database.read(notes) == ["one"]
    assert names_in(path.parent) == ["pillion.db"]


async def test_a_copy_that_was_cut_off_is_made_anew(path: Path) -> None:
    async with Database(path, migrations=NOTES) as database:
        await database.write(adding("one"))
    put(path.with_name("pillion.db.bak.part"), b"SQLite format 3\0")
    put(path.with_name("pillion.db.bak.part-journal"), bytes(512))

    async with Database(path, migrations=MORE_NOTES):
        pass

    assert names_in(path.parent) == ["pillion.db", "pillion.db.v1.1.bak"]
    async with Database(path.with_name("pillion.db.v1.1.bak"), migrations=NOTES) as database:
        assert await database.read(notes) == ["one"]


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def kept(*files: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in files}


def put(path: Path, contents: bytes) -> dict[Path, bytes]:
    path.write_bytes(contents)
    return {path: contents}


async def refused(path: Path, sentence: str, contents: dict[Path, bytes]) -> None:
    with pytest.raises(StoreRefused, match=sentence) as refusal:
        await Database(path, migrations=NOTES).open()

    assert str(path) in str(refusal.value)
    assert str(refusal.value).endswith(".")
    assert kept(*contents) == contents


async def test_refuses_a_newer_file(path: Path) -> None:
    async with Database(path, migrations=MORE_NOTES):
        pass

    await refused(path, "written by a newer Pillion .*its version 2, this one's 1", kept(path))


async def test_refuses_the_database_of_another_program(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE theirs (id INTEGER)")

    await refused(path, "belongs to another program", kept(path))


@pytest.mark.parametrize("size", [1, 100, 5_000])
async def test_refuses_what_is_no_database(path: Path, size: int) -> None:
    await refused(path, "not a database", put(path, b"x" * size))


@pytest.mark.parametrize("where", ["cut", "overwritten"])
async def test_refuses_a_damaged_file(path: Path, where: str) -> None:
    async with Database(path, migrations=NOTES) as database:
        for number in range(100):
            await database.write(adding(f"{number}" * 1_000))
    (whole,) = kept(path).values()
    damaged = whole[: len(whole) // 8192 * 4096] if where == "cut" else whole[:4096] + b"\xff" * 8192 + whole[12288:]

    await refused(path, "damaged", put(path, damaged))


async def test_refuses_a_place_where_no_file_can_be(tmp_path: Path) -> None:
    put(tmp_path / "file", b"")

    await refused(tmp_path, "Is a directory", {})
    await refused(tmp_path / "nowhere" / "pillion.db", "No such file or directory", {})
    await refused(tmp_path / "file" / "pillion.db", "Not a directory", {tmp_path / "file": b""})


async def test_refuses_a_file_in_use(database: Database, path: Path) -> None:
    await database.write(adding("one"))

    await refused(path, "in use by another process", {})

    assert await database.read(notes) == ["one"]


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (sqlite3.SQLITE_READONLY, "make it and its directory writable"),
        (sqlite3.SQLITE_FULL, "free some space"),
        (sqlite3.SQLITE_IOERR, "look after its disk"),
    ],
)
async def test_refuses_a_disk_that_does_not_take_it(
    path: Path, code: int, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Database(path, migrations=NOTES):
        pass

    def fail(*_: object) -> None:
        error = sqlite3.OperationalError("of the disk")
        error.sqlite_errorcode = code
        raise error

    monkeypatch.setattr("sidecar.storage.database.migrate", fail)
    await refused(path, sentence, kept(path))


async def test_every_version_leads_to_the_newest(tmp_path: Path) -> None:
    shapes = []
    for version in range(len(MIGRATIONS)):
        path = tmp_path / f"{version}.db"
        async with Database(path, migrations=MIGRATIONS[: version + 1]):
            pass
        async with Database(path) as database:
            shapes.append(
                await database.read(lambda c: c.execute("SELECT sql FROM sqlite_schema ORDER BY sql").fetchall())
            )

    assert all(one == other for one, other in pairwise(shapes))
