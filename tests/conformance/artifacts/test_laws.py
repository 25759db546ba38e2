"""Every law of artifact stores, held over every store. A deviation has to be declared, and is told once it is gone."""

import asyncio
from pathlib import Path

import pytest

from tests.conformance.artifacts import laws_of_payloads, laws_of_room, laws_of_scopes, laws_of_uploads
from tests.conformance.artifacts.laws import LAWS
from tests.conformance.artifacts.stage import BACKENDS, DECLARED, Clock, Stage

pytestmark = pytest.mark.anyio

FILES = (laws_of_payloads, laws_of_scopes, laws_of_room, laws_of_uploads)
"""Where the laws are. They make themselves known when they are imported."""


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return ("asyncio", {"use_uvloop": True})


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("backend", BACKENDS)
async def test_a_law(backend: str, law: str, tmp_path: Path) -> None:
    # It would take long to note where each of so many callbacks comes from.
    asyncio.get_running_loop().set_debug(False)
    clock = Clock()
    kept = BACKENDS[backend](tmp_path, LAWS[law].limits, clock)
    await kept.open()
    reason = DECLARED[backend].get(law)
    try:
        await Stage(kept, clock).play(LAWS[law].body)
    except (Exception, BaseExceptionGroup):
        if reason is None:
            raise
        pytest.xfail(reason)
    finally:
        await kept.aclose()
    assert reason is None, f"STALE: {backend} keeps this law now; take back its declaration"


def test_declarations_name_laws() -> None:
    assert {law.body.__module__ for law in LAWS.values()} == {file.__name__ for file in FILES}
    for declared in DECLARED.values():
        assert declared.keys() <= LAWS.keys()
