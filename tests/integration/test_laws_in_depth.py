"""Laws 4, 5 and 6 where tools call tools three deep, and while somebody is asked and has not answered."""

import asyncio

import pytest

from sidecar._gen.pillion.v1.context_pb2 import CancelReason
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outbound_pb2 import OutboundRequest, ReplyErrorCode
from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind
from tests.support import Host, MemoryHost, StartHost, everywhere, quiet
from tests.support.chains import CHAIN_SETS, LINKS, Chain, chained

CANCELLED = FailureKind.FAILURE_KIND_CANCELLED
CALLER_GONE = ReplyErrorCode.REPLY_ERROR_CODE_CALLER_GONE
PEER_TIMEOUT = ReplyErrorCode.REPLY_ERROR_CODE_PEER_TIMEOUT

KINDS = [field.name for field in OutboundRequest.DESCRIPTOR.oneofs_by_name["request"].fields]
EVERY = tuple(range(len(LINKS)))
INNER = EVERY[1:]
SLOT = 0.02
"""A due time is met within a slot of 10 ms."""

with_and_without_people = pytest.mark.parametrize("people", [False, True], ids=["running", "people asked"])


@pytest.fixture
async def host(start_host: StartHost) -> Host:
    return await start_host(sets=CHAIN_SETS)


def now() -> float:
    """The loop's clock."""
    return asyncio.get_running_loop().time()


def remaining(chain: Chain) -> list[float]:
    """How much time each tool was told that it has."""
    return [run.context.remaining.ToNanoseconds() / 1e9 for run in chain.runs]


def assert_of_parent(reasons: list[str], *, also: str) -> None:
    """Tools within are told of their parent; or of the deadline, where theirs is the same and comes first."""
    assert set(reasons) <= ({"PARENT", "DEADLINE"} if also == "DEADLINE" else {"PARENT"}), reasons


# --- 4: a request is answered or refused, typed


@everywhere
@with_and_without_people
async def test_law_4_every_request_of_every_tool_of_a_chain_is_answered(host: Host, *, people: bool) -> None:
    chain = await chained(host)
    await chain.begin()
    question = await chain.ask() if people else None
    for depth in EVERY:
        worker, run = chain.workers[depth], chain.runs[depth].call
        for number, kind in enumerate(KINDS, 10):
            request = OutboundRequest(request_id=number)
            getattr(request, kind).SetInParent()
            reply = await worker.ask(run, request)
            assert reply.request_id == number, kind
            assert reply.WhichOneof("answer") is not None, kind
    if question is not None:
        # The one that a person is to answer has waited meanwhile.
        assert (await chain.answer(question, "yes")).caller.result == b'"yes"'


@pytest.mark.parametrize("how", ["time is up", "half-close", "loss", "given up"])
async def test_law_4_a_question_that_nobody_answers_is_refused_at_depth_3(memory_host: MemoryHost, how: str) -> None:
    chain = await chained(memory_host)
    await chain.begin(human_timeout=100)
    await chain.ask(number=7)
    begun = now()
    match how:
        case "time is up":
            code, after = PEER_TIMEOUT, 100.0
        case "half-close":
            await chain.caller.half_close()
            code, after = CALLER_GONE, 0.0
        case "loss":
            chain.caller.cut()
            code, after = CALLER_GONE, 0.0
        case _:
            # No tool of the chain heeds it.
            await chain.caller.cancel(chain.call)
            code, after = ReplyErrorCode.REPLY_ERROR_CODE_CANCELLED, memory_host.pipeline.limits.cancel_grace
    reply = await chain.reply(3)
    assert (reply.request_id, reply.error.code) == (7, code)
    assert now() - begun == pytest.approx(after, abs=SLOT)


# --- 5: cancel is a signal with a reason


@everywhere
@with_and_without_people
async def test_law_5_a_callers_cancel_reaches_every_tool_of_a_chain_with_its_reason(
    host: Host, *, people: bool
) -> None:
    chain = await chained(host)
    await chain.begin()
    if people:
        await chain.ask()
    await chain.caller.cancel(chain.call)
    assert await chain.cancelled(*EVERY) == ["CALLER", "PARENT", "PARENT", "PARENT"]
    # It is a signal: all of them run until they end by themselves.
    await chain.caller.flush()
    assert chain.caller.outcomes(chain.call) == []
    await chain.stop(*INNER)
    for depth in EVERY[:-1]:
        assert (await chain.reply(depth)).tool_outcome.failure.kind == CANCELLED
    await chain.stop(0)
    assert (await chain.caller.outcome(chain.call)).failure.kind == CANCELLED


@with_and_without_people
@pytest.mark.parametrize("reason", ["DEADLINE", "IDLE", "DISCONNECT", "DRAIN", "SCOPE_ENDED", "OPERATOR"])
async def test_law_5_whatever_the_reason_is_the_tools_within_are_told_of_their_parent(
    memory_host: MemoryHost, reason: str, *, people: bool
) -> None:
    chain = await chained(memory_host)
    idle = {"idle_timeout": 3} if reason == "IDLE" else {}
    await chain.begin(timeout=9, human_timeout=20, **idle)
    if people:
        await chain.ask()
    match reason:
        case "DEADLINE" | "IDLE":
            pass
        case "DISCONNECT":
            chain.caller.cut()
        case _:
            await quiet()
            (call,) = [call for call in memory_host.pipeline.running if call.parent is None]
            call.cancel(CancelReason.Value(f"CANCEL_REASON_{reason}"))
    outermost, *within = await chain.cancelled(*EVERY)
    assert outermost == reason
    assert_of_parent(within, also=reason)
    # The clocks stood still while a person was waited for, who had 20 seconds.
    waited = {"DEADLINE": 9.0, "IDLE": 3.0}.get(reason)
    if waited is not None:
        assert now() == pytest.approx(waited + 20 * people, abs=2 * SLOT)


@with_and_without_people
async def test_law_5_every_tool_of_a_chain_that_ignores_its_cancel_leaks_a_counted_slot(
    memory_host: MemoryHost, *, people: bool
) -> None:
    chain = await chained(memory_host)
    await chain.begin()
    if people:
        await chain.ask()
    await chain.caller.cancel(chain.call)
    assert (await chain.caller.outcome(chain.call)).failure.kind == CANCELLED
    assert memory_host.counts["leaked_slots"] == len(LINKS)
    assert [memory_host.catalogue.sets[name].reading().leaked for name in LINKS] == [1] * len(LINKS)
    await chain.finish(*EVERY)
    assert [memory_host.catalogue.sets[name].reading().taken for name in LINKS] == [0] * len(LINKS)


# --- 6: two clocks


async def test_law_6_a_chain_has_the_remainder_of_its_outermost_call_at_depth_3(memory_host: MemoryHost) -> None:
    chain = await chained(memory_host)
    await chain.begin(timeout=5, inner_timeout=1000)
    assert remaining(chain) == pytest.approx([5] * len(LINKS), abs=SLOT)
    outermost, *within = await chain.cancelled(*EVERY)
    assert outermost == "DEADLINE"
    assert_of_parent(within, also="DEADLINE")
    assert now() == pytest.approx(5, abs=SLOT)


async def test_law_6_a_call_within_may_have_less_time_and_gives_no_more_to_those_within_it(
    memory_host: MemoryHost,
) -> None:
    chain = await chained(memory_host)
    await chain.begin(timeout=50, inner_timeout=5)
    assert remaining(chain) == pytest.approx([50, 5, 5, 5], abs=SLOT)
    outermost, *within = await chain.cancelled(*INNER)
    assert outermost == "DEADLINE"
    assert_of_parent(within, also="DEADLINE")
    assert now() == pytest.approx(5, abs=SLOT)
    await chain.stop(*INNER)
    assert (await chain.reply(0)).tool_outcome.failure.kind == FailureKind.FAILURE_KIND_TIMEOUT
    await chain.finish(0)
    assert (await chain.caller.outcome(chain.call)).HasField("result")


async def test_law_6_progress_at_depth_3_keeps_every_call_around_it_from_being_idle(memory_host: MemoryHost) -> None:
    chain = await chained(memory_host)
    await chain.begin(timeout=60, idle_timeout=2)
    for _ in range(5):
        await asyncio.sleep(1.5)
        await chain.workers[3].progress(chain.runs[3].call, {})
    await quiet()
    assert "cancel" not in chain.workers[0].bodies(chain.runs[0].call)
    assert await chain.cancelled(*EVERY) == ["IDLE", "PARENT", "PARENT", "PARENT"]
    assert now() == pytest.approx(5 * 1.5 + 2, abs=2 * SLOT)


async def test_law_6_while_people_are_asked_at_depth_3_the_clocks_of_every_call_stand_still(
    memory_host: MemoryHost,
) -> None:
    chain = await chained(memory_host)
    await chain.begin(timeout=5, inner_timeout=4, idle_timeout=3, human_timeout=100)
    await asyncio.sleep(2)
    question = await chain.ask()
    assert question.timeout.ToNanoseconds() / 1e9 == pytest.approx(100)
    await asyncio.sleep(90)
    await chain.answer(question, "late")
    assert not [depth for depth in EVERY if "cancel" in chain.workers[depth].bodies(chain.runs[depth].call)]
    # Two of its four seconds were left to the first call within, and are left now; those around it have longer.
    outermost, *within = await chain.cancelled(*INNER)
    assert outermost == "DEADLINE"
    assert_of_parent(within, also="DEADLINE")
    assert now() == pytest.approx(94, abs=2 * SLOT)
    await chain.stop(*INNER)
    await chain.reply(0)
    assert await chain.cancelled(0) == ["DEADLINE"]
    assert now() == pytest.approx(95, abs=2 * SLOT)


async def test_law_6_people_have_so_much_time_in_all_at_depth_3_too(memory_host: MemoryHost) -> None:
    chain = await chained(memory_host)
    await chain.begin(timeout=5, human_timeout=10)
    question = await chain.ask(1)
    await asyncio.sleep(6)
    await chain.answer(question, 1)
    assert (await chain.ask(2)).timeout.ToNanoseconds() / 1e9 == pytest.approx(4, abs=SLOT)
    assert (await chain.reply(3)).error.code == PEER_TIMEOUT
    assert now() == pytest.approx(10, abs=SLOT)
    # The tool around it has no more of it to give.
    asked = OutboundRequest(request_id=9)
    asked.caller_request.method = "elicitation/create"
    await chain.workers[0].send(Frame(call=chain.runs[0].call, outbound_request=asked))
    assert (await chain.reply(0)).error.code == PEER_TIMEOUT
    outermost, *within = await chain.cancelled(*EVERY)
    assert outermost == "DEADLINE"
    assert_of_parent(within, also="DEADLINE")
    assert now() == pytest.approx(15, abs=2 * SLOT)
