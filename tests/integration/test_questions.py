"""What tools ask their caller: only what it declared, answered or refused once, at any depth, and by two clocks."""

import asyncio
import json
from typing import Any

import pytest

from sidecar._gen.pillion.v1.call_pb2 import CallerHello, CallerRequest
from sidecar._gen.pillion.v1.context_pb2 import CancelReason
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outbound_pb2 import OutboundRequest, Reply, ReplyErrorCode
from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind
from sidecar.calls.limits import KIB
from sidecar.doors.unary import run_call
from sidecar.wire.limits import WireLimits
from tests.support import (
    CallerPeer,
    Host,
    Invocation,
    MemoryHost,
    StartHost,
    WorkerPeer,
    attach,
    everywhere,
    quiet,
    seconds,
)
from tests.support.caller import start_of

ELICIT = "elicitation/create"
CALLER_GONE = ReplyErrorCode.REPLY_ERROR_CODE_CALLER_GONE
INVALID = ReplyErrorCode.REPLY_ERROR_CODE_INVALID
PEER_ERROR = ReplyErrorCode.REPLY_ERROR_CODE_PEER_ERROR
PEER_MALFORMED = ReplyErrorCode.REPLY_ERROR_CODE_PEER_MALFORMED
PEER_TIMEOUT = ReplyErrorCode.REPLY_ERROR_CODE_PEER_TIMEOUT
UNSUPPORTED_BY_CALLER = ReplyErrorCode.REPLY_ERROR_CODE_UNSUPPORTED_BY_CALLER
TIMEOUT = FailureKind.FAILURE_KIND_TIMEOUT

SLOT = 0.02
"""A due time is met within a slot of 10 ms."""


def question(
    number: int = 1, method: str = ELICIT, params: Any = None, timeout: float | None = None
) -> OutboundRequest:
    asked = OutboundRequest(request_id=number, timeout=seconds(timeout) if timeout is not None else None)
    asked.caller_request.method = method
    if params is not None:
        asked.caller_request.params = params if isinstance(params, bytes) else json.dumps(params).encode()
    return asked


async def answering(host: Host, *methods: str, **hello: Any) -> CallerPeer:
    """A caller that says it answers these."""
    caller = await host.caller()
    await caller.send(Frame(caller_hello=CallerHello(can_answer=methods, **hello)))
    await caller.next_of("host_hello")
    return caller


async def ask(worker: WorkerPeer, run: Invocation, asked: OutboundRequest) -> None:
    await worker.send(Frame(call=run.call, outbound_request=asked))


async def asked_of(caller: CallerPeer, call: int) -> CallerRequest:
    return (await caller.next_of("caller_request", call)).caller_request


async def reply(worker: WorkerPeer, run: Invocation) -> Reply:
    return (await worker.next_of("reply", run.call)).reply


def answer(call: int, request: CallerRequest, result: Any = None) -> Frame:
    frame = Frame(call=call)
    frame.reply.request_id = request.request_id
    frame.reply.caller.SetInParent()
    if result is not None:
        frame.reply.caller.result = result if isinstance(result, bytes) else json.dumps(result).encode()
    return frame


def error(call: int, request: CallerRequest, code: "ReplyErrorCode.ValueType") -> Frame:
    """An error in place of an answer."""
    frame = Frame(call=call)
    frame.reply.request_id = request.request_id
    frame.reply.error.code = code
    return frame


async def asked_once(host: Host) -> tuple[WorkerPeer, Invocation, CallerPeer, int, CallerRequest]:
    """A tool that has asked its caller something: its worker and call, the caller and its call, and the question."""
    worker, caller = await attach(host), await answering(host, ELICIT)
    call = await caller.start()
    run = await worker.next_invoke()
    await ask(worker, run, question(1))
    return worker, run, caller, call, await asked_of(caller, call)


@everywhere
async def test_a_question_goes_to_the_caller_and_its_answer_to_the_tool(host: Host) -> None:
    worker, caller = await attach(host), await answering(host, ELICIT, "roots/list")
    call = await caller.start()
    run = await worker.next_invoke()
    assert list(run.context.answerable.methods) == [ELICIT, "roots/list"]
    await ask(worker, run, question(7, params={"message": "Sure?"}, timeout=30))
    request = await asked_of(caller, call)
    assert (request.method, request.params) == (ELICIT, b'{"message": "Sure?"}')
    assert not request.HasField("origin")
    assert 29 < request.timeout.seconds + request.timeout.nanos / 1e9 <= 30
    # The call's first frame came before it.
    assert [frame.WhichOneof("body") for frame in caller.frames[call]] == ["started", "caller_request"]
    await caller.send(answer(call, request, {"action": "accept"}))
    told = await reply(worker, run)
    assert (told.request_id, told.caller.result) == (7, b'{"action": "accept"}')
    await worker.result(run.call, {})
    assert (await caller.outcome(call)).HasField("result")


@everywhere
async def test_what_a_caller_did_not_declare_is_refused_at_once(host: Host) -> None:
    worker = await attach(host)
    silent = await host.caller()
    await silent.start()
    run = await worker.next_invoke()
    # Without a hello there is a way back, and nothing is answered on it.
    assert run.context.HasField("answerable")
    assert not run.context.answerable.methods
    assert (await worker.ask(run.call, question())).error.code == UNSUPPORTED_BY_CALLER
    caller = await answering(host, ELICIT, "consent")
    await caller.start()
    run = await worker.next_invoke()
    # What the sidecar itself tells callers is no tool's to say.
    assert list(run.context.answerable.methods) == [ELICIT]
    for number, method in enumerate(("sampling/createMessage", "consent", "Elicitation/create"), 1):
        assert (await worker.ask(run.call, question(number, method))).error.code == UNSUPPORTED_BY_CALLER
    for number, asked in enumerate((question(9, ""), question(9, "m" * 129), question(9, params=b"{")), 9):
        asked.request_id = number
        assert (await worker.ask(run.call, asked)).error.code == INVALID


@everywhere
async def test_questions_are_independent(host: Host) -> None:
    worker, caller = await attach(host), await answering(host, ELICIT)
    call = await caller.start()
    run = await worker.next_invoke()
    for number in (1, 2, 3):
        await ask(worker, run, question(number, params=number))
    requests = [await asked_of(caller, call) for _ in range(3)]
    assert len({request.request_id for request in requests}) == 3
    for request in reversed(requests):
        await caller.send(answer(call, request, int(request.params) * 10))
    replies = [await reply(worker, run) for _ in range(3)]
    assert {told.request_id: told.caller.result for told in replies} == {1: b"10", 2: b"20", 3: b"30"}


@everywhere
async def test_errors_keep_code_message_and_data(host: Host) -> None:
    worker, run, caller, call, request = await asked_once(host)
    frame = error(call, request, PEER_ERROR)
    frame.reply.error.peer.code = -32042
    frame.reply.error.peer.message = "No: ü"
    frame.reply.error.peer.data = b'{"why": [1, 2]}'
    await caller.send(frame)
    told = (await reply(worker, run)).error
    assert told.code == PEER_ERROR
    assert (told.peer.code, told.peer.message, told.peer.data) == (-32042, "No: ü", b'{"why": [1, 2]}')


@pytest.mark.parametrize("said", [PEER_TIMEOUT, UNSUPPORTED_BY_CALLER, PEER_MALFORMED])
async def test_a_caller_may_say_how_its_own_answering_failed(
    memory_host: MemoryHost, said: "ReplyErrorCode.ValueType"
) -> None:
    worker, run, caller, call, request = await asked_once(memory_host)
    frame = error(call, request, said)
    frame.reply.error.message = "As it is."
    await caller.send(frame)
    told = (await reply(worker, run)).error
    assert (told.code, told.message) == (said, "As it is.")


@pytest.mark.parametrize("wrong", ["no answer", "not JSON", "error data not JSON", "of the sidecar"])
async def test_an_answer_that_cannot_be_read_is_told(memory_host: MemoryHost, wrong: str) -> None:
    worker, run, caller, call, request = await asked_once(memory_host)
    frame = answer(call, request)
    if wrong == "no answer":
        frame.reply.ClearField("caller")
    elif wrong == "not JSON":
        frame.reply.caller.result = b'{"a": 1, "a": 2}'
    elif wrong == "error data not JSON":
        frame.reply.error.peer.data = b"{"
    else:
        frame.reply.done.SetInParent()
    await caller.send(frame)
    assert (await reply(worker, run)).error.code == PEER_MALFORMED


@everywhere
async def test_a_reply_belongs_to_its_call_and_is_taken_once(host: Host) -> None:
    worker, caller = await attach(host), await answering(host, ELICIT)
    call, other = await caller.start(), await caller.start()
    run, _ = await worker.next_invoke(), await worker.next_invoke()
    await ask(worker, run, question(1))
    request = await asked_of(caller, call)
    stranger = await answering(host, ELICIT)
    await stranger.send(answer(1, request, "stranger"))
    await stranger.flush()
    await caller.send(answer(other, request, "other"), answer(call, request, "mine"), answer(call, request, "again"))
    assert (await reply(worker, run)).caller.result == b'"mine"'
    await caller.flush()
    if host.transport != "tcp":
        assert (await host.counters())["late_replies"] == 3


@everywhere
async def test_a_caller_that_sends_no_more_answers_no_more(host: Host) -> None:
    worker, run, caller, call, _ = await asked_once(host)
    await caller.half_close()
    assert (await reply(worker, run)).error.code == CALLER_GONE
    assert (await worker.ask(run.call, question(2))).error.code == CALLER_GONE
    await worker.result(run.call, {})
    assert (await caller.outcome(call)).HasField("result")


async def test_a_caller_that_is_lost_answers_no_more(memory_host: MemoryHost) -> None:
    worker, caller = await attach(memory_host), await answering(memory_host, ELICIT)
    await caller.start()
    run = await worker.next_invoke()
    await ask(worker, run, question(1))
    await quiet()
    await caller.aclose()
    assert await worker.cancelled(run.call) == CancelReason.CANCEL_REASON_DISCONNECT
    assert (await reply(worker, run)).error.code == CALLER_GONE


async def test_a_caller_that_leaves_a_joined_call_to_others_answers_no_more(memory_host: MemoryHost) -> None:
    worker = await attach(memory_host)
    first, second = await answering(memory_host, ELICIT), await answering(memory_host, ELICIT)
    call = await first.start(idempotency_key="k")
    run = await worker.next_invoke()
    joined = await second.start(idempotency_key="k")
    await quiet()
    await ask(worker, run, question(1))
    await asked_of(first, call)
    await first.cancel(call)
    assert (await reply(worker, run)).error.code == CALLER_GONE
    # The heir is asked from then on.
    await ask(worker, run, question(2))
    await second.send(answer(joined, await asked_of(second, joined), "heir"))
    assert (await reply(worker, run)).caller.result == b'"heir"'


async def test_a_question_that_the_caller_does_not_take_is_refused(start_host: StartHost) -> None:
    host = await start_host()
    worker, caller = await attach(host), await answering(host, ELICIT, max_frame_bytes=65_536)
    await caller.start()
    run = await worker.next_invoke()
    assert (await worker.ask(run.call, question(1, params="x" * 100_000))).error.code == INVALID


async def test_a_caller_that_does_not_read_is_not_asked_more_and_more(start_host: StartHost) -> None:
    host = await start_host(wire=WireLimits(undelivered_soft=8 * KIB))
    assert isinstance(host, MemoryHost)
    worker, caller = await attach(host), await answering(host, ELICIT)
    call = await caller.start()
    run = await worker.next_invoke()
    caller.pause()
    answers = []
    for number in range(1, 101):
        reply_ = await worker.ask(run.call, question(number, params="x" * 1_000, timeout=0.01))
        answers.append(reply_.error.code)
    asked, refused = answers.count(PEER_TIMEOUT), answers.count(ReplyErrorCode.REPLY_ERROR_CODE_OVERLOADED)
    assert asked + refused == 100
    assert 5 < asked < 20
    caller.resume()
    await asked_of(caller, call)
    await quiet()
    assert (await worker.ask(run.call, question(101, timeout=0.01))).error.code == PEER_TIMEOUT


# --- through any depth


@pytest.mark.parametrize("depth", [1, 3])
@everywhere
async def test_law_4_a_question_of_an_inner_call_is_answered_at_any_depth(host: Host, depth: int) -> None:
    worker, caller = await attach(host), await answering(host, ELICIT)
    call = await caller.start("echo", {"n": 0}, tool_call_id="t")
    chain = [await worker.next_invoke()]
    for level in range(1, depth + 1):
        nested = OutboundRequest(request_id=1)
        nested.tools_call.tool = "echo"
        nested.tools_call.arguments = json.dumps({"n": level}).encode()
        await ask(worker, chain[-1], nested)
        chain.append(await worker.next_invoke())
        assert list(chain[-1].context.answerable.methods) == [ELICIT]
    await ask(worker, chain[-1], question(9))
    request = await asked_of(caller, call)
    assert (request.origin.tool, request.origin.tool_call_id) == ("echo", "t" + "#inner-1" * depth)
    await caller.send(answer(call, request, "yes"))
    told = await reply(worker, chain[-1])
    assert (told.request_id, told.caller.result) == (9, b'"yes"')
    # What is not answered is refused as deep.
    assert (await worker.ask(chain[-1].call, question(10, "other/method"))).error.code == UNSUPPORTED_BY_CALLER


# --- by two clocks


async def test_law_6_people_have_a_clock_of_their_own_that_extends_the_timeout(memory_host: MemoryHost) -> None:
    loop = asyncio.get_running_loop()
    worker, caller = await attach(memory_host), await answering(memory_host, ELICIT)
    began = loop.time()
    call = await caller.start(timeout=5, idle_timeout=3, human_timeout=100)
    run = await worker.next_invoke()
    await asyncio.sleep(2)
    await ask(worker, run, question(1))
    request = await asked_of(caller, call)
    assert request.timeout.seconds + request.timeout.nanos / 1e9 == pytest.approx(100)
    await asyncio.sleep(60)
    assert caller.outcomes(call) == []
    await caller.send(answer(call, request, "late"))
    await reply(worker, run)
    await worker.progress(run.call)
    # Three seconds of its five were left, and are left now; the idle clock begins again.
    assert await worker.cancelled(run.call) in (CancelReason.CANCEL_REASON_DEADLINE, CancelReason.CANCEL_REASON_IDLE)
    assert loop.time() - began == pytest.approx(65, abs=2 * SLOT)


async def test_law_6_people_have_so_much_time_in_all_and_no_more(memory_host: MemoryHost) -> None:
    loop = asyncio.get_running_loop()
    worker, caller = await attach(memory_host), await answering(memory_host, ELICIT)
    began = loop.time()
    call = await caller.start(timeout=5, human_timeout=10)
    run = await worker.next_invoke()
    await ask(worker, run, question(1))
    request = await asked_of(caller, call)
    await asyncio.sleep(6)
    await caller.send(answer(call, request, 1))
    await reply(worker, run)
    await ask(worker, run, question(2))
    assert (await asked_of(caller, call)).timeout.seconds <= 4
    assert (await reply(worker, run)).error.code == PEER_TIMEOUT
    assert loop.time() - began == pytest.approx(10, abs=SLOT)
    assert (await worker.ask(run.call, question(3))).error.code == PEER_TIMEOUT
    assert await worker.cancelled(run.call) == CancelReason.CANCEL_REASON_DEADLINE
    assert loop.time() - began == pytest.approx(15, abs=2 * SLOT)
    await worker.result(run.call, {})
    assert (await caller.outcome(call)).failure.kind == TIMEOUT


async def test_law_6_the_clocks_of_all_outer_calls_wait_too(memory_host: MemoryHost) -> None:
    worker, caller = await attach(memory_host), await answering(memory_host, ELICIT)
    call = await caller.start("echo", {"n": 0}, timeout=5, idle_timeout=3, human_timeout=100)
    outer = await worker.next_invoke()
    nested = OutboundRequest(request_id=1)
    nested.tools_call.tool = "echo"
    await ask(worker, outer, nested)
    inner = await worker.next_invoke()
    await ask(worker, inner, question(1))
    request = await asked_of(caller, call)
    await asyncio.sleep(90)
    await caller.send(answer(call, request, 1))
    await reply(worker, inner)
    await worker.result(inner.call, {})
    assert (await reply(worker, outer)).tool_outcome.HasField("result")
    await worker.result(outer.call, {})
    assert (await caller.outcome(call)).HasField("result")


async def test_a_question_waits_its_own_time(memory_host: MemoryHost) -> None:
    loop = asyncio.get_running_loop()
    worker, caller = await attach(memory_host), await answering(memory_host, ELICIT)
    call = await caller.start(timeout=60)
    run = await worker.next_invoke()
    began = loop.time()
    await ask(worker, run, question(1, timeout=2))
    request = await asked_of(caller, call)
    assert (await reply(worker, run)).error.code == PEER_TIMEOUT
    assert loop.time() - began == pytest.approx(2, abs=SLOT)
    # The answer comes late, and is nobody's.
    await caller.send(answer(call, request, 1))
    await caller.flush()
    assert (await memory_host.counters())["late_replies"] == 1


async def test_law_5_a_cancel_reaches_a_tool_that_waits_for_people(memory_host: MemoryHost) -> None:
    worker, caller = await attach(memory_host), await answering(memory_host, ELICIT)
    call = await caller.start()
    run = await worker.next_invoke()
    await ask(worker, run, question(1))
    await asked_of(caller, call)
    await caller.cancel(call)
    assert await worker.cancelled(run.call) == CancelReason.CANCEL_REASON_CALLER
    await worker.fail(run.call, FailureKind.FAILURE_KIND_CANCELLED)
    assert (await caller.outcome(call)).failure.kind == FailureKind.FAILURE_KIND_CANCELLED
    await quiet()
    assert not memory_host.pipeline.running


async def test_the_unary_door_has_no_way_back(memory_host: MemoryHost) -> None:
    worker = await attach(memory_host)
    running = asyncio.create_task(run_call(memory_host.pipeline, memory_host.principal, start_of()))
    run = await worker.next_invoke()
    assert not run.context.HasField("answerable")
    assert (await worker.ask(run.call, question())).error.code == ReplyErrorCode.REPLY_ERROR_CODE_UNSUPPORTED
    await worker.result(run.call, {})
    await running
