"""`kill -9` at each step of a refresh: no token is lost that need not be, and none is tried more than once more."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.credentials.stage import HOUR, Stage
from tests.support.people import BOB
from tests.support.programs import ROOT
from tests.support.refreshing import STEPS

PATIENCE = 30


class Killed:
    """A stage whose refreshes run in processes of their own."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage

    def begin(self, step: str = "") -> "subprocess.Popen[str]":
        """Starts a process that asks for Ann's token."""
        stage = self.stage
        program = (sys.executable, "-m", "tests.support.refreshing")
        arguments = (str(stage.harness.directory), stage.source.url, str(stage.clock.now), step)
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'clients' / 'python'}"}
        return subprocess.Popen((*program, *arguments), cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)

    async def ask(self) -> str:
        """What a whole process is answered."""
        process = await asyncio.to_thread(self.begin)
        said, _ = await asyncio.to_thread(process.communicate, timeout=PATIENCE)
        assert process.returncode == 0
        return said.strip()

    async def kill_at(self, step: str) -> None:
        """Kills a process at a step of its own."""
        process = await asyncio.to_thread(self.begin, step)
        assert process.stdout is not None
        assert (await asyncio.to_thread(process.stdout.readline)).strip() == "stopped"
        await self._kill(process)

    async def kill_once_asked(self) -> None:
        """Kills a process whose request the provider has."""
        process = await asyncio.to_thread(self.begin)
        while await asyncio.wait_for(self.stage.source.arrived.get(), PATIENCE) != "refresh_token":
            pass
        await self._kill(process)

    async def _kill(self, process: "subprocess.Popen[str]") -> None:
        process.kill()
        await asyncio.to_thread(process.communicate)

    @property
    def asked(self) -> int:
        """How many refreshes the provider heard of."""
        return self.stage.source.asked["refresh_token"]


@pytest.fixture
async def killed(tmp_path: Path) -> AsyncIterator[Killed]:
    stage = Stage(tmp_path)
    await stage.open()
    stage.clock.now += 2 * HOUR
    yield Killed(stage)
    # Whatever happened to Ann's, Bob's is his.
    assert (await stage.token(BOB)).startswith("access-bob-")
    await stage.aclose()


@pytest.mark.parametrize("step", ["before the intent", "torn intent", "intent"])
async def test_killed_before_the_provider_hears_of_it_the_login_is_good(killed: Killed, step: str) -> None:
    await killed.kill_at(step)
    assert killed.asked == 0
    assert (await killed.ask()).startswith("issued access-ann-")
    assert killed.asked == 1


async def test_killed_before_the_provider_acts_the_login_is_good(killed: Killed) -> None:
    killed.stage.source.hanging_before = asyncio.Event()
    await killed.kill_once_asked()
    killed.stage.source.hanging_before = None
    assert (await killed.ask()).startswith("issued access-ann-")


async def _lose_the_answer(killed: Killed) -> None:
    killed.stage.source.hanging = asyncio.Event()
    await killed.kill_once_asked()
    killed.stage.source.hanging = None


async def _lose_the_token(killed: Killed) -> None:
    await killed.kill_at("torn token")


@pytest.mark.parametrize("lose", [_lose_the_answer, _lose_the_token])
async def test_killed_before_the_new_token_is_synced_the_old_one_is_tried_once(
    killed: Killed, lose: Callable[[Killed], "asyncio.Future[None]"]
) -> None:
    await lose(killed)
    assert killed.asked == 1
    assert await killed.ask() == "authorize"
    assert killed.asked == 2
    for _ in range(2):
        assert await killed.ask() == "authorize"
    assert killed.asked == 2, "the old token was tried again"
    assert await killed.stage.stored() is None


async def test_a_provider_that_takes_the_old_one_again_issues_again(killed: Killed) -> None:
    killed.stage.source.rotates = False
    await _lose_the_answer(killed)
    assert (await killed.ask()).startswith("issued access-ann-")
    login = await killed.stage.stored()
    assert login is not None
    assert login.tries == 0


async def test_killed_twice_a_person_authorises_and_no_token_is_tried(killed: Killed) -> None:
    await killed.kill_at("intent")
    await killed.kill_at("intent")
    assert await killed.ask() == "authorize"
    assert killed.asked == 0


async def test_an_outage_after_a_crash_is_not_the_one_try(killed: Killed) -> None:
    await killed.kill_at("intent")
    await killed.stage.source.aclose()
    for _ in range(3):
        assert (await killed.ask()).startswith("failed")
    await killed.stage.source.open()
    assert (await killed.ask()).startswith("issued access-ann-")


async def test_killed_before_anyone_sees_the_new_token_it_is_there(killed: Killed) -> None:
    await killed.kill_at("token")
    said = await killed.ask()
    assert said.startswith("issued access-ann-")
    assert killed.asked == 1
    login = await killed.stage.stored()
    assert login is not None
    assert said == f"issued {login.access_token.reveal()}"


def test_every_step_is_tried() -> None:
    text = Path(__file__).read_text("utf-8")
    assert all(f'"{step}"' in text for step in STEPS)
