"""Workers that hang, stop reading or leave, and tools that change: calls are decided, and others take over."""

import asyncio
from collections.abc import Callable

import grpc

from sidecar._gen.pillion.v1.context_pb2 import CancelReason
from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind, Outcome, SideEffects
from sidecar._gen.pillion.v1.tool_pb2 import ToolDescriptor
from tests.faults.conftest import Inside
from tests.faults.running import running
from tests.support import (
    READ,
    UNSAFE,
    CallerPeer,
    CallLimits,
    Host,
    Invocation,
    StartHost,
    WireLimits,
    WorkerLimits,
    WorkerPeer,
    attach,
    on_sockets,
    tool,
    tools_changed,
)

KIB = 1024

CANCELLED = FailureKind.FAILURE_KIND_CANCELLED
INVALID_ARGUMENTS = FailureKind.FAILURE_KIND_INVALID_ARGUMENTS
OUTCOME_UNKNOWN = FailureKind.FAILURE_KIND_OUTCOME_UNKNOWN
UNAVAILABLE = FailureKind.FAILURE_KIND_UNAVAILABLE
NONE, POSSIBLE = SideEffects.SIDE_EFFECTS_NONE, SideEffects.SIDE_EFFECTS_POSSIBLE
DRAIN = CancelReason.CANCEL_REASON_DRAIN

TOOLS = (tool("echo", effects=UNSAFE), tool("read", effects=READ))
OK = grpc.StatusCode.OK


class Serving:
    """A worker that answers what it is asked, until it is stopped."""

    def __init__(self, worker: WorkerPeer, answer: Callable[[Invocation], object]) -> None:
        self.worker = worker
        self._answer = answer
        self._task = asyncio.ensure_future(self._serve())

    async def _serve(self) -> None:
        while True:
            run = await self.worker.next_invoke()
            await self.worker.result(run.call, self._answer(run))

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


def saying(value: object) -> Callable[[Invocation], object]:
    return lambda _: value


async def is_decided_soon(caller: CallerPeer, *calls: int) -> list[Outcome]:
    """The outcomes of these calls, which have to be there within a second."""
    async with asyncio.timeout(1):
        return [await caller.outcome(call) for call in calls]


# --- not reading


@on_sockets
async def test_a_worker_that_stops_reading_is_passed_over_and_then_given_up(
    start_host: StartHost, inside: Inside
) -> None:
    limits = WireLimits(undelivered_soft=256 * KIB, stall_after=1.5)
    host = await start_host(wire=limits)
    stuck, caller = await attach(host, *TOOLS, concurrency=1_000), await host.caller()
    stuck.pause()
    large = {"text": "x" * 64 * KIB}
    calls = []
    while not any(stream.outbox.congested for stream in inside.streams.open):
        calls.append(await caller.start("echo", large))
        await caller.flush()
    well = await attach(host, *TOOLS, concurrency=2)
    held = await running(caller, well, "read")
    serving = Serving(well, saying("well"))
    # The other is half full and it is not by far, and yet it is given nothing more.
    for _ in range(5):
        assert (await caller.call("echo", large)).result.json == b'"well"'
    assert not inside.counts.get("stalled_streams"), "they were not kept waiting"
    assert inside.undelivered <= limits.undelivered_soft + 96 * KIB
    outcomes = [await caller.outcome(call) for call in calls]
    assert inside.counts["stalled_streams"] == 1
    # What was handed to gRPC may have run; the rest was not, and is run by the other.
    unknown = [outcome for outcome in outcomes if outcome.failure.kind == OUTCOME_UNKNOWN]
    assert all(outcome.failure.side_effects == POSSIBLE for outcome in unknown)
    assert all(outcome.result.json == b'"well"' for outcome in outcomes if outcome not in unknown)
    assert 0 < len(unknown) < len(calls)
    stuck.resume()
    assert await stuck.end() == (grpc.StatusCode.ABORTED, "The worker stopped reading.")
    assert len(stuck.invoked) == len(unknown), "nothing runs twice"
    await serving.stop()
    await held.ends_well()


# --- not answering


@on_sockets
async def test_a_worker_that_answers_no_ping_is_given_up(start_host: StartHost, inside: Inside) -> None:
    host = await start_host(workers=WorkerLimits(ping_interval=0.1))
    hung, other, caller = (
        await attach(host, *TOOLS),
        await attach(host, tool("other"), worker="other"),
        await host.caller(),
    )
    hung.pongs = False
    unsafe, read = await running(caller, hung), await running(caller, hung, "read")
    bystander = await running(await host.caller(), other, "other")
    spare = await attach(host, *TOOLS)
    serving = Serving(spare, saying("spare"))
    assert await hung.end() == (grpc.StatusCode.ABORTED, "The worker answered none of the last pings.")
    lost, again = await is_decided_soon(caller, unsafe.call, read.call)
    assert (lost.failure.kind, lost.failure.side_effects) == (OUTCOME_UNKNOWN, POSSIBLE)
    assert again.result.json == b'"spare"'
    assert (await caller.call("echo")).result.json == b'"spare"'
    assert inside.counts["quarantined_instances"] == inside.counts["unresponsive_peers"] == 1
    await bystander.ends_well()
    await serving.stop()


# --- leaving


@on_sockets
async def test_a_worker_that_says_goodbye_finishes_what_it_runs(host: Host) -> None:
    leaving, staying, caller = await attach(host, *TOOLS), await attach(host, *TOOLS), await host.caller()
    first, second = await running(caller, leaving), await running(caller, staying)
    third = await running(caller, leaving)
    await leaving.goodbye()
    await leaving.flush()
    for _ in range(3):
        await (await running(caller, staying)).ends_well()
    await leaving.goodbye()
    await first.ends_well()
    assert not leaving.is_over
    await third.ends_well()
    assert (await leaving.end()).code is OK
    await second.ends_well()


@on_sockets
async def test_a_worker_that_says_goodbye_and_stays_is_given_up(start_host: StartHost) -> None:
    host = await start_host(workers=WorkerLimits(drain=0.1), calls=CallLimits(cancel_grace=0.5))
    worker, caller = await attach(host, *TOOLS), await host.caller()
    heeding, ignoring = await running(caller, worker), await running(caller, worker, "read")
    await worker.goodbye()
    for call in (heeding, ignoring):
        assert await worker.cancelled(call.run) == DRAIN
    await worker.fail(heeding.run, CANCELLED, NONE)
    assert (await worker.end()).code is OK
    for outcome in await is_decided_soon(caller, heeding.call, ignoring.call):
        assert (outcome.failure.kind, outcome.failure.side_effects) == (CANCELLED, NONE)


@on_sockets
async def test_a_worker_that_half_closes_is_lost(host: Host) -> None:
    leaving, caller = await attach(host, *TOOLS), await host.caller()
    unsafe, read = await running(caller, leaving), await running(caller, leaving, "read")
    staying = await attach(host, *TOOLS)
    serving = Serving(staying, saying("staying"))
    await leaving.half_close()
    lost, again = await is_decided_soon(caller, unsafe.call, read.call)
    assert lost.failure.kind == OUTCOME_UNKNOWN
    assert again.result.json == b'"staying"'
    assert (await leaving.end()).code is OK
    await serving.stop()


@on_sockets
async def test_a_worker_that_leaves_while_calls_wait_leaves_them_to_another(host: Host) -> None:
    leaving, caller = await attach(host, *TOOLS, concurrency=1), await host.caller()
    first = await running(caller, leaving)
    waiting = [await caller.start("echo") for _ in range(3)]
    await caller.flush()
    leaving.cut()
    assert (await caller.outcome(first.call)).failure.kind == OUTCOME_UNKNOWN
    serving = Serving(await attach(host, *TOOLS, concurrency=1), saying("well"))
    assert [(await caller.outcome(call)).result.json for call in waiting] == [b'"well"'] * 3
    await serving.stop()


# --- other tools


class Load:
    """A caller that keeps so many calls of a tool in flight, until it is stopped."""

    def __init__(self, caller: CallerPeer, name: str, arguments: object, at_once: int = 8) -> None:
        self.outcomes: list[tuple[int, Outcome]] = []
        """The generation that each call was pinned to, and how it ended."""
        self._caller, self._name, self._arguments = caller, name, arguments
        self._is_over = False
        self._ended = asyncio.Event()
        self._tasks = [asyncio.ensure_future(self._go_on()) for _ in range(at_once)]

    async def _go_on(self) -> None:
        while not self._is_over:
            call = await self._caller.start(self._name, self._arguments)
            generation = (await self._caller.started(call)).generation
            self.outcomes.append((generation, await self._caller.outcome(call)))
            self._ended.set()

    async def more(self, number: int) -> None:
        """Returns once so many more calls have ended."""
        wanted = len(self.outcomes) + number
        while len(self.outcomes) < wanted:
            self._ended.clear()
            await self._ended.wait()
            assert not any(task.done() for task in self._tasks)

    async def stop(self) -> None:
        self._is_over = True
        await asyncio.gather(*self._tasks)


@on_sockets
async def test_tools_change_under_load(without_debug: None, start_host: StartHost) -> None:
    host = await start_host(calls=CallLimits(worker_wait=0.05))
    worker = await attach(host, *TOOLS)
    serving = Serving(worker, lambda run: run.invoke.tool)
    kept = Load(await host.caller(), "echo", {"text": "x"})
    changing = Load(await host.caller(), "read", {"text": "x"}, at_once=4)
    for tools in (TOOLS[:1], TOOLS, TOOLS[:1], TOOLS):
        await worker.send(tools_changed(*tools))
        await worker.next_of("welcome")
        # At least one more than were running when the tools changed.
        await changing.more(5)
        await kept.more(50)
    await kept.stop()
    await changing.stop()
    assert {outcome.result.json for _, outcome in kept.outcomes} == {b'"echo"'}
    ended = {outcome.failure.kind or outcome.result.json for _, outcome in changing.outcomes}
    assert ended == {b'"read"', UNAVAILABLE}
    await serving.stop()


def version(number: int) -> ToolDescriptor:
    """The first version takes anything; the second wants a text."""
    return tool("echo", input_schema={"type": "object"} if number == 1 else {"required": ["text"]})


@on_sockets
async def test_another_version_takes_over_under_load(without_debug: None, host: Host) -> None:
    old = [await attach(host, version(1), concurrency=16) for _ in range(2)]
    serving = [Serving(worker, saying(1)) for worker in old]
    with_text = Load(await host.caller(), "echo", {"text": "x"})
    without = Load(await host.caller(), "echo", {})
    await with_text.more(50)
    new = await host.worker()
    welcome = await new.hello(version(2), concurrency=16)
    serving.append(Serving(new, saying(2)))
    for worker in old:
        await worker.next_of("drain")
        await worker.goodbye()
    await with_text.more(50)
    for worker in old:
        assert (await worker.end()).code is OK
    await with_text.more(50)
    await with_text.stop()
    await without.stop()
    for serve in serving:
        await serve.stop()

    for generation, outcome in with_text.outcomes:
        assert outcome.result.json == (b"1" if generation < welcome.generation else b"2")
    for generation, outcome in without.outcomes:
        if generation < welcome.generation:
            assert outcome.result.json == b"1"
        else:
            assert outcome.failure.kind == INVALID_ARGUMENTS
    assert {outcome.result.json for _, outcome in with_text.outcomes} == {b"1", b"2"}
    # Nobody is handed what was looked at by the schema of another version.
    assert all(run.invoke.arguments != b"{}" and run.context.generation >= welcome.generation for run in new.invoked)
    assert all(run.context.generation < welcome.generation for worker in old for run in worker.invoked)
