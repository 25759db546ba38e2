"""A chain of calls whose innermost tool asks the caller, ended in every way at every point: nothing of it is left."""

import asyncio
from typing import Any

import pytest

from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind
from sidecar.calls.questions import Question
from tests.faults.conftest import Inside
from tests.support import Host, MemoryHost, SocketHost, StartHost, everywhere, quiet, tasks
from tests.support.chains import CHAIN_SETS, LINKS, Chain, chained, kept
from tests.support.operators import Operator

TIMEOUT = FailureKind.FAILURE_KIND_TIMEOUT
OUTCOME_UNKNOWN = FailureKind.FAILURE_KIND_OUTCOME_UNKNOWN

EVERY = tuple(range(len(LINKS)))
INNERMOST = EVERY[-1]

POINTS = ("before the question", "while it is open", "after the answer")
LOST = tuple(f"loss of the {name} worker" for name in LINKS)
ENDS = ("cancel", "deadline", "idle", "disconnect", "half-close", *LOST)

# By the real clock there has to be time for the chain to begin.
WISHES: dict[str, dict[str, Any]] = {
    "deadline": {"timeout": 2, "human_timeout": 0.5},
    "idle": {"idle_timeout": 2, "human_timeout": 0.5},
}
KINDS = {
    "cancel": FailureKind.FAILURE_KIND_CANCELLED,
    "deadline": TIMEOUT,
    "idle": FailureKind.FAILURE_KIND_IDLE_TIMEOUT,
    LOST[0]: OUTCOME_UNKNOWN,
}
"""How the caller's call fails; the others return, but for the one whose caller is gone."""

in_memory_and_on_unix = pytest.mark.parametrize("transport", ["memory", "unix"])


async def come_to(point: str, chain: Chain) -> None:
    """Takes a chain that has begun to a point."""
    if point == POINTS[0]:
        return
    question = await chain.ask()
    if point == POINTS[2]:
        assert (await chain.answer(question, {"action": "accept"})).caller.result == b'{"action": "accept"}'


async def bring(end: str, chain: Chain) -> None:
    """Has the end come; clocks do so by themselves."""
    match end:
        case "cancel":
            await chain.caller.cancel(chain.call)
        case "disconnect":
            chain.caller.cut()
        case "half-close":
            await chain.caller.half_close()
        case _ if end in LOST:
            chain.workers[LOST.index(end)].cut()


async def wind_up(end: str, chain: Chain) -> None:
    """Has every tool that is still there end: those that are cancelled stop, the others return."""
    if end == "half-close":
        await chain.finish(*EVERY)
    elif end in LOST:
        lost = LOST.index(end)
        within = EVERY[lost + 1 :]
        assert set(await chain.cancelled(*within)) <= {"PARENT"}
        await chain.stop(*within)
        if lost:
            reply = await chain.reply(lost - 1)
            assert reply.tool_outcome.failure.kind == OUTCOME_UNKNOWN
            await chain.finish(*EVERY[:lost])
    else:
        await chain.cancelled(*EVERY)
        await chain.stop(*EVERY)


async def check_outcome(end: str, chain: Chain) -> None:
    """The caller has its one outcome, unless it is gone."""
    if end == "disconnect":
        return
    outcome = await chain.caller.outcome(chain.call)
    if end in KINDS:
        assert outcome.failure.kind == KINDS[end], outcome
    else:
        assert outcome.HasField("result"), outcome
    assert len(chain.caller.outcomes(chain.call)) == 1


async def check_nothing_waits(host: Host) -> None:
    """No call runs, no request or question is open, and no slot is taken."""
    if isinstance(host, SocketHost):
        async with Operator(host) as operator:
            assert (await operator.calls()).total == 0
        # What the audit log holds of calls is written before a caller is told anything.
        caller = await host.caller()
        await caller.flush()
    if isinstance(host, MemoryHost):
        await quiet()
        assert not host.pipeline.running
        assert len(host.pipeline.clocks) == 0
        for workers in host.catalogue.sets.values():
            reading = workers.reading()
            assert (reading.taken, reading.leaked, reading.waiting) == (0, 0, 0), reading
            assert not any(instance.nested for instance in workers.instances.values())
    assert not kept()
    assert not (await host.counters()).get("internal_errors")


@pytest.fixture
async def host(start_host: StartHost) -> Host:
    return await start_host(sets=CHAIN_SETS)


@everywhere
async def test_a_chain_is_called_asks_is_answered_and_returns(host: Host) -> None:
    chain = await chained(host)
    await chain.begin()
    question = await chain.ask()
    assert (question.origin.tool, question.origin.tool_call_id) == (LINKS[-1], "t#inner-1#inner-1#inner-1")
    assert (await chain.answer(question, "yes")).caller.result == b'"yes"'
    await chain.finish(*EVERY[1:])
    for depth in EVERY[:-1]:
        assert (await chain.reply(depth)).tool_outcome.result.json == b'{"depth": %d}' % (depth + 1)
    await chain.finish(0)
    assert (await chain.caller.outcome(chain.call)).result.json == b'{"depth": 0}'
    assert chain.caller.bodies(chain.call) == ["started", "caller_request", "outcome"]
    assert all(run.context.tools.remaining_depth == 8 - depth for depth, run in enumerate(chain.runs))
    if host.transport != "tcp":
        await check_nothing_waits(host)


@in_memory_and_on_unix
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("end", ENDS)
async def test_a_chain_that_is_ended_leaves_nothing_waiting(host: Host, inside: Inside, end: str, point: str) -> None:
    chain = await chained(host)
    before = len(tasks())
    await chain.begin(**WISHES.get(end, {}))
    await come_to(point, chain)
    await bring(end, chain)
    await wind_up(end, chain)
    await check_outcome(end, chain)
    if host.transport == "memory":
        await quiet()
        assert len(tasks()) <= before
    elif end == "disconnect" or end in LOST:
        # What ends with a stream has ended when that has.
        await inside.streams_are(len(LINKS))
    await check_nothing_waits(host)


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("end", ENDS)
async def test_a_chain_whose_tools_heed_nothing_leaves_nothing_but_slots_until_they_end(
    host: Host, end: str, point: str
) -> None:
    assert isinstance(host, MemoryHost)
    chain = await chained(host)
    before = len(tasks())
    await chain.begin(**({"timeout": 5, "human_timeout": 3} | WISHES.get(end, {})))
    await come_to(point, chain)
    await bring(end, chain)
    # What nothing else ends, the clock does.
    await asyncio.sleep(20)
    if end != "disconnect":
        assert chain.caller.outcomes(chain.call)
    assert not host.pipeline.running
    assert not kept()
    assert len(tasks()) <= before
    there = [depth for depth in EVERY if not chain.workers[depth].is_over]
    assert host.counts["leaked_slots"] == len(there) == len(EVERY) - (end in LOST)
    await chain.finish(*there)
    await check_nothing_waits(host)


@in_memory_and_on_unix
async def test_a_question_of_a_chain_may_be_asked_again_and_again(host: Host) -> None:
    """So that nothing is kept of those that were answered."""
    chain = await chained(host)
    await chain.begin()
    for number in range(1, 51):
        question = await chain.ask(number)
        assert (await chain.answer(question, number)).request_id == number
    await chain.caller.flush()
    assert not [thing for thing in kept() if isinstance(thing, Question)]
    await chain.finish(*EVERY)
    await check_nothing_waits(host)
