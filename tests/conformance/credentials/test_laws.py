"""Every law for every provider. A declared deviation is tried as well: one that is none any more is stale."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.conformance.credentials.case import Case
from tests.conformance.credentials.harnesses import HARNESSES, Harness
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


@pytest.mark.parametrize("sentence", LAWS)
async def test_law(case: Case, sentence: str) -> None:
    reason = case.harness.declared.get(sentence)
    if reason is None:
        await LAWS[sentence](case)
        return
    try:
        await LAWS[sentence](case)
    except (AssertionError, NotImplementedError, pytest.fail.Exception):
        return
    pytest.fail(f"STALE: {case.harness.name} keeps {sentence!r} now, which is declared as: {reason}")


@pytest.mark.parametrize("harness", HARNESSES, ids=lambda harness: harness.name)
def test_declared_deviations_are_of_laws(harness: type[Harness]) -> None:
    assert harness.declared.keys() <= LAWS.keys()
    assert all(reason.endswith(".") for reason in harness.declared.values())
