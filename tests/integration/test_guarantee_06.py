"""Guarantee 6: many calls on one expired token make one refresh."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sidecar.credentials.port import Issued, ProviderDown
from tests.conformance.credentials.case import value_of
from tests.credentials.stage import HOUR, Stage
from tests.support.http_stand_in import Answered
from tests.support.people import ANN, BOB

CALLS = 200


@pytest.fixture
def transport() -> str:
    return "unix"


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    stage = Stage(tmp_path)
    await stage.open()
    yield stage
    await stage.aclose()


@pytest.mark.parametrize("restarted", [False, True], ids=["remembered", "after a restart"])
async def test_guarantee_06_many_calls_on_one_expired_token_make_one_refresh(stage: Stage, *, restarted: bool) -> None:
    old = await stage.token()
    if restarted:
        stage.restart()
    stage.clock.now += 2 * HOUR
    stage.source.hanging = asyncio.Event()
    calls = [asyncio.create_task(stage.token()) for _ in range(CALLS)]
    while await stage.source.arrived.get() != "refresh_token":
        pass
    calls += [asyncio.create_task(stage.token(force_refresh=True)) for _ in range(CALLS)]
    # Calls that leave meanwhile take nothing with them.
    for call in calls[: CALLS // 4]:
        call.cancel()
    await asyncio.sleep(0)
    stage.source.hanging.set()
    tokens = await asyncio.gather(*calls[CALLS // 4 :])
    assert len(set(tokens)) <= 2, "one refresh for those that found it expired, at most one for those that forced it"
    assert old not in tokens
    assert stage.source.asked["refresh_token"] == len(set(tokens))
    assert len(set(tokens[: CALLS - CALLS // 4])) == 1


async def test_guarantee_06_each_subject_has_its_own_refresh(stage: Stage) -> None:
    stage.clock.now += 2 * HOUR
    answers = await asyncio.gather(*(stage.ask(person) for _ in range(CALLS) for person in (ANN, BOB)))
    tokens = [value_of(answer) for answer in answers if isinstance(answer, Issued)]
    assert len(tokens) == 2 * CALLS
    assert {token.rpartition("-")[0] for token in tokens[::2]} == {"access-ann"}
    assert {token.rpartition("-")[0] for token in tokens[1::2]} == {"access-bob"}
    assert stage.source.asked["refresh_token"] == len(set(tokens)) == 2


async def test_guarantee_06_a_refresh_that_fails_fails_once_for_all(stage: Stage) -> None:
    stage.clock.now += 2 * HOUR
    stage.source.fault = lambda _: Answered(500)
    failures = await asyncio.gather(*(stage.ask() for _ in range(CALLS)), return_exceptions=True)
    assert all(isinstance(failure, ProviderDown) for failure in failures)
    assert len({id(failure) for failure in failures}) == CALLS, "each has a traceback of its own"
    assert stage.source.asked["refresh_token"] == 1


async def test_guarantee_06_many_calls_near_the_end_of_a_token_make_one_refresh(stage: Stage) -> None:
    old = await stage.token()
    stage.clock.now += HOUR - 120
    stage.source.hanging = asyncio.Event()
    assert [await stage.token() for _ in range(CALLS)] == [old] * CALLS
    while await stage.source.arrived.get() != "refresh_token":
        pass
    assert await asyncio.gather(*(stage.token() for _ in range(CALLS))) == [old] * CALLS
    stage.source.hanging.set()
    await stage.settled()
    assert await stage.token() != old
    assert stage.source.asked["refresh_token"] == 1
