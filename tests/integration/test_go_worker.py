"""What the bare worker in Go owes a sidecar, which is here in the test's hands."""

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind, SideEffects
from sidecar.wire.grpc import GrpcTransport
from sidecar.wire.transport import StreamLost
from tests.integration.conftest import Run
from tests.support import End, Peer, text
from tests.support.programs import GO_WORKER, Program

# The time is that of the tests alone: building the examples takes minutes the first time.
pytestmark = [pytest.mark.timeout(60, func_only=True), pytest.mark.usefixtures("examples")]


@pytest.fixture
def transport() -> str:
    return "unix"


class ServedLink:
    """The serving end of one `Attach` stream."""

    def __init__(self, transport: GrpcTransport) -> None:
        self._transport = transport
        self.over = asyncio.Event()
        """Ends the RPC, in order or by `cut`."""
        self.lost = False

    async def read(self) -> bytes | None:
        try:
            return await self._transport.read()
        except StreamLost:
            return None

    async def write(self, message: bytes) -> None:
        await self._transport.write(message)

    async def half_close(self) -> None:
        self.over.set()

    def cut(self) -> None:
        self.lost = self.lost or not self.over.is_set()
        self.over.set()

    async def end(self) -> End:
        return End(grpc.StatusCode.OK, "")

    async def aclose(self) -> None:
        self.cut()


class Sidecar(Peer):
    """The sidecar's end of the stream: `frames` and `order` are what the worker sent."""

    async def welcome(self) -> Frame:
        """Welcomes the worker; answers its hello."""
        hello = await self.next_of("worker_hello")
        frame = Frame()
        frame.welcome.instance_id = "ins_test"
        await self.send(frame)
        return hello

    async def invoke(self, call: int, arguments: Any = None, tool: str = "find_duplicates") -> None:
        """Runs a tool."""
        frame = Frame(call=call)
        frame.invoke.tool, frame.invoke.arguments = tool, text({} if arguments is None else arguments)
        await self.send(frame)

    async def cancel(self, call: int) -> None:
        """Asks a call to stop."""
        frame = Frame(call=call)
        frame.cancel.SetInParent()
        await self.send(frame)

    async def drain(self) -> None:
        """Asks the worker to finish."""
        frame = Frame()
        frame.drain.SetInParent()
        await self.send(frame)

    async def half_closed(self) -> None:
        """Returns once the worker has sent its last message."""
        await self._until(lambda: self.is_over, "the half-close")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder that is served. In `huge` are files that take hours to compare, and no room."""
    served = tmp_path / "served"
    for name in ("huge/a", "huge/b", "few/a", "few/b", "few/c"):
        (served / name).parent.mkdir(parents=True, exist_ok=True)
        (served / name).write_bytes(b"equal")
    for name in ("huge/a", "huge/b"):
        with (served / name).open("r+b") as file:
            file.truncate(1 << 42)
    return served


@pytest.fixture
async def sidecar(tmp_path: Path) -> AsyncIterator["asyncio.Queue[Sidecar]"]:
    """Where the worker attaches: gives the sidecar's end of each stream."""
    attached: asyncio.Queue[Sidecar] = asyncio.Queue()

    async def attach(_: Any, context: "grpc.aio.ServicerContext[bytes, bytes]") -> None:
        link = ServedLink(GrpcTransport(context))
        end = Sidecar(link, virtual=False)
        attached.put_nowait(end)
        await link.over.wait()
        await end.aclose()
        if link.lost:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "No worker of this name has this token.")

    server = grpc.aio.server()
    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler(
                "pillion.v1.WorkerHostService", {"Attach": grpc.stream_stream_rpc_method_handler(attach)}
            ),
        )
    )
    server.add_insecure_port(f"unix:{tmp_path}/workers.sock")
    await server.start()
    yield attached
    await server.stop(None)


@pytest.fixture
def worker(run: Run, sidecar: "asyncio.Queue[Sidecar]", tmp_path: Path, folder: Path) -> Program:
    """The running worker."""
    (tmp_path / "token").write_text("a token\n")
    options = {"target": f"unix:{tmp_path}/workers.sock", "token-file": f"{tmp_path}/token", "folder": f"{folder}"}
    return run(*GO_WORKER, *(f"--{name}={setting}" for name, setting in options.items()))


@pytest.fixture
async def stream(sidecar: "asyncio.Queue[Sidecar]", worker: Program) -> Sidecar:
    """The sidecar's end of its stream."""
    async with asyncio.timeout(15):
        return await sidecar.get()


async def test_says_hello_first_with_token_tools_and_concurrency(stream: Sidecar) -> None:
    hello = (await stream.next()).worker_hello
    assert (hello.worker, hello.token, hello.concurrency) == ("finder", "a token", 4)
    assert [tool.name for tool in hello.tools] == ["find_duplicates"]


async def test_answers_pings_while_a_tool_runs(stream: Sidecar) -> None:
    await stream.welcome()
    await stream.invoke(1, {"path": "huge"})
    await stream.next_of("progress", 1)
    await stream.flush()


async def test_a_cancel_stops_its_call_and_no_other(stream: Sidecar) -> None:
    await stream.welcome()
    await stream.invoke(1, {"path": "huge"})
    await stream.invoke(2, {"path": "huge"})
    await stream.next_of("progress", 1)
    await stream.cancel(1)
    failure = (await stream.next_of("outcome", 1)).outcome.failure
    assert failure.kind == FailureKind.FAILURE_KIND_CANCELLED
    assert failure.side_effects == SideEffects.SIDE_EFFECTS_NONE
    assert failure.message == "The tool stopped because its call was cancelled."
    seen = len(stream.frames[2])
    await stream._until(lambda: len(stream.frames[2]) > seen + 1, "progress of the other call")
    assert "outcome" not in stream.bodies(2)
    await stream.cancel(2)
    await stream.next_of("outcome", 2)


async def test_a_cancel_of_no_call_and_frames_that_it_does_not_know_are_ignored(stream: Sidecar) -> None:
    await stream.welcome()
    await stream.cancel(7)
    unknown = Frame()
    unknown.MergeFromString(b"\xc2\x3e\x00")  # Field 1000, of length 0.
    release = Frame()
    release.release.registration_id = "reg_1"
    await stream.send(unknown, release)
    await stream.invoke(8, {"path": "few"})
    assert (await stream.next_of("outcome", 8)).outcome.HasField("result")


@pytest.mark.parametrize("path", ["..", "few/../../served", "/", "out", "few/a", "nowhere", "", "few/\0"])
async def test_reaches_no_folder_outside_the_served_one(stream: Sidecar, folder: Path, path: str) -> None:
    (folder / "out").symlink_to(folder.parent)
    await stream.welcome()
    await stream.invoke(1, {"path": path})
    failure = (await stream.next_of("outcome", 1)).outcome.failure
    assert failure.kind == FailureKind.FAILURE_KIND_INVALID_ARGUMENTS
    assert failure.message == "The path must name a folder inside the one that this worker serves."


async def test_an_unknown_tool_is_refused(stream: Sidecar) -> None:
    await stream.welcome()
    await stream.invoke(1, tool="other")
    failure = (await stream.next_of("outcome", 1)).outcome.failure
    assert failure.message == "This worker has no tool of this name."


async def test_what_is_queued_rides_in_one_message(stream: Sidecar) -> None:
    await stream.welcome()
    stream.pause()  # So that the worker can write no more than the windows of HTTP/2 take.
    invokes = []
    for call in range(1, 401):
        frame = Frame(call=call)
        frame.invoke.tool, frame.invoke.arguments = "find_duplicates", b'{"path": "few"}'
        invokes.append(frame)
    for begin in range(0, 400, 100):
        await stream.send(*invokes[begin : begin + 100])
    # What the worker cannot send, nobody is told: this is time for it to end its calls, and if it is too short the
    # messages are only smaller.
    await asyncio.sleep(0.5)
    before = stream.messages
    stream.resume()
    for call in range(1, 401):
        await stream.next_of("outcome", call)
        assert stream.bodies(call)[-1] == "outcome"
        assert stream.bodies(call).count("outcome") == 1
    frames = sum(map(len, stream.frames.values()))
    assert frames / (stream.messages - before) > 3


async def test_drain_lets_calls_finish_before_the_goodbye(stream: Sidecar, worker: Program) -> None:
    await stream.welcome()
    await stream.invoke(1, {"path": "huge"})
    await stream.next_of("progress", 1)
    await stream.drain()
    await stream.flush()
    assert "goodbye" not in stream.bodies()
    await stream.cancel(1)
    await stream.half_closed()
    assert [frame.WhichOneof("body") for frame in stream.order[-2:]] == ["outcome", "goodbye"]
    await stream.half_close()
    assert await worker.finish() == (0, b"", [])


async def test_sigterm_says_goodbye_at_once_and_lets_calls_finish(stream: Sidecar, worker: Program) -> None:
    await stream.welcome()
    await stream.invoke(1, {"path": "huge"})
    await stream.next_of("progress", 1)
    worker.signal(signal.SIGTERM)
    await stream.next_of("goodbye")
    assert "outcome" not in stream.bodies(1)
    await stream.cancel(1)
    await stream.half_closed()
    assert stream.order[-1].WhichOneof("body") == "outcome"
    assert stream.bodies().count("goodbye") == 1
    await stream.half_close()
    assert await worker.finish() == (0, b"", [])


async def test_a_second_sigterm_ends_it(stream: Sidecar, worker: Program) -> None:
    await stream.welcome()
    await stream.invoke(1, {"path": "huge"})
    await stream.next_of("progress", 1)
    worker.signal(signal.SIGTERM)
    await stream.next_of("goodbye")
    worker.signal(signal.SIGTERM)
    assert await worker.finish() == (-signal.SIGTERM, b"", [])


async def test_a_lost_stream_ends_it_with_a_sentence_though_a_call_runs(stream: Sidecar, worker: Program) -> None:
    await stream.welcome()
    await stream.invoke(1, {"path": "huge"})
    await stream.next_of("progress", 1)
    stream.cut()
    ended = await worker.finish()
    assert ended == (
        1,
        b"",
        ["The sidecar ended the stream: Unauthenticated: No worker of this name has this token."],
    )


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"folder": "/nowhere"}, "The folder cannot be opened: "),
        ({"token-file": "/nowhere"}, "The token cannot be read: "),
    ],
)
async def test_says_what_it_cannot_start_with(run: Run, tmp_path: Path, change: dict[str, str], sentence: str) -> None:
    options = {"target": "unix:/nowhere", "token-file": "/dev/null", "folder": f"{tmp_path}"} | change
    worker = run(*GO_WORKER, *(f"--{name}={setting}" for name, setting in options.items()))
    code, output, errors = await worker.finish()
    assert (code, output) == (1, b"")
    assert errors[0].startswith(sentence)
