"""The tables of docs/protocol.md that say how calls fail and what streams are told, driven row by row."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sidecar._gen.pillion.v1.bus_pb2 import KvGet
from sidecar._gen.pillion.v1.call_pb2 import ResumeTicket, StreamErrorReason
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outbound_pb2 import OutboundRequest
from sidecar._gen.pillion.v1.outcome_pb2 import Failure, FailureKind, SideEffects
from sidecar._gen.pillion.v1.tool_pb2 import CredentialNeed, Effects, ToolDescriptor
from sidecar._gen.pillion.v1.worker_pb2 import Reattach
from sidecar.calls.call import Call
from sidecar.calls.ports import IdempotencyRecord
from sidecar.policy import Decision
from sidecar.scope import Principal, Scope, scope_of
from tests.support import (
    UNSAFE,
    CallerPeer,
    CallLimits,
    Invocation,
    MemoryHost,
    StartHost,
    WireLimits,
    WorkerLimits,
    WorkerPeer,
    quiet,
    text,
    tool,
)
from tests.support.documents import table

PROTOCOL = "docs/protocol.md"
KIB, MIB = 1024, 1024 * 1024
KEY = "k"


class Stage:
    """A sidecar, a worker and a caller for one row, whose tool has the row's effects."""

    host: MemoryHost
    worker: WorkerPeer
    caller: CallerPeer

    def __init__(self, start_host: StartHost, monkeypatch: pytest.MonkeyPatch, effects: str) -> None:
        self.start_host = start_host
        self.patch = monkeypatch
        self.effects = Effects.Value(f"EFFECTS_{effects}")
        self.workers: list[WorkerPeer] = []
        self.was_run: bool | None = None
        """Whether the tool ran for the row's call, where the call itself does not tell."""

    async def open(
        self,
        *,
        calls: CallLimits | None = None,
        wire: WireLimits | None = None,
        workers: WorkerLimits | None = None,
    ) -> None:
        """A sidecar and a caller."""
        host = await self.start_host(calls=calls, wire=wire, workers=workers)
        assert isinstance(host, MemoryHost)
        self.host = host
        self.caller = await host.caller()

    async def attach(
        self, *, concurrency: int | None = None, hello: dict[str, Any] | None = None, **fields: Any
    ) -> None:
        """A further worker with the tool."""
        self.worker = await self.host.worker()
        self.workers.append(self.worker)
        await self.worker.hello(self.tool(**fields), concurrency=concurrency, **(hello or {}))

    def tool(self, **fields: Any) -> ToolDescriptor:
        return tool("echo", effects=self.effects, **fields)

    async def running(self, **fields: Any) -> tuple[int, Invocation]:
        """A call that was invoked."""
        call = await self.caller.start(**fields)
        return call, await self.worker.next_invoke()

    async def failed(self, call: int) -> Failure:
        """The failure that a call ended in."""
        outcome = await self.caller.outcome(call)
        assert outcome.HasField("failure"), outcome
        started = self.caller.frames[call][0].started
        if self.was_run is None:
            self.was_run = self._ran(started.execution_id)
        return outcome.failure

    async def fails(self, *arguments: Any, **fields: Any) -> Failure:
        """The failure of a new call."""
        return await self.failed(await self.caller.start(*arguments, **fields))

    async def unseen_failure(self, lose: Callable[[], None]) -> Failure:
        """The failure of a call whose caller is gone and cannot be told."""
        ends: asyncio.Queue[tuple[Call, Frame]] = asyncio.Queue()
        finished = self.host.pipeline.finished

        def spy(call: Call, frame: Frame) -> None:
            copy = Frame()
            copy.CopyFrom(frame)
            ends.put_nowait((call, copy))
            finished(call, frame)

        self.patch.setattr(self.host.pipeline, "finished", spy)
        lose()
        call, frame = await ends.get()
        self.was_run = self._ran(call.execution_id)
        return frame.outcome.failure

    def _ran(self, execution: str) -> bool:
        return any(
            invocation.context.execution_id == execution for worker in self.workers for invocation in worker.invoked
        )


Scenario = Callable[[Stage], Awaitable[Failure]]
SCENARIOS: dict[tuple[str, str], Scenario] = {}


def happens(cause: str, invoked: str) -> Callable[[Scenario], Scenario]:
    """Says which rows of the table a scenario drives."""

    def keep(scenario: Scenario) -> Scenario:
        assert (cause, invoked) not in SCENARIOS
        SCENARIOS[cause, invoked] = scenario
        return scenario

    return keep


# --- in the gates


def at_the_gates(cause: str, *arguments: Any, **fields: Any) -> None:
    """A cause that is in the `Start` itself."""

    @happens(cause, "no")
    async def refused(stage: Stage) -> Failure:
        await stage.open()
        await stage.attach(input_schema={"type": "object", "properties": {"count": {"type": "integer"}}})
        return await stage.fails(*arguments, **fields)


at_the_gates("the Start is over the largest frame", "echo", {"text": "x" * MIB})
at_the_gates("no tool is named", "")
at_the_gates("the call is to be detachable", detachable=True)
at_the_gates("the call resumes another", resume=ResumeTicket(ticket="t"))
at_the_gates("the call is on behalf of another sidecar's caller", on_behalf_of="ana")
at_the_gates("an id is over 256 bytes", run_id="r" * 257)
at_the_gates("the idempotency key is empty", idempotency_key="")
at_the_gates("the idle timeout is not positive", idle_timeout=0)
at_the_gates("the arguments are not strict JSON", "echo", b'{"a": 1, "a": 2}')
at_the_gates("there is no such tool", "missing")
at_the_gates("the timeout is not positive", timeout=0)
at_the_gates("the arguments do not fit the schema", "echo", {"count": "many"})


@happens("the call follows another", "no")
async def _(stage: Stage) -> Failure:
    await stage.open()
    frame = Frame(call=1)
    frame.follow.ticket = "t"
    await stage.caller.send(frame)
    return await stage.failed(1)


@happens("the call has been here before", "no")
async def _(stage: Stage) -> Failure:
    await stage.open()
    await stage.attach()
    return await stage.fails(hops=["another", stage.host.pipeline.ids.process])


@happens("the sidecar is stopping", "no")
async def _(stage: Stage) -> Failure:
    await stage.open()
    await stage.attach()
    stage.host.drain(30)
    return await stage.fails()


@happens("the stream has too many calls in flight", "no")
async def _(stage: Stage) -> Failure:
    await stage.open(calls=CallLimits(in_flight_per_stream=1))
    await stage.attach()
    await stage.running()
    return await stage.fails()


@happens("too much of the stream is unread", "no")
async def _(stage: Stage) -> Failure:
    await stage.open(wire=WireLimits(undelivered_soft=10 * KIB))
    await stage.attach()
    runs = [(await stage.running())[1] for _ in range(6)]
    stage.caller.pause()
    for run in runs:
        await stage.worker.result(run.call, "x" * 4 * KIB)
    await quiet()
    call = await stage.caller.start()
    await quiet()
    stage.caller.resume()
    return await stage.failed(call)


class _Policy:
    def __init__(self, decision: Decision | None) -> None:
        self._decision = decision

    def decide(self, principal: Principal, scope: Scope, tool: str) -> Decision:
        if self._decision is None:
            raise RuntimeError("policy cannot be reached")
        return self._decision


def by_policy(cause: str, decision: Decision | None) -> None:
    @happens(cause, "no")
    async def refused(stage: Stage) -> Failure:
        await stage.open()
        await stage.attach()
        stage.patch.setattr(stage.host.pipeline, "_policy", _Policy(decision))
        return await stage.fails()


by_policy("policy hides the tool", Decision(allowed=False, listed=False))
by_policy("policy says no", Decision(allowed=False, listed=True))
by_policy("policy fails", None)


@happens("the sidecar fails in a gate", "no")
async def _(stage: Stage) -> Failure:
    await stage.open()
    await stage.attach()

    def broken(scope: Scope) -> None:
        raise RuntimeError(scope)

    stage.patch.setattr(stage.host.pipeline.admission, "enter", broken)
    return await stage.fails()


@happens("the subject has too many calls in flight", "no")
async def _(stage: Stage) -> Failure:
    await stage.open(calls=CallLimits(in_flight_per_subject=1))
    await stage.attach()
    await stage.running()
    return await stage.fails()


@happens("the tool declares what is not provided", "no")
async def _(stage: Stage) -> Failure:
    await stage.open()
    await stage.attach(needs=[CredentialNeed(service="github")])
    return await stage.fails()


# --- with an idempotency key


@happens("the key was used with other arguments", "no")
async def _(stage: Stage) -> Failure:
    await stage.open()
    await stage.attach()
    await stage.running(idempotency_key=KEY, arguments={"n": 1})
    return await stage.fails(idempotency_key=KEY, arguments={"n": 2})


@happens("the records of keys cannot be reached", "no")
async def _(stage: Stage) -> Failure:
    await stage.open()
    await stage.attach()
    stage.host.store.broken = True
    return await stage.fails(idempotency_key=KEY)


@happens("the key's request was given up a moment ago", "no")
async def _(stage: Stage) -> Failure:
    await stage.open()
    await stage.attach()
    found = asyncio.Event()

    async def find(scope: Scope, tool: str, key: str) -> None:
        await found.wait()

    stage.patch.setattr(stage.host.store, "find", find)
    given_up = await stage.caller.start(idempotency_key=KEY)
    await stage.caller.cancel(given_up)
    await stage.failed(given_up)
    failure = await stage.fails(idempotency_key=KEY)
    found.set()
    return failure


@happens("the sidecar was killed while the key's request ran", "yes")
async def _(stage: Stage) -> Failure:
    await stage.open()
    await stage.attach()
    owner = scope_of(stage.host.principal, None, None, None, "").owner
    digest = hashlib.sha256(b"{}").digest()
    stage.host.store.records[(*owner, "echo", KEY)] = IdempotencyRecord(digest, "exe_of_an_earlier_process", None)
    failure = await stage.fails(idempotency_key=KEY)
    assert not stage.was_run, "an unsafe tool is not run again"
    stage.was_run = True
    return failure


@happens("the sidecar fails around a key's record", "no")
async def _(stage: Stage) -> Failure:
    await stage.open()
    await stage.attach()

    async def find(scope: Scope, tool: str, key: str) -> None:
        raise RuntimeError(key)

    stage.patch.setattr(stage.host.store, "find", find)
    return await stage.fails(idempotency_key=KEY)


@happens("the caller cancels a call that joined another", "yes")
async def _(stage: Stage) -> Failure:
    await stage.open()
    await stage.attach()
    first, run = await stage.running(idempotency_key=KEY)
    second = await stage.caller.start(idempotency_key=KEY)
    await stage.caller.flush()
    await stage.caller.cancel(second)
    stage.was_run = True
    failure = await stage.failed(second)
    await stage.worker.result(run.call)
    assert (await stage.caller.outcome(first)).HasField("result"), "the other call runs on"
    return failure


@happens("the caller cancels a call that another joined", "yes")
async def _(stage: Stage) -> Failure:
    await stage.open()
    await stage.attach()
    first, run = await stage.running(idempotency_key=KEY)
    second = await stage.caller.start(idempotency_key=KEY)
    await stage.caller.flush()
    await stage.caller.cancel(first)
    stage.was_run = True
    failure = await stage.failed(first)
    await stage.worker.result(run.call)
    assert (await stage.caller.outcome(second)).HasField("result"), "the tool runs on for the other call"
    return failure


# --- while it waits


async def waiting(stage: Stage, **fields: Any) -> int:
    """A call that waits behind another."""
    await stage.open()
    await stage.attach(concurrency=1)
    await stage.running()
    call = await stage.caller.start(**fields)
    await stage.caller.flush()
    return call


@happens("too many calls wait for the worker", "no")
async def _(stage: Stage) -> Failure:
    await stage.open(calls=CallLimits(waiting_per_set=1))
    await stage.attach(concurrency=1)
    await stage.running()
    await stage.caller.start()
    return await stage.fails()


@happens("no worker attaches in time", "no")
async def _(stage: Stage) -> Failure:
    await stage.open()
    return await stage.fails()


@happens("no slot is free in time", "no")
async def _(stage: Stage) -> Failure:
    return await stage.failed(await waiting(stage))


@happens("the arguments are over what the worker takes", "no")
async def _(stage: Stage) -> Failure:
    await stage.open()
    await stage.attach(hello={"max_frame_bytes": 4 * KIB})
    return await stage.fails(arguments={"text": "x" * 5 * KIB})


@happens("the caller cancels", "no")
async def _(stage: Stage) -> Failure:
    call = await waiting(stage)
    await stage.caller.cancel(call)
    return await stage.failed(call)


@happens("the caller's stream is lost", "no")
async def _(stage: Stage) -> Failure:
    await waiting(stage)
    other = await stage.host.caller()
    await other.start()
    await other.flush()
    return await stage.unseen_failure(other.cut)


@happens("the timeout passes", "no")
async def _(stage: Stage) -> Failure:
    return await stage.failed(await waiting(stage, timeout=1))


@happens("the caller breaks the protocol in the call", "no")
async def _(stage: Stage) -> Failure:
    call = await waiting(stage)
    await stage.caller.send(misdirected(call))
    return await stage.failed(call)


@happens("the worker is lost, and no other comes", "no")
async def _(stage: Stage) -> Failure:
    await stage.open()
    await stage.attach()
    stage.worker.pause()
    for _ in range(2):
        await stage.caller.start()
        await quiet()
    # The first invoke is read in spite of the pause, and the second is being written: the third is not handed over.
    call = await stage.caller.start()
    await quiet()
    stage.worker.cut()
    return await stage.failed(call)


# --- when the tool runs


def misdirected(call: int) -> Frame:
    frame = Frame(call=call)
    frame.superseded.SetInParent()
    return frame


@happens("the caller cancels, and the tool does not stop", "yes")
async def _(stage: Stage) -> Failure:
    await stage.open()
    await stage.attach()
    call, _ = await stage.running()
    await stage.caller.cancel(call)
    return await stage.failed(call)


@happens("the caller cancels, and the tool says that it did nothing", "yes")
async def _(stage: Stage) -> Failure:
    await stage.open()
    await stage.attach()
    call, run = await stage.running()
    await stage.caller.cancel(call)
    await stage.worker.cancelled(run.call)
    await stage.worker.fail(run.call, FailureKind.FAILURE_KIND_CANCELLED, SideEffects.SIDE_EFFECTS_NONE)
    return await stage.failed(call)


@happens("the caller cancels, and the tool returns all the same", "yes")
async def _(stage: Stage) -> Failure:
    await stage.open()
    await stage.attach()
    call, run = await stage.running()
    await stage.caller.cancel(call)
    await stage.worker.cancelled(run.call)
    await stage.worker.result(run.call, {"done": True})
    return await stage.failed(call)


@happens("the caller's stream is lost", "yes")
async def _(stage: Stage) -> Failure:
    await stage.open()
    await stage.attach()
    await stage.running()
    return await stage.unseen_failure(stage.caller.cut)


@happens("the timeout passes", "yes")
async def _(stage: Stage) -> Failure:
    await stage.open()
    await stage.attach()
    call, _ = await stage.running(timeout=1)
    return await stage.failed(call)


@happens("the idle timeout passes", "yes")
async def _(stage: Stage) -> Failure:
    await stage.open()
    await stage.attach()
    call, _ = await stage.running(idle_timeout=1)
    return await stage.failed(call)


@happens("the caller breaks the protocol in the call", "yes")
async def _(stage: Stage) -> Failure:
    await stage.open()
    await stage.attach()
    call, _ = await stage.running()
    await stage.caller.send(misdirected(call))
    return await stage.failed(call)


@happens("the worker breaks the protocol in the call", "yes")
async def _(stage: Stage) -> Failure:
    await stage.open()
    await stage.attach()
    call, run = await stage.running()
    await stage.worker.send(misdirected(run.call))
    return await stage.failed(call)


@happens("the worker is lost, and no other comes", "yes")
async def _(stage: Stage) -> Failure:
    await stage.open()
    await stage.attach()
    call, _ = await stage.running()
    stage.worker.cut()
    return await stage.failed(call)


@happens("the worker is lost, and then the other", "yes")
async def _(stage: Stage) -> Failure:
    await stage.open()
    await stage.attach()
    call, _ = await stage.running()
    first = stage.worker
    await stage.attach()
    first.cut()
    await stage.worker.next_invoke()
    stage.worker.cut()
    return await stage.failed(call)


@happens("the worker is lost, and too many calls wait for another", "yes")
async def _(stage: Stage) -> Failure:
    await stage.open(calls=CallLimits(waiting_per_set=1))
    await stage.attach(concurrency=1)
    call, _ = await stage.running()
    await stage.caller.start()
    await stage.caller.flush()
    stage.worker.cut()
    return await stage.failed(call)


@happens("the worker is lost, and the tool that is there now is unsafe", "yes")
async def _(stage: Stage) -> Failure:
    await stage.open()
    await stage.attach()
    call, _ = await stage.running()
    first, other = stage.worker, await stage.host.worker()
    await other.hello(tool("echo", effects=UNSAFE))
    first.cut()
    failure = await stage.failed(call)
    assert not other.invoked, "an unsafe tool is not run for a request that another version ran for"
    return failure


@happens("the instance drained too long", "yes")
async def _(stage: Stage) -> Failure:
    await stage.open()
    await stage.attach()
    call, _ = await stage.running()
    other = await stage.host.worker()
    await other.hello(tool("echo", effects=stage.effects, title="A newer one"))
    return await stage.failed(call)


@happens("the worker is lost after the tool asked for more than a look", "yes")
async def _(stage: Stage) -> Failure:
    await stage.open()
    await stage.attach()
    call, run = await stage.running()
    first = stage.worker
    await stage.attach()
    await first.ask(run.call, OutboundRequest(request_id=1, kv_get=KvGet(bucket="notes", key="today")))
    first.cut()
    failure = await stage.failed(call)
    assert not stage.worker.invoked, "it is not run again, though there is another worker"
    return failure


# --- what the tool's worker says


def by_the_tool(cause: str, end: Callable[[Stage, int], Awaitable[None]], **fields: Any) -> None:
    """A cause that is in how the worker ends the call, or in what the tool declares of it."""

    @happens(cause, "yes")
    async def ended(stage: Stage) -> Failure:
        await stage.open()
        await stage.attach(**fields)
        call, run = await stage.running()
        await end(stage, run.call)
        return await stage.failed(call)


async def _pause(stage: Stage, call: int) -> None:
    frame = Frame(call=call)
    frame.outcome.paused.ask.kind = "approval"
    await stage.worker.send(frame)


async def _end_somehow(stage: Stage, call: int) -> None:
    frame = Frame(call=call)
    frame.outcome.SetInParent()
    await stage.worker.send(frame)


by_the_tool("the tool fails, and says no more", lambda stage, call: stage.worker.fail(call))
by_the_tool(
    "the tool fails, and says what it did",
    lambda stage, call: stage.worker.fail(call, side_effects=SideEffects.SIDE_EFFECTS_COMMITTED),
)
by_the_tool(
    "the worker reports a kind that is not a tool's",
    lambda stage, call: stage.worker.fail(call, FailureKind.FAILURE_KIND_DENIED),
)
by_the_tool("the outcome is of no known kind", _end_somehow)
by_the_tool("the tool pauses", _pause)
by_the_tool(
    "the result is over the tool's ceiling",
    lambda stage, call: stage.worker.result(call, "x" * 100),
    result_ceiling_bytes=50,
)
by_the_tool("the result is over the largest frame", lambda stage, call: stage.worker.result(call, "x" * MIB))
by_the_tool(
    "the result does not fit the output schema",
    lambda stage, call: stage.worker.result(call, "seven"),
    output_schema={"type": "integer"},
)


@happens("the result is over what the caller takes", "yes")
async def _(stage: Stage) -> Failure:
    await stage.open()
    await stage.attach()
    hello = Frame()
    hello.caller_hello.max_frame_bytes = 4 * KIB
    await stage.caller.send(hello)
    call, run = await stage.running()
    await stage.worker.result(run.call, "x" * 5 * KIB)
    return await stage.failed(call)


@happens("the result is over 64 KiB, and far too much of the stream is unread", "yes")
async def _(stage: Stage) -> Failure:
    await stage.open(wire=WireLimits(undelivered_hard=200 * KIB))
    await stage.attach()
    runs = [(await stage.running())[1] for _ in range(6)]
    stage.caller.pause()
    for run in runs[:-1]:
        await stage.worker.result(run.call, "x" * 60 * KIB)
    await stage.worker.result(runs[-1].call, "x" * 70 * KIB)
    await quiet()
    stage.caller.resume()
    failure = await stage.failed(6)
    for call in range(1, 6):
        assert (await stage.caller.outcome(call)).HasField("result")
    return failure


# --- the table


def _cases() -> list[Any]:
    cases = []
    for row in table(PROTOCOL, "Cause, invoked, effects"):
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
    assert {(row["Cause"], row["Invoked"]) for row in table(PROTOCOL, "Cause, invoked, effects")} == set(SCENARIOS)


# --- streams


async def _complaint(peer: CallerPeer) -> str:
    error = (await peer.next_of("stream_error")).stream_error
    assert error.message
    return StreamErrorReason.Name(error.reason).removeprefix("STREAM_ERROR_REASON_")


_TROUBLE: dict[str, Callable[[CallerPeer], Awaitable[None]]] = {
    "CALL_ID_NOT_INCREASING": lambda caller: caller.send(
        Frame(call=2, start=caller.starting("missing").start), Frame(call=2, start=caller.starting("missing").start)
    ),
    "CALL_ID_ZERO": lambda caller: caller.send(Frame(start=caller.starting("missing").start)),
    "MESSAGE_TOO_LARGE": lambda caller: caller.send_bytes(bytes(17 * MIB)),
    "MALFORMED_MESSAGE": lambda caller: caller.send_bytes(b"\xff"),
    "PROTOCOL": lambda caller: caller.send(misdirected(0)),
    "VERSION": lambda caller: caller.send(_hello_of_the_future()),
}


def _hello_of_the_future() -> Frame:
    frame = Frame()
    frame.caller_hello.minimum.major = frame.caller_hello.maximum.major = 7
    return frame


@pytest.mark.parametrize("row", table(PROTOCOL, "What a stream is told"), ids=lambda row: row["Reason"])
async def test_a_stream_is_told_as_its_row_says(row: dict[str, str], start_host: StartHost) -> None:
    host = await start_host()
    caller = await host.caller()
    await _TROUBLE[row["Reason"]](caller)
    assert await _complaint(caller) == row["Reason"]
    if row["The stream"].startswith("goes on"):
        await caller.flush()
    else:
        code = row["The stream"].removeprefix("ends with ")
        assert (await caller.end()).code.name == code


async def _turned_away(host: MemoryHost) -> WorkerPeer:
    worker = await host.worker()
    await worker.present(tool(), token="wrong")
    return worker


async def _wrong_secret(host: MemoryHost) -> WorkerPeer:
    first, second = await host.worker(), await host.worker()
    welcome = await first.hello(tool())
    await second.present(tool(), reattach=Reattach(instance_id=welcome.instance_id, secret="wrong"))
    return second


async def _silent(host: MemoryHost) -> WorkerPeer:
    return await host.worker()


async def _too_eager(host: MemoryHost) -> WorkerPeer:
    worker = await host.worker()
    await worker.present(tool(), concurrency=0)
    return worker


async def _unreadable(host: MemoryHost) -> WorkerPeer:
    worker = await host.worker()
    await worker.hello(tool())
    await worker.send_bytes(b"\xff")
    await worker.send_bytes(b"\xff")
    return worker


async def _hanging(host: MemoryHost) -> WorkerPeer:
    worker = await host.worker()
    worker.pongs = False
    await worker.hello(tool())
    return worker


async def _stalled(host: MemoryHost) -> CallerPeer:
    caller = await host.caller()
    await caller.start("missing")
    caller.pause()
    await caller.start("missing")
    await caller.start("missing")
    await asyncio.sleep(70)
    caller.resume()
    return caller


async def _one_too_many(host: MemoryHost) -> CallerPeer:
    host.streams._most_lingering = 0
    return await host.caller()


@pytest.mark.parametrize(
    ("ending", "trouble"),
    [
        ("UNAUTHENTICATED", _turned_away),
        ("UNAUTHENTICATED", _wrong_secret),
        ("PROTOCOL", _silent),
        ("PROTOCOL", _too_eager),
        ("QUARANTINED", _unreadable),
        ("QUARANTINED", _hanging),
        ("STALLED", _stalled),
        ("FULL", _one_too_many),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__.strip("_"),
)
async def test_a_stream_ends_as_its_row_says(
    ending: str, trouble: Callable[[MemoryHost], Awaitable[CallerPeer | WorkerPeer]], memory_host: MemoryHost
) -> None:
    rows = {row["Ending"]: row["Status"] for row in table(PROTOCOL, "Endings")}
    peer = await trouble(memory_host)
    end = await peer.end()
    assert end.code.name == rows[ending]
    assert end.message
    assert text(end.message)
