"""Every law for every provider. A declared deviation is tried as well: one that is none any more is stale."""

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import ClassVar

import pytest

from tests.conformance.credentials.case import Case
from tests.conformance.credentials.harnesses import HARNESSES, Environment, Harness
from tests.conformance.credentials.laws import LAWS
from tests.support.people import Clock


@pytest.fixture(params=HARNESSES, ids=lambda harness: harness.name)
async def case(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Case]:
    kind: type[Harness] = request.param
    harness = kind(tmp_path, Clock())
    await harness.open()
    case = await Case.begin(harness)
    yield case
    await case.aclose()
    await harness.aclose()


async def judge(case: Case, sentence: str) -> None:
    """Fails if the law is not kept and not declared so, or declared so and kept."""
    reason = case.harness.declared.get(sentence)
    if reason is None:
        await LAWS[sentence](case)
        return
    try:
        await LAWS[sentence](case)
    except (AssertionError, NotImplementedError, pytest.fail.Exception):
        return
    pytest.fail(f"STALE: {case.harness.name} keeps {sentence!r} now, which is declared as: {reason}")


@pytest.mark.parametrize("sentence", LAWS)
async def test_law(case: Case, sentence: str) -> None:
    await judge(case, sentence)


class Stale(Environment):
    """Declares what it keeps, and keeps not what it does not declare."""

    declared: ClassVar[Mapping[str, str]] = {"a restart loses nothing that was there": "It was so once."}


async def test_a_declared_deviation_that_is_none_is_stale_and_one_that_is_not_declared_fails(tmp_path: Path) -> None:
    harness = Stale(tmp_path, Clock())
    await harness.open()
    case = await Case.begin(harness)
    with pytest.raises(pytest.fail.Exception, match="STALE"):
        await judge(case, "a restart loses nothing that was there")
    with pytest.raises(NotImplementedError):
        await judge(case, "a good credential is remembered")


@pytest.mark.parametrize("harness", HARNESSES, ids=lambda harness: harness.name)
def test_declared_deviations_are_of_laws(harness: type[Harness]) -> None:
    assert harness.declared.keys() <= LAWS.keys()
    assert all(reason.endswith(".") for reason in harness.declared.values())
