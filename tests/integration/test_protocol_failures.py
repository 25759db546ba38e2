"""The table of docs/protocol.md that says how calls fail, driven row by row."""

from typing import Any

import pytest

from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind, SideEffects
from tests.integration.causes import SCENARIOS, Stage
from tests.support import StartHost
from tests.support.documents import table

CAUSES = table("docs/protocol.md", "Cause, invoked, effects")


def _cases() -> list[Any]:
    cases = []
    for row in CAUSES:
        held = ("READ", "IDEMPOTENT", "UNSAFE") if row["Effects"] == "any" else row["Effects"].split(", ")
        ran = "ran" if row["Invoked"] == "yes" else "not run"
        cases += [pytest.param(row, effects, id=f"{row['Cause']}-{ran}-{effects}") for effects in held]
    return cases


@pytest.mark.parametrize(("row", "effects"), _cases())
async def test_a_cause_fails_its_call_as_its_row_says(
    row: dict[str, str], effects: str, start_host: StartHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(start_host, monkeypatch, effects)
    failure = await SCENARIOS[row["Cause"], row["Invoked"]](stage)
    assert {
        "Kind": FailureKind.Name(failure.kind).removeprefix("FAILURE_KIND_"),
        "Side effects": SideEffects.Name(failure.side_effects).removeprefix("SIDE_EFFECTS_"),
        "Retryable": "yes" if failure.retryable else "no",
        "Invoked": "yes" if stage.was_run else "no",
    } == {column: row[column] for column in ("Kind", "Side effects", "Retryable", "Invoked")}
    assert failure.message
    monkeypatch.undo()


def test_every_row_has_its_scenario_and_every_scenario_its_row() -> None:
    assert {(row["Cause"], row["Invoked"]) for row in CAUSES} == set(SCENARIOS)
