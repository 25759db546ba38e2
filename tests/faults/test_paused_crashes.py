"""A sidecar that is killed around a pause: a ticket that was told is good after it, and none runs its tool twice."""

import asyncio
from pathlib import Path

import pytest

from sidecar._gen.pillion.v1.context_pb2 import Identity, Resume, TeardownScope
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind, Outcome
from sidecar._gen.pillion.v1.worker_pb2 import Reattach, RegisterTeardown
from tests.support import CallerPeer, Invocation, SidecarProcess, WorkerPeer, attach, on_unix, tool
from tests.support.machines import lacking, with_disk
from tests.support.pausing import pause, paused, resume, told

pytestmark = on_unix

TICKET_INVALID = FailureKind.FAILURE_KIND_TICKET_INVALID
ANN = Identity(tenant="acme", principal="ann")
STEPS = 8


async def test_guarantee_16_tickets_are_there_after_a_kill(sidecar_process: SidecarProcess) -> None:
    worker, caller = await attach(sidecar_process, concurrency=64), await sidecar_process.caller()
    kept = [
        (
            await paused(worker, caller, arguments={"n": number}, state=b"%d" % number, identity=ANN, session_id="s")
        ).ticket
        for number in range(20)
    ]
    keyed = (await paused(worker, caller, idempotency_key="k")).ticket
    await sidecar_process.kill()
    await sidecar_process.start()
    worker, caller = await attach(sidecar_process, concurrency=64), await sidecar_process.caller()
    assert (await caller.call(idempotency_key="k")).paused.ticket == keyed
    for number, ticket in enumerate(kept):
        call = await resume(caller, ticket, number, identity=ANN)
        run = await worker.next_invoke()
        assert told(run) == Resume(state=b"%d" % number, answer=b"%d" % number)
        assert run.invoke.arguments == b'{"n": %d}' % number
        assert (run.context.session_id, run.context.identity) == ("s", ANN)
        await worker.result(run.call, number)
        assert (await caller.outcome(call)).result.json == b"%d" % number
    assert (await caller.outcome(await resume(caller, kept[0], identity=ANN))).failure.kind == TICKET_INVALID


async def test_guarantee_16_tickets_of_the_next_pause_are_there_and_those_before_it_are_not(
    sidecar_process: SidecarProcess,
) -> None:
    worker, caller = await attach(sidecar_process), await sidecar_process.caller()
    first = (await paused(worker, caller)).ticket
    call = await resume(caller, first)
    await worker.send(pause((await worker.next_invoke()).call, state=b"2"))
    second = (await caller.outcome(call)).paused.ticket
    await sidecar_process.kill()
    await sidecar_process.start()
    worker, caller = await attach(sidecar_process), await sidecar_process.caller()
    assert (await caller.outcome(await resume(caller, first))).failure.kind == TICKET_INVALID
    await resume(caller, second)
    assert told(await worker.next_invoke()) == Resume(state=b"2")


@pytest.mark.parametrize("step", range(STEPS))
async def test_guarantee_09_a_kill_around_a_resume_runs_no_tool_twice(
    sidecar_process: SidecarProcess, step: int
) -> None:
    """At whatever moment the sidecar is killed, the ticket is good for one run in all."""
    worker, caller = await attach(sidecar_process), await sidecar_process.caller()
    ticket = (await paused(worker, caller, state=b"s")).ticket
    await resume(caller, ticket, "first")
    # From before anything was done to after the invoke: a claim takes some milliseconds.
    await asyncio.sleep(step * 0.002)
    await sidecar_process.kill()
    await worker.end()
    ran = resumed(worker)
    await sidecar_process.start()
    worker, caller = await attach(sidecar_process), await sidecar_process.caller()
    call = await resume(caller, ticket, "second")
    outcome, run = await either(worker, caller, call)
    if run is not None:
        ran += 1
        await worker.result(run.call)
        assert (await caller.outcome(call)).HasField("result")
    else:
        assert outcome is not None
        assert outcome.failure.kind == TICKET_INVALID
    assert ran <= 1
    assert (await caller.outcome(await resume(caller, ticket))).failure.kind == TICKET_INVALID


def resumed(worker: WorkerPeer) -> int:
    """How many runs a worker has heard of that go on from a pause."""
    return sum(told(run) is not None for run in worker.invoked)


async def either(worker: WorkerPeer, caller: CallerPeer, call: int) -> tuple[Outcome | None, Invocation | None]:
    """Whichever comes first: the outcome of a call, or its invoke."""
    ended, invoked = asyncio.ensure_future(caller.outcome(call)), asyncio.ensure_future(worker.next_invoke())
    await asyncio.wait((ended, invoked), return_when=asyncio.FIRST_COMPLETED)
    for waiting in (ended, invoked):
        waiting.cancel()
    await asyncio.gather(ended, invoked, return_exceptions=True)
    return (
        ended.result() if not ended.cancelled() else None,
        invoked.result() if not invoked.cancelled() else None,
    )


async def test_a_kill_while_a_pause_is_recorded_leaves_it_whole_or_not_there(sidecar_process: SidecarProcess) -> None:
    for delay in (0.0, 0.001, 0.003, 0.01):
        worker, caller = await attach(sidecar_process), await sidecar_process.caller()
        call = await caller.start("echo")
        await worker.send(pause((await worker.next_invoke()).call))
        await asyncio.sleep(delay)
        await sidecar_process.kill()
        await caller.end()
        outcomes = caller.outcomes(call)
        await sidecar_process.start()
        worker, caller = await attach(sidecar_process), await sidecar_process.caller()
        for outcome in outcomes:
            # What was told is true.
            await resume(caller, outcome.paused.ticket)
            assert told(await worker.next_invoke()) is not None
        await sidecar_process.kill()
        await sidecar_process.start()


async def test_a_claimed_ticket_is_used_up_by_a_kill(sidecar_process: SidecarProcess) -> None:
    worker, caller = await attach(sidecar_process), await sidecar_process.caller()
    ticket = (await paused(worker, caller)).ticket
    keyed = (await paused(worker, caller)).ticket
    await resume(caller, ticket)
    await worker.next_invoke()
    await resume(caller, keyed, idempotency_key="k")
    await worker.next_invoke()
    await sidecar_process.kill()
    await sidecar_process.start()
    worker, caller = await attach(sidecar_process, tool("echo")), await sidecar_process.caller()
    assert (await caller.outcome(await resume(caller, ticket))).failure.kind == TICKET_INVALID
    unknown = (await caller.outcome(await resume(caller, keyed, idempotency_key="k"))).failure
    assert unknown.kind == FailureKind.FAILURE_KIND_OUTCOME_UNKNOWN
    assert not worker.invoked


@pytest.mark.skipif(bool(lacking()), reason="there is no way to a disk of its own here")
async def test_a_full_disk_fails_the_pause_and_leaves_those_before_it(tmp_path: Path) -> None:
    sidecar_process = SidecarProcess(tmp_path, within=with_disk(tmp_path / "state", "8m"))
    await sidecar_process.start()
    try:
        worker, caller = await attach(sidecar_process), await sidecar_process.caller()
        tickets: list[str] = []
        failure = None
        while failure is None:
            call = await caller.start("echo", {"data": "x" * 500_000})
            await worker.send(pause((await worker.next_invoke()).call, state=b"x" * 60_000))
            outcome = await caller.outcome(call)
            if outcome.HasField("paused"):
                tickets.append(outcome.paused.ticket)
            else:
                failure = outcome.failure
        assert failure.kind == FailureKind.FAILURE_KIND_INTERNAL
        assert "could not record it" in failure.message
        refused, run = await either(worker, caller, call := await resume(caller, tickets[0], 1))
        if run is not None:
            await worker.result(run.call, "on")
            assert (await caller.outcome(call)).HasField("result")
        else:
            # Where even the claim finds no room, nothing ran, and the ticket is good.
            assert refused is not None
            assert refused.failure.kind == FailureKind.FAILURE_KIND_UNAVAILABLE
    finally:
        await sidecar_process.aclose()


async def test_what_a_paused_call_keeps_for_its_end_outlasts_a_kill(sidecar_process: SidecarProcess) -> None:
    worker, caller = await sidecar_process.worker(), await sidecar_process.caller()
    welcome = await worker.hello(tool("echo"))
    secret, ids, tickets = welcome.reattach_secret, dict[str, str](), dict[str, str]()
    for what in ("paused", "running", "used"):
        call = await caller.start()
        run = await worker.next_invoke()
        kept = RegisterTeardown(request_id=1, scope=TeardownScope.TEARDOWN_SCOPE_CALL, name=what)
        ids[what] = (await worker.register(run.call, kept)).teardown.registration_id
        if what != "running":
            await worker.send(pause(run.call))
            tickets[what] = (await caller.outcome(call)).paused.ticket
    await resume(caller, tickets["used"])
    await worker.next_invoke()
    await sidecar_process.kill()
    await sidecar_process.start()
    worker, caller = await sidecar_process.worker(), await sidecar_process.caller()
    reattach = Reattach(instance_id=welcome.instance_id, secret=secret, registrations=ids.values())
    again = await worker.hello(tool("echo"), reattach=reattach)
    assert again.instance_id == welcome.instance_id
    # That of a call that only ran is not known; that of one that had gone on ends with it.
    told_first: dict[str | None, Frame] = {}
    while told_first.keys() < {"release", "run_teardown"}:
        frame = await worker.next()
        told_first[frame.WhichOneof("body")] = frame
    assert told_first["release"].release.registration_id == ids["running"]
    assert told_first["run_teardown"].run_teardown.registration_id == ids["used"]
    await worker.send(done(ids["used"]))
    call = await resume(caller, tickets["paused"])
    await worker.result((await worker.next_invoke()).call, "on")
    assert (await worker.next_of("run_teardown")).run_teardown.registration_id == ids["paused"]
    await worker.send(done(ids["paused"]))
    assert (await caller.outcome(call)).result.json == b'"on"'


def done(registration: str) -> Frame:
    frame = Frame()
    frame.teardown_done.registration_id = registration
    return frame
