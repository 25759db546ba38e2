"""Guarantee 4: killing the sidecar leaves no process of its workers behind, whatever they did to get away."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support import SidecarProcess, StartProcess, hosted, on_unix

MARK = "PILLION_TEST_MARK"
LONGEST_SECONDS = 8.0
PATIENCE = 25.0
_POLL_SECONDS = 0.05


class Family:
    """All processes that workers of one test came to, and all that came of them."""

    def __init__(self, mark: str) -> None:
        self.mark = mark
        self.settings = f'environment = {{ {MARK} = "{mark}" }}'

    def alive(self, *others: psutil.Process) -> list[psutil.Process]:
        """Those that run now, and of the others those that still do."""
        return [*(process for process in psutil.process_iter() if self._is_member(process)), *filter(_runs, others)]

    async def are_gone(self, *others: psutil.Process) -> None:
        """Returns once none of them is there; fails where one is for too long."""
        end = time.monotonic() + LONGEST_SECONDS
        while left := self.alive(*others):
            if time.monotonic() > end:
                raise AssertionError(f"after {LONGEST_SECONDS:g} s there are still {left}")
            await asyncio.sleep(_POLL_SECONDS)

    def _is_member(self, process: psutil.Process) -> bool:
        try:
            return process.environ().get(MARK) == self.mark and _runs(process)
        except psutil.Error:
            return False


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def tree_of(process: SidecarProcess) -> list[psutil.Process]:
    """The guardian, and everything below it."""
    return psutil.Process(process.pid).children(recursive=True)


async def escapees(tree: SidecarProcess) -> list[psutil.Process]:
    """The processes of the tree without a parent of theirs in a session of their own, once there is one."""
    async with asyncio.timeout(PATIENCE):
        while True:
            guardian = guardian_of(tree)
            own = [child for child in guardian.children() if "PILLION_WORKER_PROCESS" not in child.environ()]
            if own:
                return own
            await asyncio.sleep(_POLL_SECONDS)


def guardian_of(process: SidecarProcess) -> psutil.Process:
    """The guardian of a sidecar."""
    (guardian,) = psutil.Process(process.pid).children()
    return guardian


@pytest.fixture
def family(tmp_path: Path) -> Iterator[Family]:
    """The processes of this test's workers; none outlives it."""
    family = Family(str(tmp_path))
    yield family
    for process in family.alive():
        process.kill()


def workers(family: Family) -> str:
    """One worker that gets away from its session and its parent, and one that heeds no SIGTERM."""
    return hosted("away", "pid", "--detach", settings=family.settings) + hosted(
        "stubborn", "label", "--stubborn", "--label", "still here", settings=family.settings
    )


async def both_run(process: SidecarProcess) -> list[psutil.Process]:
    """All processes below the sidecar, once both workers answer and the one has let go of another."""
    caller = await process.caller()
    assert (await caller.call("pid")).HasField("result")
    assert (await caller.call("label")).result.json == b'"still here"'
    (away,) = await escapees(process)
    tree = tree_of(process)
    assert away in tree
    assert os.getsid(away.pid) not in {os.getsid(other.pid) for other in tree if other != away}
    return tree


@on_unix
async def test_guarantee_04_a_kill_of_the_sidecar_leaves_no_process(
    start_process: StartProcess, family: Family
) -> None:
    process = await start_process(LIMITS + workers(family))
    tree = await both_run(process)
    assert len(tree) == 4
    await process.kill()
    await family.are_gone(*tree)


@on_unix
async def test_guarantee_04_a_kill_of_the_guardian_ends_its_processes_and_starts_anew(
    start_process: StartProcess, family: Family
) -> None:
    process = await start_process(LIMITS + workers(family))
    before = await both_run(process)
    guardian_of(process).send_signal(signal.SIGKILL)
    end = time.monotonic() + LONGEST_SECONDS
    while any(map(_runs, before)):
        assert time.monotonic() < end, [each for each in before if _runs(each)]
        await asyncio.sleep(_POLL_SECONDS)
    after = await both_run(process)
    assert not set(after) & set(before)
    await process.kill()
    await family.are_gone(*after)


@on_unix
async def test_guarantee_04_a_stop_leaves_no_process(start_process: StartProcess, family: Family) -> None:
    process = await start_process(LIMITS + workers(family))
    tree = await both_run(process)
    process.send(signal.SIGTERM)
    assert await process.ended() == 0
    assert not family.alive(*tree)


@on_unix
async def test_guarantee_04_a_stop_leaves_no_process_of_a_guardian_that_hangs(
    start_process: StartProcess, family: Family
) -> None:
    process = await start_process(LIMITS + workers(family))
    tree = await both_run(process)
    guardian_of(process).send_signal(signal.SIGSTOP)
    process.send(signal.SIGTERM)
    assert await process.ended() == 0
    assert not family.alive(*tree)


LIMITS = "[limits.calls]\nworker_wait = 20\n[limits.workers]\nstop_grace = 1\ndrain = 1\n"
