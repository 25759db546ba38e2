"""Paused calls in SQLite: each is claimed once, and found by nobody without its ticket."""

import asyncio

import pytest

from sidecar.calls.paused import Pause, PausedCall
from sidecar.calls.stores import PausesFull, StoreUnavailable
from sidecar.scope import Owner
from sidecar.storage import Database, SqlitePauseStore

ANN, BOB, NOBODY = Owner("acme", "named:ann"), Owner("acme", "named:bob"), Owner(None, "caller:local:1")
INNER = Pause("inner", b"\x01" * 32, "exec_2", b"ask", b"\xff\x00", b"", inner=(Pause("deep", b"", "exec_3", b"ask"),))
PAUSE = Pause("tool", b"\x02" * 32, "exec_1", b"ask", b"state", b"answer", waits_for_consent=True, inner=(INNER,))


def paused(
    ticket: bytes = b"1",
    owner: Owner = ANN,
    expires_at: float = 100.0,
    *,
    run_id: str | None = None,
    session_id: str | None = None,
) -> PausedCall:
    return PausedCall(ticket, "local:1", owner, run_id, session_id, b"start", PAUSE, expires_at)


@pytest.fixture
def transport() -> str:
    """In real time: the disk has no other."""
    return "unix"


@pytest.fixture
def store(database: Database) -> SqlitePauseStore:
    return SqlitePauseStore(database, most_paused=3)


def test_a_pause_is_the_same_after_it_was_bytes() -> None:
    assert Pause.from_bytes(PAUSE.to_bytes()) == PAUSE
    assert list(PAUSE.execution_ids()) == ["exec_1", "exec_2", "exec_3"]


@pytest.mark.parametrize("owner", [ANN, NOBODY, Owner("none", "caller:x"), Owner("", "named:")])
async def test_a_kept_call_is_found_by_its_ticket(store: SqlitePauseStore, owner: Owner) -> None:
    kept = paused(owner=owner, run_id="r")
    assert await store.keep(kept)
    assert await store.find(b"1") == kept
    assert await store.find(b"2") is None


async def test_of_many_claims_one_is_heard(store: SqlitePauseStore) -> None:
    await store.keep(paused())
    claims = await asyncio.gather(*(store.claim(b"1", remember=number % 2 > 0) for number in range(20)))
    assert sorted(claims) == [False] * 19 + [True]
    await store.release(b"1")
    assert await store.claim(b"1", remember=False)
    await store.finish(b"1")
    assert await store.find(b"1") is None
    assert not await store.claim(b"1", remember=False)


async def test_one_that_is_to_be_remembered_is_a_used_one(store: SqlitePauseStore) -> None:
    await store.keep(paused())
    assert await store.claim(b"1", remember=True)
    await store.finish(b"1")
    found = await store.find(b"1")
    assert found is not None
    assert found.is_used
    assert not await store.claim(b"1", remember=True)
    assert await store.recover() == []
    assert [one.is_used for one in await store.expire(100.0, 9)] == [True]
    assert await store.find(b"1") is None


@pytest.mark.parametrize("is_claimed", [False, True])
async def test_the_next_pause_takes_the_place_of_the_one_before(store: SqlitePauseStore, *, is_claimed: bool) -> None:
    await store.keep(paused())
    if is_claimed:
        await store.claim(b"1", remember=False)
    assert await store.keep(paused(b"2"), b"1", is_claimed=is_claimed)
    assert await store.find(b"1") is None
    assert await store.find(b"2") == paused(b"2")


async def test_nothing_takes_the_place_of_one_that_is_claimed_or_gone(store: SqlitePauseStore) -> None:
    await store.keep(paused())
    await store.claim(b"1", remember=False)
    assert not await store.keep(paused(b"2"), b"1")
    assert not await store.keep(paused(b"2"), b"0")
    assert await store.find(b"2") is None


async def test_a_subject_has_so_many_and_used_ones_give_way(store: SqlitePauseStore) -> None:
    for number in range(3):
        await store.keep(paused(b"%d" % number))
    with pytest.raises(PausesFull):
        await store.keep(paused(b"3"))
    await store.keep(paused(b"3", BOB))
    await store.keep(paused(b"4", NOBODY))
    await store.claim(b"0", remember=True)
    await store.finish(b"0")
    assert await store.keep(paused(b"5"))
    assert await store.find(b"0") is None
    with pytest.raises(PausesFull):
        await store.keep(paused(b"6"))


async def test_those_whose_time_is_up_are_taken_away(store: SqlitePauseStore) -> None:
    for number in (3, 1, 2):
        await store.keep(paused(b"%d" % number, expires_at=float(number)))
    assert await store.next_expiry() == 1.0
    assert await store.expire(0.5, 9) == []
    await store.claim(b"2", remember=False)
    assert [one.ticket_digest for one in await store.expire(2.5, 9)] == [b"1"]
    # One that goes on has the time of its call.
    assert await store.next_expiry() == 3.0
    await store.keep(paused(b"4", BOB, expires_at=2.0))
    assert [one.ticket_digest for one in await store.expire(9.0, 1)] == [b"4"]


async def test_those_of_a_scope_end_with_it(store: SqlitePauseStore) -> None:
    for ticket, owner, run_id, session_id in (
        (b"1", ANN, None, "s"),
        (b"2", ANN, "r", "s"),
        (b"3", ANN, "s", None),
        (b"4", BOB, None, "s"),
    ):
        await store.keep(paused(ticket, owner, run_id=run_id, session_id=session_id))
    await store.claim(b"2", remember=False)
    assert [digest for digest, *_ in await store.busy()] == [b"1", b"3", b"4"]
    assert [one.ticket_digest for one in await store.end(ANN, session_id="s")] == [b"1"]
    await store.release(b"2")
    assert await store.find(b"2") is None
    assert await store.busy() == [(b"3", ANN, "s", None), (b"4", BOB, None, "s")]


async def test_what_was_claimed_when_the_sidecar_stopped_is_not_claimed_again(
    store: SqlitePauseStore, database: Database
) -> None:
    for number in range(3):
        await store.keep(paused(b"%d" % number))
    await store.claim(b"0", remember=False)
    await store.claim(b"1", remember=True)
    again = SqlitePauseStore(database)
    assert [one.ticket_digest for one in await again.recover()] == [b"0", b"1"]
    assert await again.recover() == []
    assert await again.find(b"0") is None
    assert not await again.claim(b"1", remember=True)
    assert await again.claim(b"2", remember=False)


async def test_a_closed_database_answers_nothing(store: SqlitePauseStore, database: Database) -> None:
    await database.aclose()
    for asked in (store.keep(paused()), store.find(b""), store.claim(b"", remember=False), store.busy()):
        with pytest.raises(StoreUnavailable):
            await asked
