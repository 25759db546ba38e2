"""A database that is cut off in the middle of a commit: what was acknowledged is there, and nothing is half there."""

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from sidecar.artifacts.files import FileArtifactStore
from sidecar.storage import Database, SqliteIdempotencyStore, SqliteTeardownStore
from tests.support.crashing_commits import LIMITS, OUTCOME, REASON, SCOPE, TOOL, instance, payload, registration
from tests.support.process import ROOT

_MOST_SECONDS = 50
_SUMS = (
    "SELECT records, (SELECT count(*) FROM idempotency_record WHERE owner = o.id) FROM idempotency_owner o",
    "SELECT bytes, (SELECT sum(size) FROM artifact WHERE scope = s.id) FROM artifact_scope s",
    "SELECT artifacts, (SELECT count(*) FROM artifact WHERE scope = s.id) FROM artifact_scope s",
    "SELECT bytes, (SELECT sum(bytes) FROM artifact_scope WHERE owner = o.id) FROM artifact_owner o",
    "SELECT bytes, (SELECT sum(bytes) FROM artifact_owner WHERE tenant = t.id) FROM artifact_tenant t",
)
"""Pairs of what is kept as a sum and what it is the sum of."""


@pytest.fixture
def transport() -> str:
    """In real time: the disk has no other."""
    return "unix"


async def crashed(root: Path, how: str) -> list[Path]:
    """The directories of processes that were killed so, and at last of one that was not."""
    asyncio.get_running_loop().set_debug(False)
    await asyncio.to_thread(
        subprocess.run,
        (sys.executable, str(ROOT / "tests" / "support" / "crashing_commits.py"), str(root), how),
        check=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        timeout=_MOST_SECONDS,
    )
    return directories_in(root)


def directories_in(root: Path) -> list[Path]:
    return sorted(root.iterdir(), key=lambda path: int(path.name))


def told_in(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "said").read_text().splitlines()]


async def test_guarantee_16_a_kill_at_any_statement_of_a_shared_commit_loses_nothing(tmp_path: Path) -> None:
    directories = await crashed(tmp_path, "statement")
    killed: Counter[str] = Counter()
    for directory in directories:
        told = told_in(directory)
        killed += Counter(line["killed"] for line in told if line.get("group", 0) > 1)
        await check(directory, told)
    # It is no use to be killed where nothing is shared.
    steps = {"SAVEPOINT operation", "RELEASE operation", "INSERT INTO artifact", "INSERT INTO idempotency_record"}
    steps |= {"INSERT INTO teardown_registration", "COMMIT", "AFTER COMMIT"}
    assert steps <= set(killed)
    assert not any("killed" in line for line in told_in(directories[-1]))


@pytest.mark.parametrize("how", ["byte", "opening"])
async def test_guarantee_16_a_write_that_is_cut_at_any_byte_loses_nothing(tmp_path: Path, how: str) -> None:
    directories = await crashed(tmp_path, how)
    assert len(directories) > 20
    for directory in directories:
        await check(directory, told_in(directory))
    assert not any("killed" in line for line in told_in(directories[-1]))


_WORDS = ("registers", "registered", "claims", "claimed", "removes", "removed", "pins", "pinned")


async def check(directory: Path, told: list[dict[str, Any]]) -> None:
    """What is found is what was acknowledged, with or without what was going on, whole; and its sums are right."""
    async with Database(directory / "pillion.db", records_of=directory / "artifacts") as database:
        await check_artifacts(database, directory / "artifacts", told)
        await check_requests(database, told)
        await check_registrations(database, told)

        def sums(connection: sqlite3.Connection) -> list[tuple[int, int]]:
            return [pair for query in _SUMS for pair in connection.execute(query)]

        assert all(kept == made for kept, made in await database.read(sums)), told[-1]


async def check_artifacts(database: Database, directory: Path, told: list[dict[str, Any]]) -> None:
    begun = Counter(payload(line["puts"]) for line in told if "puts" in line)
    put = {line["reference"]: payload(line["put"]) for line in told if "put" in line}
    store = FileArtifactStore(database, directory, LIMITS)
    await store.open()
    await store.sweep_orphans()
    found = {}
    for meta in (await store.list(SCOPE)).artifacts:
        async with store.get(SCOPE, meta.reference) as artifact:
            found[meta.reference] = b"".join([chunk async for chunk in artifact.chunks()])
    await store.aclose()
    assert put.items() <= found.items(), told[-1]
    assert Counter(found.values()) <= begun, told[-1]


async def check_registrations(database: Database, told: list[dict[str, Any]]) -> None:
    """A cleanup that was acknowledged is there, claimed or not, until it was being removed; and so is its instance."""
    kept = await SqliteTeardownStore(database, instance).load()
    found = {one.id: (one.address, reason) for one, reason in kept.registrations}
    numbers = {word: {line[word] for line in told if word in line} for word in _WORDS}
    for number in numbers["registers"]:
        one = registration(number)
        address, reason = found.pop(one.id, (None, None))
        if address is None:
            assert number not in numbers["registered"] or number in numbers["removes"], told[-1]
            continue
        assert address == one.address
        assert number not in numbers["removed"], told[-1]
        assert reason in (None, REASON)
        assert (reason is None) <= (number not in numbers["claimed"]), told[-1]
        assert (reason is not None) <= (number in numbers["claims"]), told[-1]
    assert not found
    pinned = {int(pin.key.fact) for pin in kept.pins}
    assert numbers["pinned"] <= pinned <= numbers["pins"], told[-1]
    with_something = {one.instance_id for one, _ in kept.registrations} | {pin.instance_id for pin in kept.pins}
    assert {one.id for one in kept.instances} == with_something


async def check_requests(database: Database, told: list[dict[str, Any]]) -> None:
    requests = SqliteIdempotencyStore(database)
    states = {"began": "running", "ended": "done", "freed": "none"}
    ways = {"begins": "running", "ends": "done", "frees": "none"}
    for key in {line["begins"] for line in told if "begins" in line}:
        known, possible = "none", {"none"}
        for line in told:
            for word, state in states.items():
                if line.get(word) == key:
                    known, possible = state, {state}
            for word, state in ways.items():
                if line.get(word) == key:
                    possible = {known, state}
        record = await requests.find(SCOPE, TOOL, key)
        if record is None:
            state = "none"
        else:
            assert record.outcome in (None, OUTCOME)
            state = "running" if record.outcome is None else "done"
        assert state in possible, (key, told[-1])
