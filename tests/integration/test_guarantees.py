"""Guarantees 1, 2 and 13: oversized payloads harm their own call alone, every call has one outcome, numbers survive."""

import asyncio
import math
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sidecar._gen.pillion.v1.call_pb2 import StreamErrorReason
from sidecar._gen.pillion.v1.context_pb2 import TeardownScope
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outbound_pb2 import OutboundRequest
from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind, SideEffects
from tests.support import (
    CallerPeer,
    CallLimits,
    Host,
    MemoryHost,
    Setup,
    StartHost,
    VirtualTimeLoop,
    WorkerPeer,
    attach,
    everywhere,
    failure,
    progress,
    quiet,
    result,
    tool,
)

CANCELLED = FailureKind.FAILURE_KIND_CANCELLED
INTERNAL = FailureKind.FAILURE_KIND_INTERNAL
INVALID_ARGUMENTS = FailureKind.FAILURE_KIND_INVALID_ARGUMENTS
OUTCOME_UNKNOWN = FailureKind.FAILURE_KIND_OUTCOME_UNKNOWN
PROTOCOL = FailureKind.FAILURE_KIND_PROTOCOL
RESULT_TOO_LARGE = FailureKind.FAILURE_KIND_RESULT_TOO_LARGE
TIMEOUT = FailureKind.FAILURE_KIND_TIMEOUT
TOO_LARGE = StreamErrorReason.STREAM_ERROR_REASON_MESSAGE_TOO_LARGE
UNSUPPORTED = FailureKind.FAILURE_KIND_UNSUPPORTED

MIB = 1024 * 1024
OTHERS = 50


def one_string(size: int) -> bytes:
    """One JSON text of about this many bytes."""
    return b'{"text":"' + b"x" * size + b'"}'


# --- 1: one call's oversized payload affects no other call


class Fifty:
    """Fifty calls that run while another misbehaves."""

    def __init__(self, worker: WorkerPeer, caller: CallerPeer) -> None:
        self.worker = worker
        self.caller = caller
        self._calls: dict[int, int] = {}

    async def start(self) -> None:
        """Starts them; each reports once."""
        for number in range(OTHERS):
            call = await self.caller.start("echo", {"number": number})
            self._calls[call] = (await self.worker.next_invoke()).call
        await self.worker.send(*(progress(run, {"step": 1}) for run in self._calls.values()))

    async def finish(self) -> None:
        """Has each report again and end, and sees that nobody noticed anything."""
        await self.worker.send(*(progress(run, {"step": 2}) for run in self._calls.values()))
        await self.worker.send(*(result(run, [run]) for run in self._calls.values()))
        for call, run in self._calls.items():
            assert (await self.caller.outcome(call)).result.json == f"[{run}]".encode()
            assert self.caller.bodies(call) == ["started", "progress", "progress", "outcome"]
            assert self.worker.bodies(run) == ["invoke"]
            assert not any(frame.coalesced for frame in self.caller.frames[call])


async def fifty(host: Host) -> Fifty:
    """A worker, a caller, and fifty calls between them."""
    worker = await attach(host, tool("echo"), tool("read"), concurrency=OTHERS + 10)
    running = Fifty(worker, await host.caller())
    await running.start()
    return running


@everywhere
@pytest.mark.parametrize("size", [MIB, 2 * MIB, 14 * MIB], ids=["just over", "2 MiB", "14 MiB"])
async def test_guarantee_01_oversized_arguments_are_refused_alone(host: Host, size: int) -> None:
    others = await fifty(host)
    caller, worker = others.caller, others.worker
    before, large, after = (
        caller.starting("read", {}),
        caller.starting("read", one_string(size)),
        caller.starting("read", {}),
    )
    # In one message with two more, of which nothing is lost.
    await caller.send(before, large, after)
    refused = (await caller.outcome(large.call)).failure
    assert (refused.kind, refused.side_effects) == (INVALID_ARGUMENTS, SideEffects.SIDE_EFFECTS_NONE)
    assert caller.bodies(large.call) == ["started", "outcome"]
    for frame in (before, after):
        run = (await worker.next_invoke()).call
        await worker.result(run, b"1")
        assert (await caller.outcome(frame.call)).HasField("result")
    await others.finish()
    assert caller.bodies() == []


@everywhere
@pytest.mark.parametrize("size", [MIB, 2 * MIB, 14 * MIB], ids=["just over", "2 MiB", "14 MiB"])
async def test_guarantee_01_an_oversized_result_ends_its_own_call_alone(host: Host, size: int) -> None:
    others = await fifty(host)
    call = await others.caller.start("read")
    run = (await others.worker.next_invoke()).call
    await others.worker.result(run, one_string(size))
    refused = (await others.caller.outcome(call)).failure
    assert (refused.kind, refused.side_effects) == (RESULT_TOO_LARGE, SideEffects.SIDE_EFFECTS_COMMITTED)
    await others.finish()
    assert others.worker.bodies() == ["welcome"]


@everywhere
@pytest.mark.parametrize("size", [64 * 1024, 2 * MIB], ids=["64 KiB", "2 MiB"])
async def test_guarantee_01_oversized_progress_is_dropped_and_ends_nothing(host: Host, size: int) -> None:
    others = await fifty(host)
    call = await others.caller.start("read")
    run = (await others.worker.next_invoke()).call
    await others.worker.send(progress(run, 1), progress(run, one_string(size)), progress(run, 2), result(run, b"3"))
    assert (await others.caller.outcome(call)).result.json == b"3"
    assert others.caller.bodies(call) == ["started", "progress", "progress", "outcome"]
    await others.finish()


@everywhere
async def test_guarantee_01_an_oversized_request_is_refused_alone(host: Host) -> None:
    others = await fifty(host)
    call = await others.caller.start("read")
    run = (await others.worker.next_invoke()).call
    request = OutboundRequest(request_id=5)
    request.kv_put.value = bytes(2 * MIB)
    reply = await others.worker.ask(run, request)
    assert (reply.request_id, reply.HasField("error")) == (5, True)
    await others.worker.result(run, b"1")
    assert (await others.caller.outcome(call)).HasField("result")
    await others.finish()


@everywhere
async def test_guarantee_01_a_callers_message_over_16_mib_harms_the_calls_in_it_alone(host: Host) -> None:
    others = await fifty(host)
    caller = others.caller
    starts = [caller.starting("read", one_string(5 * MIB)) for _ in range(4)]
    await caller.send(*starts)
    for start in starts:
        assert (await caller.outcome(start.call)).failure.kind == INVALID_ARGUMENTS
    assert (await caller.next_of("stream_error")).stream_error.reason == TOO_LARGE
    await others.finish()


@everywhere
async def test_guarantee_01_a_workers_message_over_16_mib_harms_the_calls_in_it_alone(host: Host) -> None:
    others = await fifty(host)
    calls = [await others.caller.start("read") for _ in range(2)]
    runs = [(await others.worker.next_invoke()).call for _ in calls]
    await others.worker.send(*(result(run, one_string(10 * MIB)) for run in runs))
    for call in calls:
        assert (await others.caller.outcome(call)).failure.kind == RESULT_TOO_LARGE
    assert (await others.worker.next_of("stream_error")).stream_error.reason == TOO_LARGE
    await others.finish()


@everywhere
async def test_guarantee_01_a_peer_that_takes_less_is_sent_less(host: Host) -> None:
    worker = await attach(host, tool("echo"), tool("read"), max_frame_bytes=8_192, concurrency=OTHERS + 10)
    others = Fifty(worker, await host.caller())
    await others.start()
    large = (await others.caller.call("read", one_string(8_192))).failure
    assert (large.kind, large.side_effects) == (INVALID_ARGUMENTS, SideEffects.SIDE_EFFECTS_NONE)
    small = await host.caller()
    hello = Frame()
    hello.caller_hello.max_frame_bytes = 8_192
    await small.send(hello)
    call = await small.start("read")
    await worker.result((await worker.next_invoke()).call, one_string(8_192))
    assert (await small.outcome(call)).failure.kind == RESULT_TOO_LARGE
    await others.finish()


# --- 2: exactly one outcome a call, in bounded time


async def _nothing(_worker: WorkerPeer, _run: int) -> None:
    """Never answers."""


async def _cut(worker: WorkerPeer, _run: int) -> None:
    worker.cut()


async def _half_close(worker: WorkerPeer, _run: int) -> None:
    await worker.half_close()


def _sending(*make: Callable[[int], Frame]) -> Callable[[WorkerPeer, int], Awaitable[None]]:
    async def act(worker: WorkerPeer, run: int) -> None:
        await worker.send(*(each(run) for each in make))

    return act


def _outcome(run: int) -> Frame:
    frame = Frame(call=run)
    frame.outcome.SetInParent()
    return frame


def _paused(run: int) -> Frame:
    frame = _outcome(run)
    frame.outcome.paused.ask.kind = "consent"
    return frame


def _unknown(run: int) -> Frame:
    frame = _outcome(run)
    frame.outcome.MergeFromString(b"\xa2\x06\x03abc")
    return frame


def _invoke(run: int) -> Frame:
    frame = Frame(call=run)
    frame.invoke.tool = "echo"
    return frame


def _unknown_kind(run: int) -> Frame:
    return failure(run, 999)  # type: ignore[arg-type]  # of a later protocol


def _answer(run: int) -> Frame:
    return result(run, b"1")


FATES: dict[str, tuple[Callable[[WorkerPeer, int], Awaitable[None]], "FailureKind.ValueType | None"]] = {
    "a result": (_sending(_answer), None),
    "two results": (_sending(_answer, _answer), None),
    "a result, then a failure": (_sending(_answer, failure), None),
    "a failure, then a result": (_sending(failure, _answer), FailureKind.FAILURE_KIND_TOOL_FAILED),
    "an outcome that is nothing": (_sending(_outcome), INTERNAL),
    "an outcome that is not known": (_sending(_unknown), INTERNAL),
    "a failure that is not known": (_sending(_unknown_kind), INTERNAL),
    "a pause that asks nothing": (_sending(_paused), INTERNAL),
    "a frame that is not a worker's": (_sending(_invoke), PROTOCOL),
    "a frame that is not a worker's, and a result": (_sending(_invoke, _answer), PROTOCOL),
    "silence": (_nothing, TIMEOUT),
    "a lost stream": (_cut, OUTCOME_UNKNOWN),
    "a stream half closed": (_half_close, OUTCOME_UNKNOWN),
}


@everywhere
@pytest.mark.parametrize("fate", FATES)
async def test_guarantee_02_a_call_has_one_outcome_whatever_its_worker_does(start_host: StartHost, fate: str) -> None:
    host = await start_host(calls=CallLimits(cancel_grace=0.25, worker_wait=0.5))
    worker, caller = await attach(host), await host.caller()
    act, kind = FATES[fate]
    begun = asyncio.get_running_loop().time()
    calls = [await caller.start(timeout=1) for _ in range(20)]
    runs = [(await worker.next_invoke()).call for _ in calls]
    for run in runs:
        if worker.is_over:
            break
        await act(worker, run)
        if fate.startswith("a stream"):
            break
    for call in calls:
        outcome = await caller.outcome(call)
        assert outcome.failure.kind == (kind or FailureKind.FAILURE_KIND_UNSPECIFIED)
    # Timeout and cancel grace; the rest is for a busy machine.
    assert asyncio.get_running_loop().time() - begun < 1 + 0.25 + (0.05 if host.transport == "memory" else 5)
    await caller.flush()
    assert all(len(caller.outcomes(call)) == 1 for call in calls)
    assert all(caller.bodies(call)[0] == "started" for call in calls)


@everywhere
async def test_guarantee_02_all_calls_of_a_half_closed_stream_end_and_then_the_stream(host: Host) -> None:
    worker, caller = await attach(host), await host.caller()
    calls = [await caller.start() for _ in range(20)]
    await caller.half_close()
    for _ in calls:
        await worker.result((await worker.next_invoke()).call)
    for call in calls:
        assert (await caller.outcome(call)).HasField("result")
    assert (await caller.end()).code.name == "OK"
    assert all(len(caller.outcomes(call)) == 1 for call in calls)


async def test_guarantee_02_calls_of_a_lost_stream_are_settled_inside(memory_host: MemoryHost) -> None:
    worker, caller = await attach(memory_host), await memory_host.caller()
    for _ in range(20):
        await caller.start()
    runs = [(await worker.next_invoke()).call for _ in range(20)]
    caller.cut()
    await worker.send(*(result(run) for run in runs[:10]))
    await asyncio.sleep(2.1)
    assert not memory_host.pipeline.running
    assert memory_host.counts["results"] + memory_host.counts["failures.CANCELLED"] == 20
    assert len(memory_host.pipeline.admission) == 0


async def test_guarantee_02_a_worker_that_answers_no_ping_is_given_up_and_its_calls_decided(host: Host) -> None:
    worker, caller = await attach(host), await host.caller()
    worker.pongs = False
    call = await caller.start(timeout=600)
    outcome = await caller.outcome(call)
    assert outcome.failure.kind == OUTCOME_UNKNOWN
    # Three pings in ten seconds each are missed, and the fourth is not sent.
    assert 40 <= asyncio.get_running_loop().time() <= 42
    assert (await worker.end()).code.name == "ABORTED"


async def test_guarantee_02_an_outcome_waits_for_a_hanging_cleanup_no_longer_than_its_grace(
    start_host: StartHost,
) -> None:
    host = await start_host(calls=CallLimits(cancel_grace=1, teardown_grace=3))
    worker, caller = await attach(host), await host.caller()
    loop = asyncio.get_running_loop()
    for key in (None, "k"):
        for ignores in (False, True):
            begun = loop.time()
            call = await caller.start(timeout=2, idempotency_key=key and f"{key}-{ignores}")
            run = (await worker.next_invoke()).call
            await worker.registered(run, TeardownScope.TEARDOWN_SCOPE_CALL)
            if not ignores:
                await worker.result(run, b"1")
            outcome = await caller.outcome(call)
            assert outcome.HasField("failure") == ignores
            assert loop.time() - begun <= (2 + 1 if ignores else 0) + 3 + 0.1
            await asyncio.sleep(60)
            assert len(caller.outcomes(call)) == 1
            if ignores:
                await worker.result(run)
    assert len(worker.teardowns()) == 4


# --- 13: every number survives exactly, or is refused

INTEGERS = st.one_of(
    st.integers().map(str),
    st.integers(min_value=-(10**40), max_value=10**40).map(str),
    # Around what doubles and 64 bits hold, and around the most digits.
    st.sampled_from([str(2**53 + 1), str(2**63), str(-(2**63) - 1), str(2**64)]),
    st.sampled_from(["7" * 4_300, "7" * 4_301, "-" + "7" * 4_300, "-" + "7" * 4_301]),
)
FRACTIONS = st.from_regex(r"-?(0|[1-9][0-9]{0,20})(\.[0-9]{1,25})?([eE][+-]?[0-9]{1,4})?", fullmatch=True)
DOUBLES = st.floats(allow_nan=False, allow_infinity=False).map(repr)


def survives(number: str) -> bool:
    """Whether a number is one that the wire carries."""
    if number.lstrip("-").isdecimal():
        return len(number.lstrip("-")) <= 4_300
    return not math.isinf(float(number))


@given(st.lists(st.one_of(INTEGERS, FRACTIONS, DOUBLES), min_size=1, max_size=8))
@example(["9223372036854775808", "18446744073709551616", "1e400", "-1e400", "1e-400", "0.1", "1E+2", "-0", "-0.0"])
@example(["1.7976931348623157e308", "1.7976931348623159e308", "5e-324", "123456789.123456789123456789"])
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_guarantee_13_every_number_survives_exactly_or_is_refused(numbers: list[str]) -> None:
    async def there_and_back() -> None:
        host = MemoryHost(Setup())
        # Schemas on both ends, so that both are read here.
        worker, caller = await attach(host, tool("echo", output_schema={"type": "object"})), await host.caller()
        for number in numbers:
            sent = b'{"n": [' + number.encode() + b"]}"
            call = await caller.start("echo", sent)
            await quiet()
            if not survives(number):
                refused = (await caller.outcome(call)).failure
                assert refused.kind == INVALID_ARGUMENTS, number
                assert number not in refused.message
                continue
            invocation = await worker.next_invoke()
            assert invocation.invoke.arguments == sent
            await worker.send(progress(invocation.call, sent), result(invocation.call, sent))
            assert (await caller.outcome(call)).result.json == sent
            assert caller.frames[call][1].progress.payload == sent
        await host.aclose()

    # Without debug, in which the loop notes a traceback for each of very many handles.
    with asyncio.Runner(loop_factory=VirtualTimeLoop, debug=False) as runner:
        runner.run(there_and_back())


@everywhere
@pytest.mark.parametrize(
    ("number", "fits"),
    [
        ("9223372036854775807", True),
        ("9223372036854775808", False),
        ("9223372036854775807.5", False),
        ("18446744073709551615", False),
        ("1e19", False),
        ("-5", True),
    ],
    ids=str,
)
async def test_guarantee_13_a_schema_judges_the_number_that_was_sent(host: Host, number: str, fits: bool) -> None:
    schema = {"properties": {"n": {"maximum": 2**63 - 1}}}
    worker, caller = await attach(host, tool("echo", input_schema=schema)), await host.caller()
    sent = b'{"n":' + number.encode() + b"}"
    call = await caller.start("echo", sent)
    if fits:
        invocation = await worker.next_invoke()
        assert invocation.invoke.arguments == sent
        await worker.result(invocation.call)
    assert (await caller.outcome(call)).HasField("result") is fits


@everywhere
async def test_guarantee_13_a_number_in_a_result_is_refused_where_it_is_read_and_cannot_be_kept(host: Host) -> None:
    worker = await attach(host, tool("read", output_schema={"type": "object"}), tool("echo"))
    caller = await host.caller()
    for name, kind in (("read", FailureKind.FAILURE_KIND_INVALID_RESULT), ("echo", None)):
        for sent in (b'{"n":1e400}', b'{"n":' + b"7" * 4_301 + b"}"):
            call = await caller.start(name)
            await worker.result((await worker.next_invoke()).call, sent)
            outcome = await caller.outcome(call)
            if kind is None:
                assert outcome.result.json == sent
            else:
                assert outcome.failure.kind == kind
