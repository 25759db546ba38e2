"""Guarantee 8, for detached calls: a ticket is of use to who started the call, and to no other caller principal."""

import asyncio

import pytest

from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind
from sidecar.scope import Principal
from tests.integration.test_detached import begun, follow
from tests.support import MemoryHost

TICKET_INVALID = FailureKind.FAILURE_KIND_TICKET_INVALID


@pytest.mark.parametrize("where", ["running", "ended", "in the store alone"])
async def test_guarantee_08_a_detached_call_is_followed_by_nobody_else(memory_host: MemoryHost, where: str) -> None:
    worker, run, caller, call, ticket = await begun(memory_host)
    if where != "running":
        await worker.result(run.call, b'"secret"')
        await caller.outcome(call)
    if where == "in the store alone":
        memory_host.forget_detached()
    memory_host.principal = Principal("anyone", authenticated=False)
    stranger = await memory_host.caller()
    outcomes = []
    for text in (ticket, "tic_none"):
        other = await follow(stranger, text)
        outcomes.append(await stranger.outcome(other))
        assert stranger.bodies(other) == ["started", "outcome"]
    assert outcomes[0] == outcomes[1]
    assert outcomes[0].failure.kind == TICKET_INVALID
    await caller.flush()
    # Nor is who may follow it disturbed.
    assert "superseded" not in caller.bodies(call)
    if where == "running":
        await worker.result(run.call, b'"secret"')
        await asyncio.sleep(0)
        assert (await caller.outcome(call)).HasField("result")
    else:
        assert (await caller.outcome(await follow(caller, ticket))).result.json == b'"secret"'
