"""Calls that wait for an answer from outside, and go on with it."""

import asyncio
from typing import Any

import pytest

from sidecar._gen.pillion.v1.call_pb2 import ResumeTicket
from sidecar._gen.pillion.v1.context_pb2 import Identity, Resume, TeardownScope, Trace
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outcome_pb2 import Ask, FailureKind, Paused, SideEffects
from sidecar._gen.pillion.v1.worker_pb2 import RegisterTeardown
from sidecar.calls.call import Call
from sidecar.calls.limits import CallLimits
from sidecar.calls.outcome import PauseWanted
from sidecar.calls.tickets import digest_of
from sidecar.calls.tool import Tool
from sidecar.scope import Principal
from tests.support import READ, Host, MemoryHost, StartHost, attach, everywhere, quiet, tool
from tests.support.pausing import pause, paused, resume, resuming, told

CANCELLED = FailureKind.FAILURE_KIND_CANCELLED
INVALID_ARGUMENTS = FailureKind.FAILURE_KIND_INVALID_ARGUMENTS
INTERNAL = FailureKind.FAILURE_KIND_INTERNAL
OVERLOADED = FailureKind.FAILURE_KIND_OVERLOADED
TICKET_INVALID = FailureKind.FAILURE_KIND_TICKET_INVALID
TOO_LARGE = FailureKind.FAILURE_KIND_RESULT_TOO_LARGE
TIMEOUT = FailureKind.FAILURE_KIND_TIMEOUT
UNAVAILABLE = FailureKind.FAILURE_KIND_UNAVAILABLE
NONE, POSSIBLE = SideEffects.SIDE_EFFECTS_NONE, SideEffects.SIDE_EFFECTS_POSSIBLE
LIFE = 600.0


@everywhere
async def test_a_call_pauses_and_goes_on_with_the_answer(host: Host) -> None:
    worker, caller = await attach(host), await host.caller()
    call = await caller.start("echo", {"n": 1}, tool_call_id="mine", session_id="s", iteration=3)
    first = await worker.next_invoke()
    assert told(first) is None
    await worker.send(pause(first.call, "Go on?", kind="confirm", schema={"type": "boolean"}, state=b"half"))
    outcome = await caller.outcome(call)
    ticket = outcome.paused.ticket
    assert ticket.startswith("tic_")
    ask = Ask(kind="confirm", message="Go on?", schema=b'{"type": "boolean"}')
    assert outcome.paused == Paused(ask=ask, ticket=ticket)

    again = await resume(caller, ticket, True)
    second = await worker.next_invoke()
    assert second.invoke.tool == "echo"
    assert second.invoke.arguments == b'{"n": 1}'
    assert told(second) == Resume(state=b"half", answer=b"true")
    context = second.context
    assert (context.tool_call_id, context.session_id, context.iteration) == ("mine", "s", 3)
    assert context.execution_id != first.context.execution_id
    await worker.result(second.call, "done")
    started = await caller.started(again)
    assert (await caller.outcome(again)).result.json == b'"done"'
    assert (started.tool_call_id, started.execution_id) == ("mine", context.execution_id)
    assert caller.bodies(again) == ["started", "outcome"]


@everywhere
async def test_guarantee_09_a_ticket_is_good_for_one_run(host: Host) -> None:
    worker, caller = await attach(host), await host.caller()
    ticket = (await paused(worker, caller)).ticket
    first = await resume(caller, ticket)
    run = await worker.next_invoke()
    during = await caller.outcome(await resume(caller, ticket))
    await worker.result(run.call)
    await caller.outcome(first)
    after = await caller.outcome(await resume(caller, ticket))
    wrong = await caller.outcome(await resume(caller, "tic_nothing"))
    assert during.failure.kind == TICKET_INVALID
    assert during == after == wrong
    assert (wrong.failure.side_effects, wrong.failure.retryable) == (NONE, False)


@everywhere
async def test_guarantee_09_of_those_that_resume_at_once_one_runs_its_tool(host: Host) -> None:
    worker, caller = await attach(host), await host.caller()
    ticket = (await paused(worker, caller)).ticket
    calls = [caller.starting("", resume=resuming(ticket)) for _ in range(8)]
    await caller.send(*calls)
    run = await worker.next_invoke()
    await worker.result(run.call, "once")
    outcomes = [await caller.outcome(frame.call) for frame in calls]
    assert [outcome.result.json for outcome in outcomes if outcome.HasField("result")] == [b'"once"']
    assert {outcome.failure.kind for outcome in outcomes if outcome.HasField("failure")} == {TICKET_INVALID}
    assert len(worker.invoked) == 2


@everywhere
async def test_a_call_may_pause_again_by_another_ticket(host: Host) -> None:
    worker, caller = await attach(host), await host.caller()
    first = (await paused(worker, caller, state=b"1")).ticket
    call = await resume(caller, first, "one")
    await worker.send(pause((await worker.next_invoke()).call, state=b"2"))
    second = (await caller.outcome(call)).paused.ticket
    assert second != first
    assert (await caller.outcome(await resume(caller, first))).failure.kind == TICKET_INVALID
    call = await resume(caller, second, "two")
    run = await worker.next_invoke()
    assert told(run) == Resume(state=b"2", answer=b'"two"')
    await worker.result(run.call)
    assert (await caller.outcome(call)).HasField("result")


async def test_the_slot_of_a_paused_call_is_free(host: Host) -> None:
    worker, caller = await attach(host, concurrency=1), await host.caller()
    await paused(worker, caller)
    call = await caller.start()
    await worker.result((await worker.next_invoke()).call)
    assert (await caller.outcome(call)).HasField("result")


async def test_a_resume_that_never_reaches_its_tool_leaves_the_ticket_good(start_host: StartHost) -> None:
    host = await start_host(calls=CallLimits(worker_wait=1.0))
    worker, caller = await attach(host, concurrency=1), await host.caller()
    ticket = (await paused(worker, caller)).ticket
    blocking = await caller.start()
    blocker = await worker.next_invoke()
    assert (await caller.outcome(await resume(caller, ticket))).failure.kind == OVERLOADED
    waiting = await resume(caller, ticket)
    await caller.flush()
    await caller.cancel(waiting)
    assert (await caller.outcome(waiting)).failure.side_effects == NONE
    assert (await caller.outcome(await resume(caller, ticket, timeout=0.0))).failure.kind == TIMEOUT
    await worker.result(blocker.call)
    await caller.outcome(blocking)
    call = await resume(caller, ticket)
    await worker.result((await worker.next_invoke()).call, "at last")
    assert (await caller.outcome(call)).result.json == b'"at last"'


@pytest.mark.parametrize(
    "given",
    [
        {"name": "read"},
        {"arguments": {"n": 2}},
        {"identity": Identity(tenant="acme", principal="bob")},
        {"identity": Identity(principal="ann")},
        {"identity": Identity(tenant="acme")},
        {"identity": None},
        {"session_id": "other"},
    ],
    ids=str,
)
async def test_guarantee_08_a_ticket_opens_nothing_for_who_says_other_than_it_is_for(
    host: Host, given: dict[str, Any]
) -> None:
    worker, caller = await attach(host, tool("echo"), tool("read")), await host.caller()
    facts = {"identity": Identity(tenant="acme", principal="ann", conversation_id="c"), "session_id": "s"}
    ticket = (await paused(worker, caller, "echo", {"n": 1}, **facts)).ticket
    said = {"name": "", "arguments": None, "identity": facts["identity"], **given}
    name, arguments = said.pop("name"), said.pop("arguments")
    refused = await caller.call(name, arguments, resume=resuming(ticket), **said)
    wrong = await caller.call("", resume=resuming("tic_"), identity=facts["identity"])
    assert refused.failure.kind == TICKET_INVALID
    assert refused == wrong
    # The same, and less, is what it opens.
    call = await caller.start("echo", {"n": 1}, resume=resuming(ticket), session_id="s", identity=facts["identity"])
    run = await worker.next_invoke()
    assert run.context.identity == facts["identity"]
    await worker.result(run.call)
    assert (await caller.outcome(call)).HasField("result")


async def test_times_and_trace_are_those_of_the_resume(host: Host) -> None:
    worker, caller = await attach(host), await host.caller()
    trace = Trace(traceparent="00-" + "1" * 32 + "-" + "2" * 16 + "-01")
    ticket = (await paused(worker, caller, timeout=40.0, idle_timeout=7.0, trace=trace)).ticket
    await asyncio.sleep(3_600)
    first = await resume(caller, ticket, tool_call_id="another")
    run = await worker.next_invoke()
    assert (run.context.remaining.seconds, run.context.idle_timeout.seconds) == (40, 7)
    assert run.context.trace == trace
    await worker.send(pause(run.call))
    ticket = (await caller.outcome(first)).paused.ticket
    newer = Trace(traceparent="00-" + "3" * 32 + "-" + "4" * 16 + "-01")
    await resume(caller, ticket, timeout=20.0, idle_timeout=5.0, trace=newer)
    run = await worker.next_invoke()
    assert (run.context.remaining.seconds, run.context.idle_timeout.seconds) == (20, 5)
    assert run.context.trace == newer


async def test_a_ticket_expires_and_its_call_ends(start_host: StartHost) -> None:
    memory_host = await start_host(calls=CallLimits(pause_lifetime=LIFE))
    assert isinstance(memory_host, MemoryHost)
    worker, caller = await attach(memory_host), await memory_host.caller()
    ticket = (await paused(worker, caller, session_id="s")).ticket
    other = (await paused(worker, caller)).ticket
    await asyncio.sleep(LIFE / 2)
    call = await resume(caller, other)
    await worker.send(pause((await worker.next_invoke()).call))
    later = (await caller.outcome(call)).paused.ticket
    await asyncio.sleep(LIFE / 2 + 1)
    assert (await caller.outcome(await resume(caller, ticket, session_id="s"))).failure.kind == TICKET_INVALID
    assert memory_host.counts.snapshot()["expired_pauses"] == 1
    assert list(memory_host.pause_store.paused) == [digest_of(later)]
    assert len(memory_host.pipeline.teardowns.registry) == 0


async def test_a_ticket_that_expires_while_it_is_used_in_vain_ends_its_call(start_host: StartHost) -> None:
    memory_host = await start_host(calls=CallLimits(pause_lifetime=LIFE, worker_wait=60.0))
    assert isinstance(memory_host, MemoryHost)
    worker, caller = await attach(memory_host, concurrency=1), await memory_host.caller()
    ticket = (await paused(worker, caller, session_id="s")).ticket
    await asyncio.sleep(LIFE - 1)
    await caller.start()
    await worker.next_invoke()
    waiting = await resume(caller, ticket, session_id="s", timeout=30.0)
    await asyncio.sleep(2)
    await caller.cancel(waiting)
    assert (await caller.outcome(waiting)).failure.kind == CANCELLED
    await asyncio.sleep(1)
    assert memory_host.counts.snapshot()["expired_pauses"] == 1
    assert not memory_host.pause_store.paused
    assert len(memory_host.pipeline.teardowns.registry) == 0


async def test_what_a_call_keeps_for_its_end_lasts_until_the_end_of_its_last_pause(memory_host: MemoryHost) -> None:
    worker, caller = await attach(memory_host), await memory_host.caller()
    call = await caller.start()
    run = await worker.next_invoke()
    kept = RegisterTeardown(request_id=1, scope=TeardownScope.TEARDOWN_SCOPE_CALL)
    registration = (await worker.register(run.call, kept)).teardown.registration_id
    await worker.send(pause(run.call))
    ticket = (await caller.outcome(call)).paused.ticket
    assert not fired(worker)
    call = await resume(caller, ticket)
    run = await worker.next_invoke()
    again = (await worker.register(run.call, kept)).teardown
    assert (again.registration_id, again.reused) == (registration, True)
    await worker.result(run.call)
    assert (await worker.next_of("run_teardown")).run_teardown.registration_id == registration
    done = Frame()
    done.teardown_done.registration_id = registration
    assert not caller.outcomes(call)
    await worker.send(done)
    assert (await caller.outcome(call)).HasField("result")


async def test_what_a_call_keeps_for_its_end_fires_when_its_ticket_expires(start_host: StartHost) -> None:
    memory_host = await start_host(calls=CallLimits(pause_lifetime=LIFE))
    assert isinstance(memory_host, MemoryHost)
    worker, caller = await attach(memory_host), await memory_host.caller()
    call = await caller.start()
    run = await worker.next_invoke()
    kept = RegisterTeardown(request_id=1, scope=TeardownScope.TEARDOWN_SCOPE_CALL)
    registration = (await worker.register(run.call, kept)).teardown.registration_id
    await worker.send(pause(run.call))
    await caller.outcome(call)
    await asyncio.sleep(LIFE + 1)
    assert fired(worker) == [registration]


def fired(worker: Any) -> list[str]:
    return [frame.run_teardown.registration_id for frame in worker.frames[0] if frame.HasField("run_teardown")]


async def test_a_paused_call_keeps_its_session_busy(memory_host: MemoryHost) -> None:
    worker, caller = await attach(memory_host), await memory_host.caller()
    call = await caller.start(session_id="s", run_id="r")
    run = await worker.next_invoke()
    kept = RegisterTeardown(request_id=1, scope=TeardownScope.TEARDOWN_SCOPE_SESSION)
    registration = (await worker.register(run.call, kept)).teardown.registration_id
    await worker.send(pause(run.call))
    ticket = (await caller.outcome(call)).paused.ticket
    await asyncio.sleep(3_600)
    assert not fired(worker)
    call = await resume(caller, ticket)
    await worker.result((await worker.next_invoke()).call)
    await caller.outcome(call)
    await asyncio.sleep(3_600)
    assert fired(worker) == [registration]


async def test_an_idempotency_key_replays_the_pause(memory_host: MemoryHost) -> None:
    worker, caller = await attach(memory_host), await memory_host.caller()
    ticket = (await paused(worker, caller, idempotency_key="k")).ticket
    replayed = await caller.call("echo", idempotency_key="k")
    assert replayed.paused.ticket == ticket
    assert all(ticket.encode() not in (record.outcome or b"") for record in memory_host.store.records.values())
    call = await resume(caller, ticket)
    await worker.result((await worker.next_invoke()).call, "once")
    await caller.outcome(call)
    # The request is what it was: whoever sends it again learns of the same pause, whose ticket is used.
    assert (await caller.call("echo", idempotency_key="k")).paused.ticket == ticket
    assert len(worker.invoked) == 2


@everywhere
async def test_a_resume_with_a_key_joins_and_replays(host: Host) -> None:
    worker, caller = await attach(host), await host.caller()
    ticket = (await paused(worker, caller)).ticket
    first = await resume(caller, ticket, True, idempotency_key="k")
    run = await worker.next_invoke()
    joined = await resume(caller, ticket, True, idempotency_key="k")
    await caller.flush()
    await worker.result(run.call, "once")
    assert (await caller.outcome(first)).result.json == b'"once"'
    assert (await caller.outcome(joined)).result.json == b'"once"'
    replayed = await caller.outcome(await resume(caller, ticket, True, idempotency_key="k"))
    assert replayed.result.json == b'"once"'
    conflict = await caller.outcome(await resume(caller, ticket, False, idempotency_key="k"))
    assert conflict.failure.kind == FailureKind.FAILURE_KIND_IDEMPOTENCY_CONFLICT
    used = await caller.outcome(await resume(caller, ticket, True, idempotency_key="another"))
    assert used.failure.kind == TICKET_INVALID
    assert (await caller.outcome(await resume(caller, ticket, True))).failure == used.failure
    assert len(worker.invoked) == 2


async def test_a_subject_has_so_many_paused_calls_and_no_more(start_host: StartHost) -> None:
    host = await start_host(calls=CallLimits(paused_per_subject=2))
    worker, caller = await attach(host, tool("echo"), tool("read", effects=READ)), await host.caller()
    await paused(worker, caller)
    ticket = (await paused(worker, caller)).ticket
    for name, effects in (("echo", POSSIBLE), ("read", NONE)):
        call = await caller.start(name)
        await worker.send(pause((await worker.next_invoke()).call))
        failure = (await caller.outcome(call)).failure
        assert (failure.kind, failure.side_effects) == (OVERLOADED, effects)
    await paused(worker, caller, identity=Identity(principal="ann"))
    # One that goes on and pauses again takes the place that it had.
    call = await resume(caller, ticket)
    await worker.send(pause((await worker.next_invoke()).call))
    assert (await caller.outcome(call)).HasField("paused")


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ({"state": b"x" * 65_537}, TOO_LARGE),
        ({"kind": ""}, INTERNAL),
        ({"kind": "k" * 129}, INTERNAL),
        ({"message": ""}, INTERNAL),
        ({"message": "m" * 4_097}, INTERNAL),
        ({"schema": b"{"}, INTERNAL),
        ({"schema": {"enum": ["x" * 40_000]}}, INTERNAL),
    ],
    ids=["state", "no kind", "kind", "no message", "message", "schema", "long schema"],
)
async def test_a_pause_beyond_its_bounds_fails_its_call(
    memory_host: MemoryHost, said: dict[str, Any], kind: "FailureKind.ValueType"
) -> None:
    worker, caller = await attach(memory_host), await memory_host.caller()
    call = await caller.start()
    await worker.send(pause((await worker.next_invoke()).call, **said))
    failure = (await caller.outcome(call)).failure
    assert (failure.kind, failure.side_effects) == (kind, POSSIBLE)
    assert not memory_host.pause_store.paused


async def test_a_pause_of_the_largest_state_is_kept(host: Host) -> None:
    worker, caller = await attach(host), await host.caller()
    ticket = (await paused(worker, caller, state=b"x" * 65_536)).ticket
    await resume(caller, ticket)
    run = await worker.next_invoke()
    assert run.context.resume.state == b"x" * 65_536


async def test_a_worker_names_no_ticket(host: Host) -> None:
    worker, caller = await attach(host), await host.caller()
    call = await caller.start()
    frame = pause((await worker.next_invoke()).call)
    frame.outcome.paused.ticket = "tic_mine"
    await worker.send(frame)
    assert (await caller.outcome(call)).paused.ticket != "tic_mine"


@pytest.mark.parametrize("answer", [b"{", b"", b"null", b'{"a":1,"a":2}'])
async def test_an_answer_is_json_or_none(host: Host, answer: bytes) -> None:
    worker, caller = await attach(host), await host.caller()
    ticket = (await paused(worker, caller)).ticket
    call = await caller.start("", resume=ResumeTicket(ticket=ticket, answer=answer))
    if answer in (b"", b"null"):
        assert told(await worker.next_invoke()) == Resume(answer=answer)
    else:
        assert (await caller.outcome(call)).failure.kind == INVALID_ARGUMENTS


async def test_where_the_store_is_away_nothing_pauses_and_nothing_is_resumed(memory_host: MemoryHost) -> None:
    worker, caller = await attach(memory_host), await memory_host.caller()
    ticket = (await paused(worker, caller)).ticket
    memory_host.pause_store.broken = True
    for asked in (ticket, "tic_nothing"):
        failure = (await caller.outcome(await resume(caller, asked))).failure
        assert (failure.kind, failure.retryable, failure.side_effects) == (UNAVAILABLE, True, NONE)
    call = await caller.start()
    await worker.send(pause((await worker.next_invoke()).call))
    failure = (await caller.outcome(call)).failure
    assert (failure.kind, failure.side_effects) == (INTERNAL, POSSIBLE)
    memory_host.pause_store.broken = False
    await resume(caller, ticket)
    await worker.next_invoke()


async def test_a_ticket_that_cannot_be_freed_keeps_its_session_no_longer(memory_host: MemoryHost) -> None:
    worker, caller = await attach(memory_host, concurrency=1), await memory_host.caller()
    ticket = (await paused(worker, caller, session_id="s")).ticket
    await caller.start()
    await worker.next_invoke()
    waiting = await resume(caller, ticket, session_id="s")
    await caller.flush()
    await quiet()
    memory_host.pause_store.broken = True
    await caller.cancel(waiting)
    assert (await caller.outcome(waiting)).failure.kind == CANCELLED
    await quiet()
    assert memory_host.counts.snapshot()["unrecorded_pauses"] == 1
    assert len(memory_host.pipeline.teardowns.registry) == 0


async def test_a_cancel_while_a_call_is_resumed_ends_it_and_uses_its_ticket_up(memory_host: MemoryHost) -> None:
    worker, caller = await attach(memory_host), await memory_host.caller()
    ticket = (await paused(worker, caller)).ticket
    call = await resume(caller, ticket)
    run = await worker.next_invoke()
    await caller.cancel(call)
    await worker.cancelled(run.call)
    await worker.result(run.call)
    assert (await caller.outcome(call)).failure.kind == FailureKind.FAILURE_KIND_CANCELLED
    assert (await caller.outcome(await resume(caller, ticket))).failure.kind == TICKET_INVALID
    await quiet()
    assert not memory_host.pause_store.paused


async def test_guarantee_08_a_ticket_opens_nothing_for_another_caller(memory_host: MemoryHost) -> None:
    worker, caller = await attach(memory_host), await memory_host.caller()
    ann = Identity(tenant="acme", principal="ann")
    ticket = (await paused(worker, caller, identity=ann, idempotency_key="k")).ticket
    mine = memory_host.principal
    memory_host.principal = Principal("anyone", authenticated=False)
    thief = await memory_host.caller()
    for key in (None, "k"):
        stolen = await thief.outcome(await resume(thief, ticket, identity=ann, idempotency_key=key))
        wrong = await thief.outcome(await resume(thief, ticket[:-1], identity=ann, idempotency_key=key))
        assert stolen.failure.kind == TICKET_INVALID
        assert stolen == wrong
    memory_host.principal = mine
    await resume(caller, ticket, identity=ann)
    await worker.next_invoke()
    assert len(worker.invoked) == 2


async def test_guarantee_02_a_pause_that_is_not_recorded_in_time_is_one_outcome(memory_host: MemoryHost) -> None:
    worker, caller = await attach(memory_host), await memory_host.caller()
    store, stuck = memory_host.pause_store, asyncio.Event()
    keep = store.keep

    async def keeps_late(*given: Any, **named: Any) -> bool:
        await stuck.wait()
        return await keep(*given, **named)

    store.keep = keeps_late  # type: ignore[method-assign]
    call = await caller.start(session_id="s")
    run = await worker.next_invoke()
    began = memory_host.pipeline.loop.time()
    await worker.send(pause(run.call))
    await caller.cancel(call)
    outcome = await caller.outcome(call)
    assert (outcome.failure.kind, outcome.failure.side_effects) == (INTERNAL, POSSIBLE)
    assert memory_host.pipeline.loop.time() - began == pytest.approx(5.0, abs=0.1)
    stuck.set()
    await quiet()
    assert caller.outcomes(call) == [outcome]
    # Nobody has its ticket, so nothing is kept for it.
    assert not store.paused
    assert len(memory_host.pipeline.teardowns.registry) == 0


async def test_a_next_pause_that_is_not_recorded_in_time_ends_the_call(memory_host: MemoryHost) -> None:
    worker, caller = await attach(memory_host, tool("echo", wants={"document": "text"})), await memory_host.caller()
    asked: list[str] = []

    class Gate:
        def supply(self, _call: Call, _tool: Tool) -> None:
            asked.append("document")
            if len(asked) == 2:
                raise PauseWanted("consent", "May it?")

        def placed(self, _call: Call, _assignment: object) -> None:
            pass

    memory_host.pipeline.suppliers["wants"] = Gate()
    store, stuck = memory_host.pause_store, asyncio.Event()
    call = await caller.start(session_id="s")
    run = await worker.next_invoke()
    registration = (await worker.registered(run.call, TeardownScope.TEARDOWN_SCOPE_CALL)).registration_id
    await worker.send(pause(run.call))
    ticket = (await caller.outcome(call)).paused.ticket
    keep = store.keep

    async def keeps_late(*given: Any, **named: Any) -> bool:
        await stuck.wait()
        return await keep(*given, **named)

    store.keep = keeps_late  # type: ignore[method-assign]
    again = await resume(caller, ticket, session_id="s")
    assert (await caller.outcome(again)).failure.kind == INTERNAL
    stuck.set()
    # The ticket that it had is used up for one that nobody has.
    assert (await worker.next_teardown()).registration_id == registration
    await worker.torn_down(registration)
    await quiet()
    assert not store.paused
    assert len(memory_host.pipeline.teardowns.registry) == 0


async def test_a_resume_whose_claim_fails_inside_the_sidecar_is_refused_at_once(memory_host: MemoryHost) -> None:
    worker, caller = await attach(memory_host), await memory_host.caller()
    ticket = (await paused(worker, caller)).ticket

    async def fails(ticket_digest: bytes, *, remember: bool) -> bool:
        raise RuntimeError(f"It was broken on purpose, {ticket_digest!r} {remember}.")

    memory_host.pause_store.claim = fails  # type: ignore[method-assign]
    began = memory_host.pipeline.loop.time()
    failure = (await caller.outcome(await resume(caller, ticket))).failure
    assert (failure.kind, failure.side_effects) == (INTERNAL, NONE)
    assert memory_host.pipeline.loop.time() - began < 1


async def test_guarantee_02_a_resume_whose_claim_hangs_is_one_outcome(memory_host: MemoryHost) -> None:
    worker, caller = await attach(memory_host), await memory_host.caller()
    ticket = (await paused(worker, caller)).ticket
    store, stuck = memory_host.pause_store, asyncio.Event()
    claim = store.claim

    async def claims_late(ticket_digest: bytes, *, remember: bool) -> bool:
        await stuck.wait()
        return await claim(ticket_digest, remember=remember)

    store.claim = claims_late  # type: ignore[method-assign]
    call = await resume(caller, ticket, timeout=3.0)
    assert (await caller.outcome(call)).failure.kind == TIMEOUT
    stuck.set()
    await quiet()
    assert len(caller.outcomes(call)) == 1
    # It came to nothing, so the ticket is good.
    await resume(caller, ticket)
    await worker.next_invoke()
    assert len(worker.invoked) == 2


async def test_a_call_goes_on_where_what_it_had_opened_is_kept(memory_host: MemoryHost) -> None:
    first, caller = await attach(memory_host, concurrency=1), await memory_host.caller()
    call = await caller.start()
    run = await first.next_invoke()
    await first.register(run.call, RegisterTeardown(request_id=1, scope=TeardownScope.TEARDOWN_SCOPE_CALL))
    await first.send(pause(run.call))
    ticket = (await caller.outcome(call)).paused.ticket
    blocking = await caller.start()
    blocker = await first.next_invoke()
    second = await attach(memory_host, concurrency=10)
    failure = (await caller.outcome(await resume(caller, ticket))).failure
    assert (failure.kind, failure.retryable) == (OVERLOADED, True)
    await first.result(blocker.call)
    await caller.outcome(blocking)
    call = await resume(caller, ticket)
    await first.send(pause((await first.next_invoke()).call))
    ticket = (await caller.outcome(call)).paused.ticket
    first.cut()
    await quiet()
    failure = (await caller.outcome(await resume(caller, ticket))).failure
    assert (failure.kind, failure.retryable) == (UNAVAILABLE, True)
    # Once it cannot come back, what it kept is gone, and any other does.
    await asyncio.sleep(120)
    await resume(caller, ticket)
    assert told(await second.next_invoke()) is not None
    assert len(second.invoked) == 1
