"""Guarantee 10: memory returns to its baseline, however many sessions came and went."""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.soak.sessions import growth_of
from tests.support import on_unix

SESSIONS = 2_000
MOST_MIB = 2.5
"""The heap grows in steps, so that it takes many sessions to see a little: `make soak SESSIONS=100000` does."""


@on_unix
@pytest.mark.timeout(180)
async def test_guarantee_10_as_many_sessions_again_add_nothing() -> None:
    asyncio.get_running_loop().set_debug(False)
    with TemporaryDirectory(prefix="pg-") as directory:
        growth = await growth_of(Path(directory), SESSIONS)
    print(growth)
    assert growth.second_mib <= MOST_MIB
