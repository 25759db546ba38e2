"""Idempotency records in SQLite: whose they are, how long they last, and how many there are."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from sidecar.calls.stores import IdempotencyRecord, IdempotencyStore
from sidecar.scope import Owner, Scope
from sidecar.storage import Database, SqliteIdempotencyStore, StoreBusy, StoreUnavailable

pytestmark = pytest.mark.anyio

OWNERS = (
    Scope(Owner(None, "named:ann"), "session:1"),
    Scope(Owner("acme", "named:ann"), "session:1"),
    Scope(Owner("acme", "named:bob"), "session:1"),
    Scope(Owner("none", "named:ann"), "session:1"),
    Scope(Owner("tenant:acme", "named:ann"), "session:1"),
    Scope(Owner("", "named:ann"), "session:1"),
    Scope(Owner(None, "caller:ann"), "session:1"),
)
ANN, BOB = OWNERS[1], OWNERS[2]


class Clock:
    """A wall clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(database: Database, clock: Clock) -> SqliteIdempotencyStore:
    return SqliteIdempotencyStore(database, lifetime=100, most_records=5, clock=clock)


async def counts(database: Database) -> tuple[int, int, int]:
    """Records, owners, and records by the owners' own count."""

    def operation(connection: sqlite3.Connection) -> tuple[int, int, int]:
        (records,) = connection.execute("SELECT count(*) FROM idempotency_record").fetchone()
        (owners, counted) = connection.execute(
            "SELECT count(*), ifnull(sum(records), 0) FROM idempotency_owner"
        ).fetchone()
        return records, owners, counted

    return await database.read(operation)


async def test_a_record_runs_and_then_has_an_outcome(store: SqliteIdempotencyStore) -> None:
    port: IdempotencyStore = store

    assert await port.find(ANN, "tool", "key") is None
    await port.begin(ANN, "tool", "key", b"digest", "exec-1")
    assert await port.find(ANN, "tool", "key") == IdempotencyRecord(b"digest", "exec-1", None)
    await port.finish(ANN, "tool", "key", b"outcome")
    assert await port.find(ANN, "tool", "key") == IdempotencyRecord(b"digest", "exec-1", b"outcome")


async def test_an_empty_outcome_is_an_outcome(store: SqliteIdempotencyStore) -> None:
    await store.begin(ANN, "tool", "key", b"", "exec-1")
    await store.finish(ANN, "tool", "key", b"")

    assert await store.find(ANN, "tool", "key") == IdempotencyRecord(b"", "exec-1", b"")


async def test_owners_tools_and_keys_are_kept_apart(store: SqliteIdempotencyStore, database: Database) -> None:
    addresses = [(owner, tool, key) for owner in OWNERS for tool, key in (("a", "b"), ("b", "a"), ("a", "ab"))]
    await asyncio.gather(*(store.begin(*address, b"d", f"exec-{n}") for n, address in enumerate(addresses)))
    await asyncio.gather(*(store.finish(*address, b"%d" % n) for n, address in enumerate(addresses)))
    await store.free(*addresses[0])

    found = [await store.find(*address) for address in addresses]

    expected = [IdempotencyRecord(b"d", f"exec-{n}", b"%d" % n) for n in range(len(addresses))]
    assert found == [None, *expected[1:]]
    assert await counts(database) == (len(addresses) - 1, len(OWNERS), len(addresses) - 1)


async def test_the_place_of_a_scope_does_not_matter(store: SqliteIdempotencyStore) -> None:
    await store.begin(ANN, "tool", "key", b"d", "exec-1")

    assert await store.find(ANN._replace(place="conversation:2"), "tool", "key") is not None


async def test_interleaved_owners_evict_only_their_own(store: SqliteIdempotencyStore, clock: Clock) -> None:
    for number in range(8):
        clock.now += 1
        await asyncio.gather(
            store.begin(ANN, "tool", f"{number}", b"ann", f"ann-{number}"),
            *([store.begin(BOB, "tool", f"{number}", b"bob", f"bob-{number}")] if number < 4 else []),
        )
        await asyncio.gather(
            store.finish(ANN, "tool", f"{number}", b"done"),
            *([store.finish(BOB, "tool", f"{number}", b"done")] if number < 4 else []),
        )

    kept = [[bool(await store.find(owner, "tool", f"{number}")) for number in range(8)] for owner in (ANN, BOB)]

    assert kept == [[False] * 3 + [True] * 5, [True] * 4 + [False] * 4]


async def test_the_one_that_finished_first_goes_first(store: SqliteIdempotencyStore, clock: Clock) -> None:
    for key in "abcde":
        await store.begin(ANN, "tool", key, b"d", "exec")
    for key in "bac":
        clock.now += 1
        await store.finish(ANN, "tool", key, b"done")

    await store.begin(ANN, "tool", "f", b"d", "exec")
    await store.begin(ANN, "tool", "g", b"d", "exec")

    assert [key for key in "abcdefg" if await store.find(ANN, "tool", key)] == list("cdefg")


async def test_what_runs_is_never_evicted(store: SqliteIdempotencyStore, database: Database) -> None:
    for key in "abcde":
        await store.begin(ANN, "tool", key, b"d", "exec")

    with pytest.raises(StoreBusy):
        await store.begin(ANN, "tool", "f", b"d", "exec")
    await store.begin(ANN, "tool", "a", b"d", "exec-2")
    await store.begin(BOB, "tool", "f", b"d", "exec")

    assert await store.find(ANN, "tool", "f") is None
    assert await counts(database) == (6, 2, 6)
    await store.free(ANN, "tool", "a")
    await store.begin(ANN, "tool", "f", b"d", "exec")


async def test_records_expire_and_are_swept_a_few_at_a_time(
    store: SqliteIdempotencyStore, database: Database, clock: Clock
) -> None:
    for number in range(40):
        another = ANN._replace(owner=ANN.owner._replace(subject=f"named:{number}"))
        await store.begin(another, "tool", "key", b"d", "exec")
    clock.now += 100

    assert await store.find(ANN._replace(owner=ANN.owner._replace(subject="named:1")), "tool", "key") is None
    await store.begin(ANN, "tool", "key", b"d", "exec")
    assert await counts(database) == (25, 25, 25)
    await store.begin(ANN, "tool", "other", b"d", "exec")
    await store.begin(ANN, "tool", "another", b"d", "exec")

    assert await counts(database) == (3, 1, 3)


async def test_the_end_of_a_request_renews_its_record(store: SqliteIdempotencyStore, clock: Clock) -> None:
    await store.begin(ANN, "tool", "key", b"d", "exec")
    clock.now += 60
    await store.finish(ANN, "tool", "key", b"done")
    clock.now += 60
    assert await store.find(ANN, "tool", "key") is not None
    clock.now += 40
    assert await store.find(ANN, "tool", "key") is None


async def test_only_an_expired_or_unfinished_record_is_replaced(store: SqliteIdempotencyStore, clock: Clock) -> None:
    await store.begin(ANN, "tool", "key", b"1", "exec-1")
    await store.begin(ANN, "tool", "key", b"2", "exec-2")
    assert await store.find(ANN, "tool", "key") == IdempotencyRecord(b"2", "exec-2", None)
    await store.finish(ANN, "tool", "key", b"done")

    with pytest.raises(StoreUnavailable):
        await store.begin(ANN, "tool", "key", b"3", "exec-3")
    assert await store.find(ANN, "tool", "key") == IdempotencyRecord(b"2", "exec-2", b"done")

    clock.now += 100
    await store.begin(ANN, "tool", "key", b"4", "exec-4")
    assert await store.find(ANN, "tool", "key") == IdempotencyRecord(b"4", "exec-4", None)


async def test_finishing_what_is_not_there_says_so_and_freeing_it_agrees(store: SqliteIdempotencyStore) -> None:
    with pytest.raises(StoreUnavailable):
        await store.finish(ANN, "tool", "key", b"done")
    await store.free(ANN, "tool", "key")


PROGRAM = """
import asyncio, sys
from pathlib import Path
from sidecar.scope import Owner, Scope
from sidecar.storage import Database, SqliteIdempotencyStore

async def main(path):
    database = Database(Path(path))
    await database.open()
    store = SqliteIdempotencyStore(database)
    async def run(owner):
        for number in range(10_000):
            await store.begin(Scope(Owner(owner, "s"), "p"), "tool", str(number), b"d", "exec")
            print(owner, number, "began", flush=True)
            await store.finish(Scope(Owner(owner, "s"), "p"), "tool", str(number), b"done")
            print(owner, number, "ended", flush=True)
    await asyncio.gather(run("acme"), run("other"))

asyncio.run(main(sys.argv[1]))
"""


async def test_after_kill_9_every_acknowledged_record_is_there(tmp_path: Path) -> None:
    path = tmp_path / "pillion.db"
    with subprocess.Popen(  # noqa: ASYNC220  # nothing else runs here
        [sys.executable, "-c", PROGRAM, str(path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(200)]
        os.kill(process.pid, signal.SIGKILL)
        lines += process.stdout.readlines()

    async with Database(path) as database:
        store = SqliteIdempotencyStore(database)
        for line in lines:
            if line.endswith("\n"):
                owner, number, state = line.split()
                record = await store.find(Scope(Owner(owner, "s"), "p"), "tool", number)
                assert record is not None
                assert state == "began" or record.outcome == b"done"
