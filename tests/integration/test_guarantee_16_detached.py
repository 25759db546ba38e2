"""Guarantee 16, for detached calls: tickets and outcomes that were told are there after `kill -9` of the sidecar."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind, Outcome, SideEffects
from sidecar._gen.pillion.v1.tool_pb2 import Effects
from tests.integration.test_detached import detach, follow
from tests.support import IDEMPOTENT, READ, UNSAFE, SidecarProcess, attach, on_unix, tool

pytestmark = on_unix

OUTCOME_UNKNOWN = FailureKind.FAILURE_KIND_OUTCOME_UNKNOWN
TICKET_INVALID = FailureKind.FAILURE_KIND_TICKET_INVALID
WORKER_LOST = FailureKind.FAILURE_KIND_WORKER_LOST
NONE = SideEffects.SIDE_EFFECTS_NONE
POSSIBLE = SideEffects.SIDE_EFFECTS_POSSIBLE
AT_ONCE = 100
ANSWERS = {UNSAFE: (OUTCOME_UNKNOWN, POSSIBLE, False), IDEMPOTENT: (WORKER_LOST, POSSIBLE, True)} | {
    READ: (WORKER_LOST, NONE, True)
}
"""What a call of a tool with these effects ends in, whether it has an effect, and whether it may be tried again."""


@pytest.fixture
async def process(tmp_path: Path) -> AsyncIterator[SidecarProcess]:
    started = SidecarProcess(tmp_path)
    yield started
    await started.aclose()


async def told_again(process: SidecarProcess, ticket: str, from_sequence: int = 0) -> list[Frame]:
    """What a caller that follows the call is told, by a sidecar that was started since."""
    async with await process.caller() as caller:
        call = await follow(caller, ticket, from_sequence)
        await caller.outcome(call)
        return caller.frames[call]


@pytest.mark.parametrize("effects", ANSWERS, ids=Effects.Name)
@pytest.mark.parametrize("point", ["told of its ticket", "invoked", "reported"])
async def test_guarantee_16_a_detached_call_that_was_lost_ends_as_its_effects_say(
    process: SidecarProcess, effects: "Effects.ValueType", point: str
) -> None:
    await process.start()
    # With one slot that is taken, a call is told of its ticket and is not invoked.
    worker, caller = await attach(process, tool("echo", effects=effects), concurrency=1), await process.caller()
    if point == "told of its ticket":
        await caller.start()
        await worker.next_invoke()
    call, ticket = await detach(caller)
    seen = 1
    if point != "told of its ticket":
        run = await worker.next_invoke()
        if point == "reported":
            await worker.progress(run.call, {})
            seen = (await caller.next_of("progress", call)).sequence
    await process.kill()
    await process.start()
    answers = [await told_again(process, ticket, seen + 1) for _ in range(2)]
    started, ended = answers[0]
    assert started.started.execution_id == caller.frames[call][0].started.execution_id
    failure = ended.outcome.failure
    assert (failure.kind, failure.side_effects, failure.retryable) == ANSWERS[effects]
    # It is the same for everybody, and behind what was seen.
    assert answers[0] == answers[1]
    assert (started.sequence, ended.sequence) == (1, seen + 1)
    await process.kill()
    await process.start()
    assert await told_again(process, ticket, seen + 1) == answers[0]


@pytest.mark.parametrize("after", [1, 7, AT_ONCE])
async def test_guarantee_16_tickets_and_outcomes_of_detached_calls_are_there(
    process: SidecarProcess, after: int
) -> None:
    await process.start()
    worker, caller = await attach(process, concurrency=AT_ONCE), await process.caller()
    begun = [await caller.start(detachable=True, arguments={"number": number}) for number in range(AT_ONCE)]
    for _ in begun:
        run = await worker.next_invoke()
        await worker.progress(run.call, {})
        await worker.result(run.call, run.invoke.arguments)
    await caller.outcome(begun[after - 1])
    await process.kill()
    await process.start()
    tickets = {call: caller.frames[call][0].started.ticket for call in begun if caller.frames[call]}
    assert len(tickets) >= after
    other = await process.caller()
    for call, ticket in tickets.items():
        again = await follow(other, ticket)
        ended = await other.next_of("outcome", again)
        told = [frame for frame in caller.frames[call] if frame.HasField("outcome")]
        if not told:
            assert ended.outcome.HasField("result") or ended.outcome.failure.kind == OUTCOME_UNKNOWN
            continue
        assert ended.outcome == told[0].outcome
        # The report that is not there any more is counted.
        assert (ended.sequence, ended.time_unix_nano, ended.coalesced) == (3, told[0].time_unix_nano, 1)


async def test_guarantee_16_a_detached_call_ends_as_the_record_of_its_key_says(process: SidecarProcess) -> None:
    await process.start()
    worker, caller = await attach(process), await process.caller()
    _, ticket = await detach(caller, idempotency_key="k")
    await worker.result((await worker.next_invoke()).call, b"1")
    joined = await caller.call(idempotency_key="k")
    await process.kill()
    await process.start()
    assert (await told_again(process, ticket))[-1].outcome == joined


async def test_guarantee_16_no_ticket_is_on_disk(process: SidecarProcess) -> None:
    await process.start()
    worker, caller = await attach(process), await process.caller()
    call, ticket = await detach(caller)
    await worker.result((await worker.next_invoke()).call, b'"the outcome"')
    await caller.outcome(call)
    await caller.outcome(await follow(caller, ticket))
    await caller.outcome(await follow(caller, ticket + "x"))
    await process.kill()

    def kept() -> bytes:
        return b"".join(path.read_bytes() for path in process.config.parent.rglob("*") if path.is_file())

    files = await asyncio.to_thread(kept)
    assert b"the outcome" in files
    assert ticket.removeprefix("tic_").encode() not in files
    assert not any(ticket in line for line in process.said)


async def test_guarantee_16_what_expired_while_the_sidecar_was_away_is_gone(process: SidecarProcess) -> None:
    settings = process.config.read_text()
    process.config.write_text(settings + "[limits.calls]\ndetach_retention = 0.2\n")
    await process.start()
    worker, caller = await attach(process), await process.caller()
    call, ticket = await detach(caller)
    await worker.result((await worker.next_invoke()).call, b"1")
    assert Outcome.HasField(await caller.outcome(call), "result")
    await process.kill()
    await process.start()
    while (await told_again(process, ticket))[-1].outcome.failure.kind != TICKET_INVALID:
        pass
