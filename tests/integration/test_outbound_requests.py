"""What running tools ask of the sidecar: each is answered once, in bounded time, and ends with its call."""

import asyncio

import pytest

from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outbound_pb2 import OutboundRequest, ReplyErrorCode
from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind
from sidecar.calls.call import Call
from sidecar.calls.limits import CallLimits
from tests.support import MemoryHost, StartHost, WorkerPeer, attach, quiet, seconds, tool

CANCELLED = ReplyErrorCode.REPLY_ERROR_CODE_CANCELLED
INTERNAL = ReplyErrorCode.REPLY_ERROR_CODE_INTERNAL
INVALID = ReplyErrorCode.REPLY_ERROR_CODE_INVALID
OVERLOADED = ReplyErrorCode.REPLY_ERROR_CODE_OVERLOADED
UNSUPPORTED = ReplyErrorCode.REPLY_ERROR_CODE_UNSUPPORTED


class Answers:
    """Answers `tools_has` when the test says so."""

    def __init__(self, host: MemoryHost) -> None:
        self.asked: list[OutboundRequest] = []
        self.gone: list[int] = []
        """The requests whose wait was cut off."""
        self.ready = asyncio.Event()
        host.pipeline.responders["tools_has"] = self.answer

    async def answer(self, _: Call, request: OutboundRequest) -> Frame:
        self.asked.append(request)
        try:
            await self.ready.wait()
        except asyncio.CancelledError:
            self.gone.append(request.request_id)
            raise
        frame = Frame()
        frame.reply.request_id = request.request_id
        frame.reply.tool_available.available = True
        return frame


@pytest.fixture
def answers(memory_host: MemoryHost) -> Answers:
    return Answers(memory_host)


def request(number: int, timeout: float | None = None) -> OutboundRequest:
    """A request that `Answers` answers."""
    asked = OutboundRequest(request_id=number, timeout=seconds(timeout) if timeout is not None else None)
    asked.tools_has.tool = "echo"
    return asked


async def ask(worker: WorkerPeer, run: int, *requests: OutboundRequest) -> None:
    await worker.send(*(Frame(call=run, outbound_request=one) for one in requests))


async def code(worker: WorkerPeer, run: int) -> tuple[int, "ReplyErrorCode.ValueType"]:
    reply = (await worker.next_of("reply", run)).reply
    return reply.request_id, reply.error.code


async def test_answers_come_when_they_are_there_and_the_call_goes_on(memory_host: MemoryHost, answers: Answers) -> None:
    worker, caller = await attach(memory_host), await memory_host.caller()
    call = await caller.start()
    run = (await worker.next_invoke()).call
    await ask(worker, run, request(1), request(2))
    await worker.progress(run, {"n": 1})
    assert (await caller.next_of("progress", call)).progress.payload == b'{"n": 1}'
    answers.ready.set()
    replies = [(await worker.next_of("reply", run)).reply for _ in range(2)]
    assert {reply.request_id for reply in replies} == {1, 2}
    assert all(reply.tool_available.available for reply in replies)
    # An id is free again once it is answered.
    await ask(worker, run, request(1))
    assert (await worker.next_of("reply", run)).reply.tool_available.available


async def test_ids_are_neither_0_nor_of_an_open_request(memory_host: MemoryHost, answers: Answers) -> None:
    worker, caller = await attach(memory_host), await memory_host.caller()
    await caller.start()
    run = (await worker.next_invoke()).call
    await ask(worker, run, request(0), request(7), request(7))
    assert await code(worker, run) == (0, INVALID)
    assert await code(worker, run) == (7, INVALID)
    answers.ready.set()
    assert (await worker.next_of("reply", run)).reply.tool_available.available


async def test_one_call_has_so_many_open_at_most(start_host: StartHost) -> None:
    host = await start_host(calls=CallLimits(open_requests=2))
    assert isinstance(host, MemoryHost)
    answers = Answers(host)
    worker, caller = await attach(host), await host.caller()
    await caller.start()
    run = (await worker.next_invoke()).call
    await ask(worker, run, request(1), request(2), request(3))
    reply = (await worker.next_of("reply", run)).reply
    assert (reply.request_id, reply.error.code, reply.error.retryable) == (3, OVERLOADED, True)
    assert reply.error.retry_after.seconds == 1
    answers.ready.set()
    await worker.next_of("reply", run)


async def test_a_request_waits_its_own_time_and_never_longer_than_its_call(
    memory_host: MemoryHost, answers: Answers
) -> None:
    loop = asyncio.get_running_loop()
    worker, caller = await attach(memory_host), await memory_host.caller()
    call = await caller.start(timeout=10)
    run = (await worker.next_invoke()).call
    began = loop.time()
    await ask(worker, run, request(1, 3), request(2, 60))
    reply = (await worker.next_of("reply", run)).reply
    assert (reply.request_id, reply.error.code, reply.error.retryable) == (1, OVERLOADED, True)
    assert loop.time() - began == pytest.approx(3, abs=0.02)
    # At the timeout the tool is asked to stop, and what it still waits for has no more time.
    assert await code(worker, run) == (2, OVERLOADED)
    assert loop.time() - began == pytest.approx(10, abs=0.02)
    assert (await caller.outcome(call)).failure.kind == FailureKind.FAILURE_KIND_TIMEOUT
    assert answers.gone == [1, 2]


@pytest.mark.parametrize(
    ("raises", "late"),
    [
        (ValueError("secret"), False),
        (ValueError("secret"), True),
        (TimeoutError("secret"), False),
        (TimeoutError("secret"), True),
        # Of what it waited for, and not of itself.
        (asyncio.CancelledError("secret"), True),
    ],
    ids=lambda value: value.__class__.__name__ if isinstance(value, BaseException) else "later" if value else "at once",
)
async def test_what_fails_inside_is_told_without_its_text(
    memory_host: MemoryHost, caplog: pytest.LogCaptureFixture, raises: BaseException, *, late: bool
) -> None:
    async def later(_: Call, __: OutboundRequest) -> Frame:
        await asyncio.sleep(0)
        raise raises

    def at_once(_: Call, __: OutboundRequest) -> Frame:
        raise raises

    memory_host.pipeline.responders["tools_has"] = later if late else at_once
    worker, caller = await attach(memory_host), await memory_host.caller()
    await caller.start()
    run = (await worker.next_invoke()).call
    reply = await worker.ask(run, request(1))
    assert reply.error.code == INTERNAL
    assert "secret" not in reply.error.message
    assert (await memory_host.counters())["internal_errors"] == 1
    assert "a tool's request could not be answered" in caplog.text
    caplog.clear()


async def test_what_is_open_ends_with_the_tool(memory_host: MemoryHost, answers: Answers) -> None:
    worker, caller = await attach(memory_host), await memory_host.caller()
    call = await caller.start()
    run = (await worker.next_invoke()).call
    await ask(worker, run, request(1))
    await quiet()
    assert len(answers.asked) == 1
    await worker.result(run, {})
    await caller.outcome(call)
    await quiet()
    assert answers.gone == [1]
    assert not [frame for frame in worker.frames[run] if frame.HasField("reply")]


async def test_what_is_open_ends_with_a_lost_worker(memory_host: MemoryHost, answers: Answers) -> None:
    worker, caller = await attach(memory_host), await memory_host.caller()
    call = await caller.start()
    run = (await worker.next_invoke()).call
    await ask(worker, run, request(1))
    await quiet()
    await worker.aclose()
    assert (await caller.outcome(call)).failure.kind == FailureKind.FAILURE_KIND_OUTCOME_UNKNOWN
    await quiet()
    assert answers.gone == [1]


async def test_a_tool_that_ignores_its_cancel_is_told_that_its_call_is_over(
    memory_host: MemoryHost, answers: Answers
) -> None:
    worker, caller = await attach(memory_host, tool("echo")), await memory_host.caller()
    call = await caller.start()
    run = (await worker.next_invoke()).call
    await ask(worker, run, request(1))
    await caller.cancel(call)
    await worker.cancelled(run)
    assert (await caller.outcome(call)).failure.kind == FailureKind.FAILURE_KIND_CANCELLED
    # What was open when the call was given up, and what is asked after that.
    assert await code(worker, run) == (1, CANCELLED)
    await ask(worker, run, request(2))
    assert await code(worker, run) == (2, CANCELLED)
    assert answers.gone == [1]


async def test_a_kind_that_nobody_answers_is_refused(memory_host: MemoryHost) -> None:
    worker, caller = await attach(memory_host), await memory_host.caller()
    await caller.start()
    run = (await worker.next_invoke()).call
    asked = OutboundRequest(request_id=1)
    asked.kv_get.key = "k"
    assert (await worker.ask(run, asked)).error.code == UNSUPPORTED
