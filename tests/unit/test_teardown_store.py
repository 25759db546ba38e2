"""Cleanups, pins and instances in SQLite: what is found is what was kept, and nothing is left of what is over."""

import itertools
import sqlite3
from pathlib import Path

import pytest

from sidecar._gen.pillion.v1.context_pb2 import TeardownReason, TeardownScope
from sidecar.calls.stores import RegistrationStore
from sidecar.scope import (
    Address,
    CleanupCall,
    Kept,
    KeptInstance,
    KeptPin,
    KeptRegistration,
    Owner,
    Principal,
    Registration,
    ScopeKey,
    digest_of_secret,
)
from sidecar.storage import Database, SqliteTeardownStore, StoreUnavailable

pytestmark = pytest.mark.anyio

RUN, SESSION, SHUTDOWN = (
    TeardownScope.TEARDOWN_SCOPE_RUN,
    TeardownScope.TEARDOWN_SCOPE_SESSION,
    TeardownScope.TEARDOWN_SCOPE_SHUTDOWN,
)
SESSION_END = TeardownReason.TEARDOWN_REASON_SESSION_END
WORKER_LOST = TeardownReason.TEARDOWN_REASON_WORKER_LOST
OWNERS = (
    Owner(None, "named:ann"),
    Owner("acme", "named:ann"),
    Owner("acme", "named:bob"),
    Owner("none", "named:ann"),
    Owner("tenant:acme", "named:ann"),
    Owner("", "named:ann"),
    Owner(None, "caller:ann"),
)
KEYS = tuple(
    ScopeKey(kind, owner, fact) for kind, owner, fact in itertools.product((RUN, SESSION), OWNERS, ("1", "2", "ü/%"))
)
KEY = KEYS[0]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def instance(worker: str, instance_id: str) -> KeptInstance:
    """What is known of an instance of the tests."""
    return KeptInstance(worker, instance_id, digest_of_secret(f"secret-of-{instance_id}"), instance_id != "ins_own")


@pytest.fixture
def store(database: Database) -> SqliteTeardownStore:
    return SqliteTeardownStore(database, instance)


def registration(
    number: str, key: ScopeKey = KEY, instance_id: str = "ins_1", name: str | None = None, **fields: object
) -> Registration:
    return Registration(number, Address(key, instance_id, "tool", name), "main", **fields)  # type: ignore[arg-type]


def told(kept: Kept) -> list[tuple[object, ...]]:
    """The registrations, by what is to be known of each."""
    return [
        (one.id, one.address, one.worker, one.label, one.cleanup, reason)
        for one, reason in (each for each in kept.registrations)
    ]


async def rows(database: Database) -> dict[str, int]:
    """How many rows each table has."""
    tables = ("teardown_instance", "teardown_registration", "teardown_pin")

    def operation(connection: sqlite3.Connection) -> dict[str, int]:
        return {table: connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables}  # noqa: S608  # all of them are above

    return await database.read(operation)


async def test_what_was_kept_is_found_whole_and_in_its_order(store: SqliteTeardownStore) -> None:
    port: RegistrationStore = store
    shutdown = ScopeKey(SHUTDOWN, Owner(None, ""), "")
    added = [
        registration("reg_1"),
        registration("reg_2", name="", label=""),
        registration(
            "reg_3",
            name="n",
            label="l",
            cleanup=CleanupCall("close", b'{"n": 1.10}', Principal("ann", authenticated=False)),
        ),
        registration("reg_4", shutdown, "ins_own"),
    ]
    for one in added:
        await port.add(one)
    kept = await store.load()
    assert told(kept) == told(Kept((), tuple(KeptRegistration(one, None) for one in added)))
    assert kept.instances == (instance("main", "ins_1"), instance("main", "ins_own"))
    assert kept.instances[0].knows("secret-of-ins_1")
    assert not kept.instances[0].knows("secret-of-ins_2")
    assert [one.returns for one in kept.instances] == [True, False]


async def test_a_claim_stays_with_its_reason(store: SqliteTeardownStore) -> None:
    first, second, third = (registration(f"reg_{number}", name=str(number)) for number in range(3))
    for one in (first, second, third):
        await store.add(one)
    await store.claim((third, first), SESSION_END)
    assert [reason for _, reason in (await store.load()).registrations] == [SESSION_END, None, SESSION_END]
    # A cleanup call in the place of one that is to run once more is another claim.
    await store.claim((first,), WORKER_LOST)
    await store.remove((third, registration("reg_unknown")))
    assert [reason for _, reason in (await store.load()).registrations] == [WORKER_LOST, None]


async def test_the_same_scope_may_be_kept_for_again_while_what_was_claimed_of_it_runs(
    store: SqliteTeardownStore,
) -> None:
    await store.add(registration("reg_1"))
    await store.claim((registration("reg_1"),), SESSION_END)
    await store.add(registration("reg_2"))
    assert [one.id for one, _ in (await store.load()).registrations] == ["reg_1", "reg_2"]


async def test_what_is_added_and_removed_at_once_leaves_nothing(database: Database, store: SqliteTeardownStore) -> None:
    one = registration("reg_1")
    adding, removing = store.add(one), store.remove((one,))
    await adding
    await removing
    assert set((await rows(database)).values()) == {0}


@pytest.mark.parametrize("others", [KEYS[:10], KEYS[10:]])
async def test_no_two_scopes_are_taken_for_one(store: SqliteTeardownStore, others: tuple[ScopeKey, ...]) -> None:
    for number, key in enumerate(others):
        await store.add(registration(f"reg_{number}", key))
        await store.pin({(key, "main"): f"ins_{number}"})
    kept = await store.load()
    assert [one.key for one, _ in kept.registrations] == list(others)
    assert kept.pins == tuple(KeptPin(key, "main", f"ins_{number}") for number, key in enumerate(others))
    await store.pin({(others[0], "main"): None})
    await store.remove((registration("reg_1"),))
    kept = await store.load()
    assert [one.key for one, _ in kept.registrations] == [others[0], *others[2:]]
    assert [pin.key for pin in kept.pins] == list(others[1:])


async def test_a_scope_is_pinned_once_for_each_worker(store: SqliteTeardownStore) -> None:
    await store.pin({(KEY, "main"): "ins_1", (KEY, "other"): "ins_2"})
    await store.pin({(KEY, "main"): "ins_3"})
    await store.pin({(KEY, "main"): "ins_3"})
    kept = await store.load()
    assert set(kept.pins) == {KeptPin(KEY, "other", "ins_2"), KeptPin(KEY, "main", "ins_3")}
    assert {one.id for one in kept.instances} == {"ins_2", "ins_3"}


async def test_an_instance_goes_with_the_last_that_is_kept_of_it(
    database: Database, store: SqliteTeardownStore
) -> None:
    one, other = registration("reg_1"), registration("reg_2", name="other")
    await store.add(one)
    await store.add(other)
    await store.pin({(KEY, "main"): "ins_1"})
    await store.remove((one, other))
    assert await rows(database) == {"teardown_instance": 1, "teardown_registration": 0, "teardown_pin": 1}
    await store.add(one)
    await store.pin({(KEY, "main"): None})
    assert await rows(database) == {"teardown_instance": 1, "teardown_registration": 1, "teardown_pin": 0}
    await store.remove((one,))
    assert set((await rows(database)).values()) == {0}


async def test_two_worker_sets_may_have_an_instance_of_one_id(store: SqliteTeardownStore) -> None:
    await store.add(registration("reg_1"))
    await store.pin({(KEY, "other"): "ins_1"})
    assert [(one.worker, one.id) for one in (await store.load()).instances] == [("main", "ins_1"), ("other", "ins_1")]


async def test_no_secret_is_stored(tmp_path: Path) -> None:
    async with Database(tmp_path / "pillion.db") as database:
        await SqliteTeardownStore(database, instance).add(registration("reg_1"))
    content = (tmp_path / "pillion.db").read_bytes()
    assert b"reg_1" in content
    assert b"secret-of" not in content


async def test_a_store_that_cannot_answer_says_so(database: Database, store: SqliteTeardownStore) -> None:
    await store.add(registration("reg_1"))
    with pytest.raises(StoreUnavailable):
        await store.add(registration("reg_1"))
    await database.aclose()
    for asking in (
        store.load(),
        store.add(registration("reg_2")),
        store.claim((registration("reg_1"),), SESSION_END),
        store.remove((registration("reg_1"),)),
        store.pin({(KEY, "main"): "ins_1"}),
    ):
        with pytest.raises(StoreUnavailable):
            await asking
