"""Detached calls: they go on without their caller's stream, and whoever has the ticket follows them."""

import asyncio
from typing import Any

import pytest

from sidecar._gen.pillion.v1.context_pb2 import CancelReason, Identity
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outbound_pb2 import ReplyErrorCode
from sidecar._gen.pillion.v1.outcome_pb2 import Failure, FailureKind, Outcome, SideEffects
from sidecar.doors.unary import run_call
from sidecar.policy import Decision
from sidecar.scope import Principal
from tests.integration.test_questions import ELICIT, answer, answering, ask, asked_of, question, reply
from tests.support import (
    READ,
    CallerPeer,
    CallLimits,
    Host,
    Invocation,
    MemoryHost,
    StartHost,
    WireLimits,
    WorkerPeer,
    attach,
    everywhere,
    quiet,
    tool,
)
from tests.support.caller import start_of
from tests.support.worker import progress

CANCELLED = FailureKind.FAILURE_KIND_CANCELLED
DENIED = FailureKind.FAILURE_KIND_DENIED
INVALID_ARGUMENTS = FailureKind.FAILURE_KIND_INVALID_ARGUMENTS
OVERLOADED = FailureKind.FAILURE_KIND_OVERLOADED
RESULT_TOO_LARGE = FailureKind.FAILURE_KIND_RESULT_TOO_LARGE
TICKET_INVALID = FailureKind.FAILURE_KIND_TICKET_INVALID
UNAVAILABLE = FailureKind.FAILURE_KIND_UNAVAILABLE
UNSUPPORTED = FailureKind.FAILURE_KIND_UNSUPPORTED
CALLER_GONE = ReplyErrorCode.REPLY_ERROR_CODE_CALLER_GONE
KIB = 1024


async def begun(host: Host, **fields: Any) -> tuple[WorkerPeer, Invocation, CallerPeer, int, str]:
    """A detached call that runs: its worker and invocation, its caller and its call id there, and its ticket."""
    worker, caller = await attach(host), await host.caller()
    call, ticket = await detach(caller, **fields)
    return worker, await worker.next_invoke(), caller, call, ticket


async def detach(caller: CallerPeer, name: str = "echo", **fields: Any) -> tuple[int, str]:
    """Starts a detached call; answers its id and its ticket."""
    call = await caller.start(name, detachable=True, **fields)
    started = await caller.started(call)
    assert started.ticket
    return call, started.ticket


async def follow(caller: CallerPeer, ticket: str, from_sequence: int = 0) -> int:
    """Follows a call; answers the call id."""
    frame = following(caller, ticket, from_sequence)
    await caller.send(frame)
    return frame.call


def following(caller: CallerPeer, ticket: str, from_sequence: int = 0) -> Frame:
    caller.last_call += 1
    frame = Frame(call=caller.last_call)
    frame.follow.ticket, frame.follow.from_sequence = ticket, from_sequence
    return frame


def numbers(caller: CallerPeer, call: int) -> list[int]:
    return [frame.sequence for frame in caller.frames[call]]


async def failed(caller: CallerPeer, call: int) -> Failure:
    return (await caller.outcome(call)).failure


@everywhere
async def test_a_detached_call_outlives_its_stream_and_is_followed_from_where_it_was_left(host: Host) -> None:
    worker, run, caller, call, ticket = await begun(host)
    for number in range(3):
        await worker.progress(run.call, {"number": number})
    seen = [await caller.next_of("progress", call) for _ in range(2)]
    caller.cut()
    await worker.progress(run.call, {"number": 3})
    await worker.flush()
    other = await host.caller()
    again = await follow(other, ticket, seen[-1].sequence + 1)
    await worker.progress(run.call, {"number": 4})
    await worker.result(run.call, b'"done"')
    assert (await other.outcome(again)).result.json == b'"done"'
    assert other.bodies(again) == ["started", "progress", "progress", "progress", "outcome"]
    assert numbers(other, again) == [1, 4, 5, 6, 7]
    assert [frame.progress.payload for frame in other.frames[again][1:4]] == [
        b'{"number": %d}' % number for number in (2, 3, 4)
    ]
    assert {frame.call for frame in other.frames[again]} == {again}
    # Who follows has the ticket, and is not told it once more.
    assert not other.frames[again][0].started.HasField("ticket")
    assert other.frames[again][0].started.execution_id == caller.frames[call][0].started.execution_id


@everywhere
async def test_a_call_that_ended_while_nobody_followed_tells_how(host: Host) -> None:
    worker, run, caller, _, ticket = await begun(host)
    await worker.progress(run.call, {})
    caller.cut()
    await worker.result(run.call, b"7")
    await worker.flush()
    for _ in range(2):
        other = await host.caller()
        again = await follow(other, ticket)
        assert (await other.outcome(again)).result.json == b"7"
        assert other.bodies(again) == ["started", "progress", "outcome"]
        assert numbers(other, again) == [1, 2, 3]


@everywhere
async def test_frames_that_are_sent_again_are_the_same(host: Host) -> None:
    worker, run, caller, call, ticket = await begun(host)
    await worker.progress(run.call, {"message": "half"})
    await worker.result(run.call, b"1")
    await caller.outcome(call)
    again = await follow(caller, ticket)
    await caller.outcome(again)
    first, second = caller.frames[call], caller.frames[again]
    first[0].started.ClearField("ticket")
    for frame in (*first, *second):
        frame.call = 0
    assert first == second


async def test_started_comes_at_once_and_a_call_is_recorded_before(memory_host: MemoryHost) -> None:
    caller = await memory_host.caller()
    # The worker is not there yet, and the call waits for it.
    await detach(caller)
    assert len(memory_host.detached_store.entries) == 1
    worker = await attach(memory_host)
    await worker.next_invoke()


async def test_half_close_leaves_a_detached_call_and_its_outcome_comes(memory_host: MemoryHost) -> None:
    worker, run, caller, call, _ = await begun(memory_host)
    await caller.half_close()
    await quiet()
    assert not caller.is_over
    await worker.result(run.call, b"1")
    assert (await caller.outcome(call)).result.json == b"1"
    await caller.end()


async def test_a_follow_is_answered_though_the_caller_has_half_closed(memory_host: MemoryHost) -> None:
    caller = await memory_host.caller()
    call = await follow(caller, "tic_none")
    await caller.half_close()
    assert (await failed(caller, call)).kind == TICKET_INVALID
    await caller.end()


@everywhere
async def test_the_newest_follower_wins_and_the_older_is_told(host: Host) -> None:
    worker, run, caller, call, ticket = await begun(host)
    other = await host.caller()
    again = await follow(other, ticket)
    assert (await caller.next(call)).HasField("superseded")
    await worker.progress(run.call, {})
    await worker.result(run.call, b"1")
    await other.outcome(again)
    await caller.flush()
    assert caller.bodies(call) == ["started", "superseded"]
    assert other.bodies(again) == ["started", "progress", "outcome"]


async def test_a_stream_is_not_held_up_by_calls_that_others_follow_now(start_host: StartHost) -> None:
    host = await start_host(calls=CallLimits(in_flight_per_stream=1))
    worker, run, caller, call, ticket = await begun(host)
    assert (await caller.call()).failure.kind == OVERLOADED
    other = await host.caller()
    await follow(other, ticket)
    await caller.next_of("superseded", call)
    free = await caller.start()
    await worker.result((await worker.next_invoke()).call, b"2")
    assert (await caller.outcome(free)).HasField("result")
    # It counts where it is followed.
    assert (await other.call()).failure.kind == OVERLOADED
    await worker.result(run.call, b"1")
    await other.outcome(1)
    assert (await failed(other, await follow(other, "tic_none"))).kind == TICKET_INVALID


async def test_a_follow_counts_as_a_call_of_its_stream(start_host: StartHost) -> None:
    host = await start_host(calls=CallLimits(in_flight_per_stream=1))
    _, _, caller, _, ticket = await begun(host)
    assert (await failed(caller, await follow(caller, ticket))).kind == OVERLOADED


@everywhere
async def test_a_cancel_by_whoever_follows_ends_the_call(host: Host) -> None:
    worker, run, caller, _, ticket = await begun(host)
    caller.cut()
    other = await host.caller()
    again = following(other, ticket)
    cancel = Frame(call=again.call)
    cancel.cancel.SetInParent()
    await other.send(again, cancel)
    assert await worker.cancelled(run.call) == CancelReason.CANCEL_REASON_CALLER
    await worker.fail(run.call, CANCELLED)
    assert (await failed(other, again.call)).kind == CANCELLED


async def test_a_cancel_that_comes_while_a_ticket_is_looked_up_is_not_forgotten(memory_host: MemoryHost) -> None:
    worker, caller = await attach(memory_host), await memory_host.caller()
    call = caller.starting(detachable=True)
    cancel = Frame(call=call.call)
    cancel.cancel.SetInParent()
    await caller.send(call, cancel)
    assert (await failed(caller, call.call)).kind == CANCELLED
    # It was stopped before it was recorded, so there is nothing to follow, and nothing is kept.
    assert not caller.frames[call.call][0].started.HasField("ticket")
    await quiet()
    assert memory_host.detached_store.entries == {}
    assert len(memory_host.detached) == 0
    assert worker.invoked == []


async def test_a_stream_that_is_lost_before_anybody_knows_the_ticket_takes_its_call_along(
    memory_host: MemoryHost,
) -> None:
    worker, caller = await attach(memory_host), await memory_host.caller()
    memory_host.detached_store.writable.clear()
    await caller.start(detachable=True)
    await caller.flush()
    assert len(memory_host.pipeline.running) == 1
    caller.cut()
    await quiet()
    assert memory_host.pipeline.running == set()
    memory_host.detached_store.writable.set()
    await quiet()
    assert worker.invoked == []
    assert memory_host.detached_store.entries == {}


async def test_half_a_dozen_wrong_tickets_get_one_answer(memory_host: MemoryHost) -> None:
    _, _, caller, _, ticket = await begun(memory_host)
    memory_host.principal = Principal("anyone", authenticated=False)
    stranger = await memory_host.caller()
    wrong = ["", "t", "tic_" + "x" * 43, ticket[:-1], ticket + "=", "\U0001f3ab" * 1_000, ticket]
    answers = set()
    for peer, tickets in ((stranger, wrong), (caller, wrong[:-1])):
        for text in tickets:
            call = await follow(peer, text)
            outcome = await peer.outcome(call)
            assert peer.bodies(call) == ["started", "outcome"]
            answers.add(outcome.SerializeToString())
    assert len(answers) == 1
    assert Outcome.FromString(answers.pop()).failure.kind == TICKET_INVALID
    assert (await memory_host.counters())["invalid_tickets"] == 13


async def test_a_ticket_is_good_until_some_time_after_the_outcome(start_host: StartHost) -> None:
    host = await start_host(calls=CallLimits(detach_retention=60))
    assert isinstance(host, MemoryHost)
    worker, run, caller, call, ticket = await begun(host, timeout=4_000)
    await asyncio.sleep(3_600)
    await worker.progress(run.call, {"message": "x" * KIB})
    await worker.result(run.call, b"1")
    await caller.outcome(call)
    assert host.detached.kept_bytes > KIB
    await asyncio.sleep(59)
    assert (await caller.outcome(await follow(caller, ticket))).HasField("result")
    await asyncio.sleep(2)
    assert (await failed(caller, await follow(caller, ticket))).kind == TICKET_INVALID
    await quiet()
    assert (len(host.detached), host.detached.kept_bytes, host.detached_store.entries) == (0, 0, {})


async def test_what_is_kept_is_bounded_for_each_call_and_what_gave_way_is_counted(start_host: StartHost) -> None:
    host = await start_host(calls=CallLimits(detached_frames=10, detached_bytes=4 * KIB))
    worker, run, caller, _, ticket = await begun(host)
    caller.cut()
    for number in range(25):
        await worker.progress(run.call, {"number": number})
    await worker.flush()
    other = await host.caller()
    again = await follow(other, ticket)
    await other.flush()
    # Frames 2 to 26 were reports.
    assert numbers(other, again) == [1, *range(17, 27)]
    assert [frame.coalesced for frame in other.frames[again]] == [0, 15, *[0] * 9]
    partly = await follow(other, ticket, 15)
    await other.flush()
    assert [frame.coalesced for frame in other.frames[partly]][:2] == [0, 2]
    late = await follow(other, ticket, 20)
    await other.flush()
    assert numbers(other, late) == [1, *range(20, 27)]
    assert [frame.coalesced for frame in other.frames[late]] == [0] * 8
    await worker.progress(run.call, {"text": "x" * 5 * KIB})
    await worker.result(run.call, b"1")
    await other.outcome(late)
    # All of them gave way to one that is too large itself.
    last = await follow(other, ticket)
    outcome = await other.next_of("outcome", last)
    assert other.bodies(last) == ["started", "outcome"]
    assert (outcome.coalesced, outcome.sequence) == (26, 28)


async def test_what_is_kept_is_bounded_in_all_and_the_outcomes_stay(start_host: StartHost) -> None:
    host = await start_host(calls=CallLimits(detached_bytes_in_all=64 * KIB))
    assert isinstance(host, MemoryHost)
    worker, caller = await attach(host), await host.caller()
    tickets = []
    for number in range(20):
        call, ticket = await detach(caller)
        tickets.append(ticket)
        run = await worker.next_invoke()
        for _ in range(2):
            await worker.progress(run.call, {"text": "x" * 4 * KIB})
        await worker.result(run.call, b"%d" % number)
        await caller.outcome(call)
        assert host.detached.kept_bytes <= 64 * KIB
    assert 3 < len(host.detached) < 10
    for number, ticket in enumerate(tickets):
        again = await follow(caller, ticket)
        frame = await caller.next_of("outcome", again)
        assert frame.outcome.result.json == b"%d" % number
        assert (frame.sequence, frame.coalesced) == (4, 2 if number < 5 else frame.coalesced)
    # One that runs gives way itself, where all that ended have.
    call, ticket = await detach(caller)
    run = await worker.next_invoke()
    for _ in range(30):
        await worker.progress(run.call, {"text": "x" * 4 * KIB})
    await worker.flush()
    assert host.detached.kept_bytes <= 64 * KIB
    assert len(host.detached) == 1


async def test_a_subject_has_so_many_detached_calls(start_host: StartHost) -> None:
    host = await start_host(calls=CallLimits(detached_per_subject=2, detach_retention=60))
    worker, caller = await attach(host), await host.caller()
    for _ in range(2):
        call, _ = await detach(caller)
        await worker.result((await worker.next_invoke()).call, b"1")
        await caller.outcome(call)
    refused = await caller.call(detachable=True)
    assert (refused.failure.kind, refused.failure.retryable) == (OVERLOADED, True)
    assert refused.failure.side_effects == SideEffects.SIDE_EFFECTS_NONE
    # Another subject, and calls that are not detached, are not concerned.
    await detach(caller, identity=Identity(principal="ann"))
    await asyncio.sleep(61)
    await quiet()
    await detach(caller)


async def test_a_refused_call_has_no_ticket_and_is_not_recorded(memory_host: MemoryHost) -> None:
    await attach(memory_host, tool("echo", input_schema={"required": ["text"]}))
    caller = await memory_host.caller()
    call = await caller.start(detachable=True)
    assert (await failed(caller, call)).kind == INVALID_ARGUMENTS
    assert not caller.frames[call][0].started.HasField("ticket")
    assert memory_host.detached_store.entries == {}


async def test_a_store_that_cannot_be_reached_refuses_and_runs_nothing(memory_host: MemoryHost) -> None:
    worker, caller = await attach(memory_host), await memory_host.caller()
    memory_host.detached_store.broken = True
    refused = (await caller.call(detachable=True)).failure
    assert (refused.kind, refused.retryable, worker.invoked) == (UNAVAILABLE, True, [])
    refused = await failed(caller, await follow(caller, "tic_none"))
    assert (refused.kind, refused.retryable) == (UNAVAILABLE, True)


async def test_a_start_with_a_store_that_cannot_be_written_goes_on(memory_host: MemoryHost) -> None:
    _, _, caller, _, ticket = await begun(memory_host)
    memory_host.forget_detached()
    memory_host.detached_store.broken = True
    await memory_host.detached.recover()
    memory_host.detached_store.broken = False
    assert (await failed(caller, await follow(caller, ticket))).kind == FailureKind.FAILURE_KIND_OUTCOME_UNKNOWN


async def test_an_outcome_that_cannot_be_recorded_is_told_all_the_same(memory_host: MemoryHost) -> None:
    worker, run, caller, call, ticket = await begun(memory_host)
    memory_host.detached_store.broken = True
    await worker.result(run.call, b"1")
    assert (await caller.outcome(call)).result.json == b"1"
    assert (await caller.outcome(await follow(caller, ticket))).result.json == b"1"
    assert (await memory_host.counters())["unrecorded_outcomes"] == 1


@pytest.mark.parametrize("key", [None, "k"])
async def test_law_1_a_detached_call_that_cannot_be_recorded_is_decided_in_time(
    memory_host: MemoryHost, monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    stuck = asyncio.Event()

    async def hang(*_: object) -> None:
        await stuck.wait()

    monkeypatch.setattr(memory_host.detached_store, "finish", hang)
    slow = memory_host.store.finish

    async def be_slow(*arguments: Any) -> None:
        await asyncio.sleep(4)
        await slow(*arguments)

    monkeypatch.setattr(memory_host.store, "finish", be_slow)
    begun_at = asyncio.get_running_loop().time()
    _, _, caller, call, _ = await begun(memory_host, timeout=7, idempotency_key=key)
    try:
        assert (await failed(caller, call)).kind == FailureKind.FAILURE_KIND_TIMEOUT
    finally:
        stuck.set()
    assert asyncio.get_running_loop().time() - begun_at <= 7 + 2 + 5 + 0.02
    assert (await memory_host.counters())["unrecorded_outcomes"] == 1


async def test_policy_is_asked_again_when_a_call_is_followed(
    memory_host: MemoryHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, run, caller, call, ticket = await begun(memory_host)
    with monkeypatch.context() as patched:
        patched.setattr(
            memory_host.pipeline._policy, "decide", lambda *_: Decision(allowed=False, listed=True), raising=True
        )
        assert (await failed(caller, await follow(caller, ticket))).kind == DENIED
    # Who follows it still does.
    await worker.result(run.call, b"1")
    assert (await caller.outcome(call)).HasField("result")


async def test_a_call_that_nobody_follows_asks_nobody(memory_host: MemoryHost) -> None:
    worker = await attach(memory_host)
    caller = await answering(memory_host, ELICIT)
    call, ticket = await detach(caller)
    run = await worker.next_invoke()
    assert list(run.context.answerable.methods) == [ELICIT]
    await ask(worker, run, question(1))
    await asked_of(caller, call)
    caller.cut()
    # The one that was asked is gone, and then nobody is there.
    assert (await reply(worker, run)).error.code == CALLER_GONE
    assert (await worker.ask(run.call, question(2))).error.code == CALLER_GONE
    silent = await memory_host.caller()
    await follow(silent, ticket)
    await silent.flush()
    assert (await worker.ask(run.call, question(3))).error.code == ReplyErrorCode.REPLY_ERROR_CODE_UNSUPPORTED_BY_CALLER
    other = await answering(memory_host, ELICIT)
    again = await follow(other, ticket)
    await other.flush()
    await ask(worker, run, question(4))
    request = await asked_of(other, again)
    await other.send(answer(again, request, {"action": "accept"}))
    assert (await reply(worker, run)).caller.result == b'{"action": "accept"}'
    # Questions are for one follower, and not sent again.
    last = await follow(other, ticket)
    await other.flush()
    assert other.bodies(last) == ["started"]


async def test_who_is_superseded_answers_nothing_more(memory_host: MemoryHost) -> None:
    worker = await attach(memory_host)
    first, second = await answering(memory_host, ELICIT), await answering(memory_host, ELICIT)
    call, ticket = await detach(first)
    run = await worker.next_invoke()
    await ask(worker, run, question(1))
    stale = await asked_of(first, call)
    again = await follow(second, ticket)
    assert (await reply(worker, run)).error.code == CALLER_GONE
    await ask(worker, run, question(2))
    request = await asked_of(second, again)
    # Both streams number their questions from one.
    assert request.request_id == stale.request_id
    await first.send(answer(call, stale, {"action": "decline"}))
    await first.flush()
    await second.send(answer(again, request, {"action": "accept"}))
    assert (await reply(worker, run)).caller.result == b'{"action": "accept"}'


async def test_a_detached_call_joins_another_and_its_ticket_is_good(memory_host: MemoryHost) -> None:
    worker, caller = await attach(memory_host), await memory_host.caller()
    original = await caller.start(idempotency_key="k")
    run = await worker.next_invoke()
    other = await memory_host.caller()
    joined = await other.start(detachable=True, idempotency_key="k")
    started = await other.started(joined)
    assert started.joined
    other.cut()
    await worker.progress(run.call, {})
    caller.cut()
    await quiet()
    # It goes on for the one that joined, which nobody follows.
    assert len(memory_host.pipeline.running) == 1
    await worker.result(run.call, b"1")
    third = await memory_host.caller()
    again = await follow(third, started.ticket)
    assert (await third.outcome(again)).result.json == b"1"
    assert third.bodies(again) == ["started", "progress", "outcome"]
    assert third.frames[again][0].started.joined
    assert caller.outcomes(original) == []


async def test_a_cancel_of_a_detached_call_leaves_it_to_those_that_joined(memory_host: MemoryHost) -> None:
    worker, caller = await attach(memory_host), await memory_host.caller()
    call, ticket = await detach(caller, idempotency_key="k")
    run = await worker.next_invoke()
    other = await memory_host.caller()
    joined = await other.start(idempotency_key="k")
    await quiet()
    await caller.cancel(call)
    assert (await failed(caller, call)).kind == CANCELLED
    # What is said to it now is said to nobody.
    await caller.cancel(call)
    await caller.flush()
    assert (await failed(caller, await follow(caller, ticket))).kind == CANCELLED
    await worker.result(run.call, b"1")
    assert (await other.outcome(joined)).result.json == b"1"


async def test_a_detached_call_replays_the_outcome_of_its_request(memory_host: MemoryHost) -> None:
    worker, caller = await attach(memory_host), await memory_host.caller()
    call = await caller.start(idempotency_key="k")
    await worker.result((await worker.next_invoke()).call, b"1")
    await caller.outcome(call)
    call, ticket = await detach(caller, idempotency_key="k")
    assert caller.frames[call][0].started.joined
    assert (await caller.outcome(call)).result.json == b"1"
    assert (await caller.outcome(await follow(caller, ticket))).result.json == b"1"


async def test_a_single_call_cannot_be_detached(memory_host: MemoryHost) -> None:
    worker = await attach(memory_host)
    started, outcome = await run_call(memory_host.pipeline, memory_host.principal, start_of("echo", detachable=True))
    assert outcome.failure.kind == UNSUPPORTED
    assert not started.HasField("ticket")
    assert worker.invoked == []


async def test_draining_takes_detached_calls_along_and_lets_them_be_followed(memory_host: MemoryHost) -> None:
    worker, run, caller, call, ticket = await begun(memory_host)
    memory_host.drain(30)
    assert (await caller.call(detachable=True)).failure.kind == UNAVAILABLE
    again = await follow(caller, ticket)
    await caller.next_of("superseded", call)
    for running in tuple(memory_host.pipeline.running):
        running.cancel(CancelReason.CANCEL_REASON_DRAIN)
    assert await worker.cancelled(run.call) == CancelReason.CANCEL_REASON_DRAIN
    await worker.fail(run.call, CANCELLED)
    assert (await failed(caller, again)).kind == CANCELLED


async def test_a_follower_that_takes_small_frames_is_told_so_and_another_gets_the_outcome(
    memory_host: MemoryHost,
) -> None:
    worker = await attach(memory_host, tool("echo", effects=READ))
    small = await answering(memory_host, max_frame_bytes=8 * KIB)
    call, ticket = await detach(small)
    large = b'"%s"' % (b"x" * 16 * KIB)
    await worker.result((await worker.next_invoke()).call, large)
    refused = await failed(small, call)
    assert (refused.kind, refused.side_effects) == (RESULT_TOO_LARGE, SideEffects.SIDE_EFFECTS_NONE)
    other = await memory_host.caller()
    assert (await other.outcome(await follow(other, ticket))).result.json == large


async def test_a_follower_that_does_not_read_is_sent_the_newest_and_the_call_goes_on(start_host: StartHost) -> None:
    host = await start_host(wire=WireLimits(stall_after=30))
    assert isinstance(host, MemoryHost)
    worker, run, caller, call, ticket = await begun(host, timeout=600)
    caller.pause()
    for number in range(2_000):
        await worker.send(progress(run.call, {"number": number, "text": "x" * KIB}))
    await worker.flush()
    undelivered = sum(stream.outbox.undelivered_bytes for stream in host.streams.open)
    assert undelivered < 300 * KIB
    assert host.detached.kept_bytes <= 1024 * KIB
    # Given up after a while, as any caller is; the call is not.
    await asyncio.sleep(60)
    assert len(host.pipeline.running) == 1
    other = await host.caller()
    again = await follow(other, ticket)
    await worker.result(run.call, b"1")
    await other.outcome(again)
    reports = [frame for frame in other.frames[again] if frame.HasField("progress")]
    assert len(reports) == 256
    assert sum(1 + frame.coalesced for frame in reports) == 2_000
    assert caller.outcomes(call) == []


async def test_a_call_can_be_followed_a_thousand_times(memory_host: MemoryHost) -> None:
    worker, run, caller, call, ticket = await begun(memory_host)
    await worker.progress(run.call, {})
    await worker.flush()
    other = await memory_host.caller()
    follows = [following(other, ticket) for _ in range(1_000)]
    await other.send(*follows[:500])
    await other.send(*follows[500:])
    await other.flush()
    await worker.result(run.call, b"1")
    await other.outcome(1_000)
    assert all(other.bodies(number) == ["started", "progress", "superseded"] for number in range(1, 1_000))
    assert other.bodies(1_000) == ["started", "progress", "outcome"]
    assert caller.bodies(call)[-1] == "superseded"
    assert len(memory_host.detached) == 1


@everywhere
async def test_guarantee_02_a_detached_call_has_one_outcome_however_often_it_is_followed(host: Host) -> None:
    worker, run, caller, call, ticket = await begun(host)
    peers = [await host.caller() for _ in range(3)]
    calls = [(peer, await follow(peer, ticket)) for _ in range(10) for peer in peers]
    await asyncio.gather(*(peer.flush() for peer in peers))
    await worker.result(run.call, b"1")
    await worker.result(run.call, b"2")
    await worker.flush()
    calls.append((caller, await follow(caller, ticket)))
    assert (await caller.outcome(calls[-1][1])).result.json == b"1"
    for peer in (caller, *peers):
        await peer.flush()
    ends = [[body for body in peer.bodies(number) if body in ("outcome", "superseded")] for peer, number in calls]
    assert all(len(end) == 1 for end in ends)
    told = {outcome.result.json for peer, number in calls for outcome in peer.outcomes(number)}
    assert told == {b"1"}
    assert caller.bodies(call).count("superseded") == 1
