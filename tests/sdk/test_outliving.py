"""What becomes of what the SDK's workers keep when they, or the sidecar, are killed."""

import asyncio
import json
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

import pillion
from pillion import errors
from tests.support import SidecarProcess, StartProcess, on_unix, token_of
from tests.support.documents import ROOT

PROGRAM = ROOT / "tests" / "support" / "keeping_program.py"
LIMITS = "[limits.calls]\nworker_wait = 20\n[limits.workers]\nstop_grace = 1\ndrain = 5\n"
_PATIENCE, _POLL_SECONDS = 20.0, 0.05


class Told:
    """What was written when something was cleaned up."""

    def __init__(self, file: Path) -> None:
        self.file = file

    @property
    def lines(self) -> list[str]:
        """All so far."""
        return self.file.read_text().splitlines() if self.file.exists() else []

    async def has(self, number: int) -> list[str]:
        """So many lines, once they are there."""
        end = time.monotonic() + _PATIENCE
        while len(lines := self.lines) < number:
            assert time.monotonic() < end, lines
            await asyncio.sleep(_POLL_SECONDS)
        return lines


@pytest.fixture
def told(tmp_path: Path) -> Told:
    return Told(tmp_path / "told")


def supervised(told: Told, instances: int = 1) -> str:
    command = json.dumps([sys.executable, str(PROGRAM), str(told.file)])
    tools = '["keep", "clean", "end"]'
    return f'{LIMITS}[[worker]]\nname = "keeping"\ncommand = {command}\ntools = {tools}\ninstances = {instances}\n'


@on_unix
async def test_a_session_stays_in_one_process_and_others_have_theirs(start_process: StartProcess, told: Told) -> None:
    process = await start_process(supervised(told, instances=2))
    await process.says("attached as", 2)
    async with pillion.connect(process.callers_at) as host:
        sessions = [f"s{number}" for number in range(8)]
        calls = [host.call("keep", {"name": "it"}, session_id=session) for session in sessions * 6]
        answers = dict[str, set[int]]()
        for session, answer in zip(sessions * 6, await asyncio.gather(*calls), strict=True):
            answers.setdefault(session, set()).add(answer)
        assert all(len(found) == 1 for found in answers.values()), answers
        for session in sessions:
            assert (await host.end_session(session)).fired == 1
        assert len(set().union(*answers.values())) == 2
    assert Counter(line.partition(" in ")[0] for line in told.lines) == {"it SESSION_END": len(sessions)}


@on_unix
async def test_a_killed_sidecar_leaves_nothing_that_was_kept(start_process: StartProcess, told: Told) -> None:
    process = await start_process(supervised(told))
    async with pillion.connect(process.callers_at) as host:
        kept_in = await host.call("keep", {"name": "first"}, session_id="s")
        assert await host.call("keep", {"name": "second"}, session_id="s") == kept_in
        await host.call("keep", {"name": "elsewhere", "call": True}, session_id="s")
    await process.kill()
    lines = await told.has(2)
    assert sorted(lines) == [f"{name} SHUTDOWN in {kept_in}" for name in ("first", "second")]
    await process.start()
    assert (await told.has(3))[2] == "elsewhere WORKER_LOST by a call"
    async with pillion.connect(process.callers_at) as host:
        with pytest.raises(errors.SessionLost):
            await host.call("keep", {"name": "again"}, session_id="s")
        assert await host.call("keep", {"name": "again"}, session_id="s") != kept_in
        assert (await host.end_session("s")).fired == 1
    assert len(told.lines) == 4


@on_unix
async def test_a_killed_worker_loses_its_sessions_once_and_a_call_cleans_up(
    start_process: StartProcess, told: Told
) -> None:
    process = await start_process(supervised(told))
    async with pillion.connect(process.callers_at) as host:
        before = await host.call("keep", {"name": "it", "call": True}, session_id="s")
        with pytest.raises(errors.OutcomeUnknown):
            await host.call("end", session_id="s")
        assert await told.has(1) == ["it WORKER_LOST by a call"]
        with pytest.raises(errors.SessionLost):
            await host.call("keep", {"name": "it"}, session_id="s")
        assert await host.call("keep", {"name": "it"}, session_id="s") != before


@on_unix
async def test_guarantee_16_an_attached_worker_keeps_its_sessions_over_a_restart_of_the_sidecar(
    start_process: StartProcess, told: Told, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text(token_of("keeping"))
    settings = f'{LIMITS}[[worker]]\nname = "keeping"\ntoken_file = "{tmp_path}/token"\ntools = ["keep"]\n'
    process = await start_process(settings)
    closed: list[str] = []

    @pillion.tool(holds=pillion.TeardownScope.SESSION)
    async def keep(ctx: pillion.ToolContext) -> list[object]:
        kept = await ctx.on_teardown(
            lambda reason: closed.append(reason.name), scope=pillion.TeardownScope.SESSION, label="it"
        )
        return [kept.reused, ctx.session_key(pillion.TeardownScope.SESSION)]

    worker = pillion.Worker([keep], target=process.workers_at, worker="keeping", token=token_of("keeping"))
    running = asyncio.create_task(worker.run())
    try:
        async with pillion.connect(process.callers_at, patience=30) as host:
            first = await host.call("keep", session_id="s", timeout=20)
            await killed_and_started(process)
            again = await host.call("keep", session_id="s", timeout=20)
            assert (first[0], again[0]) == (False, True)
            assert first[1] == again[1]
            assert not closed
            assert (await host.end_session("s")).fired == 1
            assert closed == ["SESSION_END"]
    finally:
        worker.leave()
        await running


async def killed_and_started(process: SidecarProcess) -> None:
    await process.kill()
    await process.start()
