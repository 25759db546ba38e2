"""Guarantee 10: memory returns to its baseline, however many sessions came and went."""

from pathlib import Path
from tempfile import TemporaryDirectory

from tests.soak.sessions import growth_of
from tests.support import on_unix

SESSIONS = 6_000
MOST_MIB = 2.0
"""A few hundred bytes of each session. `make soak SESSIONS=100000` has a bar of 50."""


@on_unix
async def test_guarantee_10_as_many_sessions_again_add_nothing() -> None:
    with TemporaryDirectory(prefix="pg-") as directory:
        growth = await growth_of(Path(directory), SESSIONS)
    print(growth)
    assert growth.second_mib <= MOST_MIB
