import asyncio
import threading
from collections.abc import Callable
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import grpc
import grpc_testing  # type: ignore[import-untyped]  # it ships without types
import pytest

import pillion
import pillion.sync
from pillion import errors
from pillion._gen.pillion.v1 import execute_pb2
from pillion._gen.pillion.v1.execute_pb2 import ExecuteRequest, ExecuteResponse, GetInfoResponse
from pillion._gen.pillion.v1.frame_pb2 import Frame
from pillion._gen.pillion.v1.outbound_pb2 import ReplyErrorCode
from tests.sdk.conftest import StartWorker
from tests.support import SocketHost

SERVICE = execute_pb2.DESCRIPTOR.services_by_name["ToolHostService"]


async def in_thread(work: Callable[[], Any]) -> Any:
    return await asyncio.to_thread(work)


async def test_the_synchronous_face_does_it_all(socket_host: SocketHost, start_worker: StartWorker) -> None:
    @pillion.tool
    async def echo(n: int, ctx: pillion.ToolContext) -> int:
        ctx.progress({"n": n})
        return n

    @pillion.tool
    async def slow(ctx: pillion.ToolContext) -> None:
        ctx.progress("began")
        await asyncio.Event().wait()

    await start_worker(echo, slow)

    def work() -> None:
        with pillion.sync.connect(socket_host.callers_at) as host:
            assert host.connected
            assert host.call("echo", {"n": 1}, timeout=10) == 1
            with host.start("echo", {"n": 2}) as call:
                assert [report.payload for report in call] == [{"n": 2}]
                assert call.result() == 2
                assert call.raw().json == b"2"
                assert call.execution_id
                assert call.tool_call_id
            with host.start("slow") as call:
                assert next(iter(call)).payload == "began"
                call.cancel()
                assert isinstance(call.ended(), errors.CallCancelled)
                with pytest.raises(errors.CallCancelled):
                    call.result()
            assert set(host.tools().by_name) == {"echo", "slow"}
            with closing(host.watch_tools()) as watched:
                assert set(next(watched).by_name) == {"echo", "slow"}
            assert host.info().limits.max_in_flight
            assert host.end_run("r") == host.end_session("s") == pillion.EndedScope(0, 0, 0)
            with pytest.raises(errors.UnknownTool):
                host.call("nowhere")
            values: list[int] = []
            threads = [
                threading.Thread(target=lambda n=n: values.append(host.call("echo", {"n": n}))) for n in range(20)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert sorted(values) == list(range(20))
        with pytest.raises(errors.Closed):
            host.call("echo", {"n": 1})

    await in_thread(work)


async def test_the_synchronous_face_has_artifacts(
    socket_host: SocketHost, start_worker: StartWorker, tmp_path: Path
) -> None:
    @pillion.tool(wants={"data": "note"})
    async def echo(data: str) -> str:
        return data

    await start_worker(echo)
    large = bytes(range(256)) * 12 * 1024

    def work() -> None:
        with pillion.sync.connect(socket_host.callers_at) as host:
            artifacts = host.artifacts.within(session_id="s")
            note = artifacts.put("hello", kind="note")
            assert host.call("echo", {"data": note.reference}, session_id="s") == "hello"
            source = tmp_path / "large"
            source.write_bytes(large)
            parts = (large[start : start + 100_000] for start in range(0, len(large), 100_000))
            for data, size in ((large, None), (source, None), (source.open("rb"), None), (parts, len(large))):
                with closing(data) if hasattr(data, "close") else nullcontext():
                    meta = artifacts.put(data, kind="k", size=size)
                found = artifacts.get(meta.reference)
                assert found is not None
                assert found[1] == large
                assert artifacts.save(meta.reference, tmp_path / "copy").size == len(large)
                assert (tmp_path / "copy").read_bytes() == large
                with artifacts.open(meta.reference, 1) as opened:
                    assert opened.meta.reference == meta.reference
                    assert next(iter(opened)) == large[1 : 1 + 256 * 1024]
                    assert opened.read() == large[1 + 256 * 1024 :]
                with artifacts.open(meta.reference) as opened:
                    opened.save(tmp_path / "copy")
            assert len(list(artifacts.list())) == 5
            artifacts.delete(note.reference)
            assert artifacts.head(note.reference) is None
            assert artifacts.get(note.reference) is None
            assert host.artifacts.get(note.reference) is None
            with pytest.raises(errors.ArtifactMissing), artifacts.open(note.reference):
                pass
            with pytest.raises(errors.ArtifactRefused):
                artifacts.put(large, kind=" ")

    await in_thread(work)


async def test_threads_that_ask_while_it_closes_are_told(socket_host: SocketHost, start_worker: StartWorker) -> None:
    @pillion.tool
    async def echo(n: int) -> int:
        return n

    await start_worker(echo)
    raised: list[BaseException] = []

    def ask(asking: Callable[[], Any]) -> None:
        try:
            while True:
                asking()
        except errors.StreamLost:
            ask(asking)
        except BaseException as error:  # noqa: BLE001  # whatever it was
            raised.append(error)

    def work() -> None:
        for _ in range(10):
            with pillion.sync.connect(socket_host.callers_at) as host:
                asks = (lambda host=host: host.call("echo", {"n": 1}), host.tools)
                threads = [threading.Thread(target=ask, args=(each,), daemon=True) for each in asks * 2]
                for thread in threads:
                    thread.start()
                host.info()
            for thread in threads:
                thread.join(5)
                assert not thread.is_alive(), "a thread waits for ever"

    await in_thread(work)
    assert {type(error) for error in raised} == {errors.Closed}


async def test_nobody_there_is_told(tmp_path: Any) -> None:
    def work() -> None:
        with (
            pytest.raises(errors.ConnectionFailed, match="within"),
            pillion.sync.connect(f"unix:{tmp_path}/nobody.sock", connect_timeout=0.2),
        ):
            pass

    await in_thread(work)


class FakeSidecar:
    """The far end of a channel of grpcio-testing: one stream, served by a thread."""

    def __init__(self) -> None:
        self.channel: Any = grpc_testing.channel([SERVICE], grpc_testing.strict_real_time())
        self.starts: list[Frame] = []
        self.replies: list[Frame] = []
        self.answered = threading.Event()
        self.metadata: Any = None
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        self.metadata, rpc = self.channel.take_stream_stream(SERVICE.methods_by_name["Execute"])
        rpc.send_initial_metadata(())

        def send(*frames: Frame) -> None:
            rpc.send_response(ExecuteResponse(frames=frames).SerializeToString())

        while True:
            for frame in ExecuteRequest.FromString(rpc.take_request()).frames:
                if frame.HasField("caller_hello"):
                    hello = Frame()
                    hello.host_hello.instance_id = "fake"
                    hello.host_hello.limits.max_frame_bytes = 1 << 20
                    hello.host_hello.limits.max_in_flight = 8
                    send(hello)
                elif frame.HasField("start"):
                    self.starts.append(frame)
                    if frame.start.tool == "lost":
                        rpc.terminate((), grpc.StatusCode.UNAVAILABLE, "gone")
                        return
                    if frame.start.tool == "asks":
                        question = Frame(call=frame.call)
                        question.caller_request.request_id = 7
                        question.caller_request.method = "elicitation/create"
                        question.caller_request.params = b'{"message":"sure?"}'
                        question.caller_request.timeout.seconds = 5
                        send(question)
                        continue
                    outcome = Frame(call=frame.call)
                    outcome.outcome.result.json = frame.start.arguments
                    send(outcome)
                elif frame.HasField("reply"):
                    self.replies.append(frame)
                    outcome = Frame(call=frame.call)
                    outcome.outcome.result.json = frame.reply.caller.result
                    send(outcome)


@pytest.fixture
def fake() -> FakeSidecar:
    return FakeSidecar()


def test_a_channel_may_be_brought_along(fake: FakeSidecar) -> None:
    with pillion.sync.connect(fake.channel, connect_timeout=5, token="secret") as host:
        assert host.call("echo", {"a": 1}) == {"a": 1}
        assert host.call("echo", b"[2]") == [2]
    assert ("authorization", "Bearer secret") in fake.metadata
    assert [frame.call for frame in fake.starts] == [1, 2]


def test_a_question_is_answered_by_a_plain_function(fake: FakeSidecar) -> None:
    asked: list[pillion.Question] = []

    def answer(question: pillion.Question) -> Any:
        asked.append(question)
        return {"action": "accept"}

    with pillion.sync.connect(fake.channel, connect_timeout=5, can_answer={"elicitation/create": answer}) as host:
        assert host.call("asks") == {"action": "accept"}
    assert asked == [pillion.Question("elicitation/create", {"message": "sure?"}, 5.0, None)]


def test_an_answer_may_be_an_error(fake: FakeSidecar) -> None:
    def answer(question: pillion.Question) -> Any:
        raise pillion.PeerError(-32_001, "no", {"why": 1})

    with (
        pillion.sync.connect(fake.channel, connect_timeout=5, can_answer={"elicitation/create": answer}) as host,
        host.start("asks") as call,
    ):
        call.ended()
    [frame] = fake.replies
    assert (frame.reply.error.code, frame.reply.error.peer.code) == (21, -32_001)
    assert (frame.reply.error.peer.message, frame.reply.error.peer.data) == ("no", b'{"why":1}')


def test_an_answer_that_cannot_be_told_is_refused_too(fake: FakeSidecar, caplog: pytest.LogCaptureFixture) -> None:
    def answer(_question: pillion.Question) -> Any:
        raise pillion.PeerError(-32_000, "not now", {"when": float("nan")})

    with (
        pillion.sync.connect(fake.channel, connect_timeout=5, can_answer={"elicitation/create": answer}) as host,
        host.start("asks", timeout=5) as call,
    ):
        call.ended()
    (reply,) = fake.replies
    assert reply.reply.error.code == ReplyErrorCode.REPLY_ERROR_CODE_INTERNAL
    caplog.clear()


def test_what_nobody_answers_is_refused_at_once(fake: FakeSidecar) -> None:
    with pillion.sync.connect(fake.channel, connect_timeout=5) as host, host.start("asks") as call:
        call.ended()
    assert fake.replies[0].reply.error.code == 23


def test_a_lost_stream_is_told(fake: FakeSidecar) -> None:
    with pillion.sync.connect(fake.channel, connect_timeout=5) as host, pytest.raises(errors.StreamLost):
        host.call("lost")


def test_requests_go_over_the_channel_too(fake: FakeSidecar) -> None:
    def answer() -> None:
        _, _, rpc = fake.channel.take_unary_unary(SERVICE.methods_by_name["GetInfo"])
        rpc.send_initial_metadata(())
        rpc.terminate(GetInfoResponse(version="9").SerializeToString(), (), grpc.StatusCode.OK, "")
        _, _, rpc = fake.channel.take_unary_unary(SERVICE.methods_by_name["ListTools"])
        rpc.send_initial_metadata(())
        rpc.terminate(None, (), grpc.StatusCode.UNAUTHENTICATED, "who?")

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    with pillion.sync.connect(fake.channel, connect_timeout=5) as host:
        assert host.info().version == "9"
        with pytest.raises(errors.NotAuthenticated, match="who"):
            host.tools()
    thread.join()
