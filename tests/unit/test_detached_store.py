"""Detached calls in SQLite: whose they are, how long they last, how many there are, and what a crash leaves of them."""

import sqlite3

import pytest

from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outcome_pb2 import Outcome
from sidecar._gen.pillion.v1.tool_pb2 import Effects
from sidecar.calls.stores import DetachedEntry, DetachedStore, StoreFull
from sidecar.scope import Owner, Scope
from sidecar.storage import Database, SqliteDetachedStore, SqliteIdempotencyStore, StoreUnavailable
from tests.unit.test_idempotency_store import Clock

pytestmark = pytest.mark.anyio

OWNERS = (
    Owner(None, "named:ann"),
    Owner("acme", "named:ann"),
    Owner("acme", "named:bob"),
    Owner("none", "named:ann"),
    Owner("tenant:acme", "named:ann"),
    Owner("", "named:ann"),
    Owner(None, "caller:ann"),
)
ANN = OWNERS[0]
ME, ANOTHER = "local:1000", "local:1001"
STARTED, OUTCOME = b"started", b"outcome"
MANY = 100


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(database: Database, clock: Clock) -> SqliteDetachedStore:
    made: DetachedStore = SqliteDetachedStore(database, clock=clock)
    assert isinstance(made, SqliteDetachedStore)
    return made


def entry_of(owner: Owner = ANN, key: str | None = None, outcome: bytes | None = None) -> DetachedEntry:
    return DetachedEntry(owner, ME, "echo", key, Effects.EFFECTS_READ, STARTED, outcome)


async def begin(
    store: SqliteDetachedStore, digest: bytes, entry: DetachedEntry | None = None, most: int = MANY
) -> None:
    entry = entry or entry_of()
    await store.begin(entry.owner, digest, entry, most)


async def entries(database: Database) -> int:
    def operation(connection: sqlite3.Connection) -> int:
        (count,) = connection.execute("SELECT count(*) FROM detached_call").fetchone()
        return int(count)

    return await database.read(operation)


@pytest.mark.parametrize("owner", OWNERS)
async def test_what_is_recorded_is_found_as_it_was(store: SqliteDetachedStore, owner: Owner) -> None:
    await begin(store, b"d", entry_of(owner, key="k"))
    assert await store.find(ME, b"d") == entry_of(owner, key="k")
    await store.finish(owner, b"d", b"again", OUTCOME, 60)
    assert await store.find(ME, b"d") == entry_of(owner, key="k", outcome=OUTCOME)._replace(started=b"again")
    await store.forget(owner, b"d")
    assert await store.find(ME, b"d") is None


async def test_guarantee_08_an_entry_is_found_by_nobody_but_who_started_its_call(store: SqliteDetachedStore) -> None:
    await begin(store, b"d")
    assert await store.find(ANOTHER, b"d") is None
    assert await store.find(ME, b"e") is None
    assert await store.find(ME, b"") is None


async def test_guarantee_08_another_owner_ends_and_forgets_nothing(store: SqliteDetachedStore) -> None:
    await begin(store, b"d")
    for owner in OWNERS[1:]:
        await store.finish(owner, b"d", STARTED, OUTCOME, 60)
        await store.forget(owner, b"d")
    assert await store.find(ME, b"d") == entry_of()


async def test_an_entry_lasts_while_its_call_runs_and_then_for_its_time(
    store: SqliteDetachedStore, clock: Clock, database: Database
) -> None:
    await begin(store, b"d")
    clock.now += 1e6
    await store.sweep()
    assert await store.find(ME, b"d") is not None
    await store.finish(ANN, b"d", STARTED, OUTCOME, 60)
    clock.now += 59
    await store.sweep()
    assert await store.find(ME, b"d") is not None
    clock.now += 1
    assert await store.find(ME, b"d") is None
    assert await entries(database) == 1
    await store.sweep()
    assert await entries(database) == 0


async def test_an_owner_has_so_many_and_no_more(store: SqliteDetachedStore, clock: Clock, database: Database) -> None:
    await begin(store, b"1", most=2)
    await begin(store, b"2", most=2)
    with pytest.raises(StoreFull):
        await begin(store, b"3", most=2)
    assert await store.find(ME, b"3") is None
    for number, owner in enumerate(OWNERS[1:]):
        await begin(store, b"of another %d" % number, entry_of(owner), most=2)
    # One that ended counts until it expires.
    await store.finish(ANN, b"1", STARTED, OUTCOME, 60)
    with pytest.raises(StoreFull):
        await begin(store, b"3", most=2)
    clock.now += 60
    await begin(store, b"3", most=2)
    # And what has expired goes as others come.
    assert await entries(database) == 2 + len(OWNERS) - 1


async def test_what_ran_in_a_crash_is_ended_and_nothing_else(
    store: SqliteDetachedStore, clock: Clock, database: Database
) -> None:
    await begin(store, b"runs")
    await begin(store, b"ended")
    await store.finish(ANN, b"ended", STARTED, OUTCOME, 60)
    lost = await store.end_lost(lambda entry: b"lost " + entry.tool.encode(), 100)
    assert lost == [entry_of()]
    assert await store.find(ME, b"runs") == entry_of(outcome=b"lost echo")
    assert await store.find(ME, b"ended") == entry_of(outcome=OUTCOME)
    assert await store.end_lost(lambda _: b"", 100) == []
    clock.now += 60
    assert await store.find(ME, b"ended") is None
    assert await store.find(ME, b"runs") is not None
    clock.now += 40
    assert await store.find(ME, b"runs") is None


async def test_what_ran_with_a_key_is_ended_as_the_record_of_the_key_says(
    store: SqliteDetachedStore, database: Database, clock: Clock
) -> None:
    requests = SqliteIdempotencyStore(database, clock=clock)
    outcome = Outcome()
    outcome.result.json = b"1"
    for number, owner in enumerate(OWNERS):
        scope = Scope(owner, "")
        await begin(store, b"%d" % number, entry_of(owner, key="k"))
        await requests.begin(scope, "echo", "k", b"digest", "exe_1")
        if number:
            await requests.finish(scope, "echo", "k", outcome.SerializeToString())
    await begin(store, b"another key", entry_of(OWNERS[1], key="k2"))
    await begin(store, b"no key", entry_of(OWNERS[1]))
    lost = await store.end_lost(lambda _: OUTCOME, 100)
    assert lost == [entry_of(ANN, key="k"), entry_of(OWNERS[1], key="k2"), entry_of(OWNERS[1])]
    for number in range(1, len(OWNERS)):
        found = await store.find(ME, b"%d" % number)
        assert found is not None
        assert found.outcome is not None
        assert Frame.FromString(found.outcome).outcome == outcome


async def test_a_closed_database_answers_nothing(store: SqliteDetachedStore, database: Database) -> None:
    await database.aclose()
    for asked in (
        begin(store, b"d"),
        store.finish(ANN, b"d", STARTED, OUTCOME, 1),
        store.find(ME, b"d"),
        store.forget(ANN, b"d"),
        store.end_lost(lambda _: b"", 1),
        store.sweep(),
    ):
        with pytest.raises(StoreUnavailable):
            await asked
