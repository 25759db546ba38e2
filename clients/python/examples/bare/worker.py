"""A worker on bare gRPC stubs: one stream, a batch of frames in each message, no SDK.

All that a worker owes the sidecar is in `Worker`, and is the same few steps in any language: say hello, run what is
invoked, answer pings, heed cancels, leave in order. The work itself is in `csv_profile`.
"""

import argparse
import asyncio
import json
import logging
import signal
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path

from csv_profile import DATASETS, Step, profile, read
from grpc import aio
from schemas import INPUT_SCHEMA, OUTPUT_SCHEMA

from pillion._gen.pillion.v1 import attach_pb2, attach_pb2_grpc, outcome_pb2, tool_pb2, worker_pb2
from pillion._gen.pillion.v1.frame_pb2 import Frame, Pong

CONCURRENCY = 4  # `asyncio.to_thread` has at least five threads, so an invoked call never waits for one.
MESSAGE_FRAMES, MESSAGE_BYTES = 128, 256 * 1024  # Where a message is closed and the next one begun.
GOODBYE = Frame(goodbye=worker_pb2.Goodbye())
DESCRIPTORS = [
    tool_pb2.ToolDescriptor(
        name="profile_csv",
        title="Profile a CSV data set",
        description="Says what is in each column of a data set (type, nulls, distinct values, spread or commonest "
        "values) and how its numeric columns correlate. Use it before any other question about the data.",
        input_schema=json.dumps(INPUT_SCHEMA).encode(),
        output_schema=json.dumps(OUTPUT_SCHEMA).encode(),
        annotations=tool_pb2.ToolAnnotations(read_only=True, idempotent=True, open_world=False),
        effects=tool_pb2.EFFECTS_READ,
    )
]

log = logging.getLogger(__name__)


def profile_csv(arguments: bytes, step: Step) -> bytes:
    """The tool: JSON in, JSON out. The sidecar has checked the arguments against the schema."""
    wanted = json.loads(arguments)
    # A name is looked up and never made into a path.
    table = read(DATASETS[wanted["dataset"]])
    return json.dumps(profile(wanted["dataset"], table, int(wanted.get("top", 3)), step), allow_nan=False).encode()


TOOLS = {"profile_csv": profile_csv}


class Stopped(Exception):
    """The call was cancelled, and its tool stopped."""


class Worker:
    """One instance: what is to be written to its stream, and the calls that run."""

    def __init__(self, name: str, token: str) -> None:
        """Queues the hello, which is the first frame of every stream."""
        hello = worker_pb2.WorkerHello(worker=name, token=token, tools=DESCRIPTORS, concurrency=CONCURRENCY)
        self.outbox: asyncio.Queue[Frame | None] = asyncio.Queue()
        self.outbox.put_nowait(Frame(worker_hello=hello))
        self.running: dict[int, threading.Event] = {}
        self.last_words: list[Frame | None] = []

    async def serve(self, target: str) -> None:
        """Attaches and handles frames until the stream ends. However it ends, it cancels the calls that still run."""
        async with aio.insecure_channel(target) as channel:
            stream = attach_pb2_grpc.WorkerHostServiceStub(channel).Attach(self.messages(), wait_for_ready=True)
            async with asyncio.TaskGroup() as calls:
                try:
                    async for message in stream:
                        for frame in message.frames:
                            self.handle(frame, calls)
                except aio.AioRpcError as lost:
                    sys.exit(f"The sidecar ended the stream: {lost.code().name}: {lost.details()}")
                finally:
                    for cancelled in self.running.values():
                        cancelled.set()

    async def messages(self) -> AsyncIterator[attach_pb2.AttachRequest]:
        """The one writer: all that is queued rides in the next message, and nothing waits for a batch to fill."""
        while (frame := await self.outbox.get()) is not None:
            frames, size = [frame], frame.ByteSize()
            while len(frames) < MESSAGE_FRAMES and size < MESSAGE_BYTES and not self.outbox.empty():
                if (frame := self.outbox.get_nowait()) is None:
                    yield attach_pb2.AttachRequest(frames=frames)
                    return
                frames.append(frame)
                size += frame.ByteSize()
            yield attach_pb2.AttachRequest(frames=frames)

    def handle(self, frame: Frame, calls: asyncio.TaskGroup) -> None:
        """Handles one frame. Any that it does not know is ignored, so that the protocol can grow."""
        match frame.WhichOneof("body"):
            case "welcome":
                for tool in frame.welcome.refused:
                    log.error("the tool %s was refused: %s", tool.name, tool.reason)
                asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.leave)
            case "invoke":
                self.running[frame.call] = threading.Event()
                calls.create_task(self.run(frame.call, frame.invoke))
            case "cancel" if frame.call in self.running:
                self.running[frame.call].set()
            case "ping":
                self.outbox.put_nowait(Frame(pong=Pong(nonce=frame.ping.nonce)))
            case "drain":
                self.last_words = self.last_words or [GOODBYE, None]
                self.part()

    async def run(self, call: int, invoke: worker_pb2.Invoke) -> None:
        """Runs a tool in a thread, and ends its call with exactly one outcome."""
        loop, cancelled = asyncio.get_running_loop(), self.running[call]

        def step(message: str, done: int, total: int) -> None:
            if cancelled.is_set():
                raise Stopped
            report = {"message": f"{message}, {done} of {total}", "done": done, "total": total}
            progress = worker_pb2.Progress(payload=json.dumps(report).encode())
            loop.call_soon_threadsafe(self.outbox.put_nowait, Frame(call=call, progress=progress))

        failure = outcome_pb2.Failure(side_effects=outcome_pb2.SIDE_EFFECTS_NONE)  # True of every tool that only reads.
        outcome = outcome_pb2.Outcome(failure=failure)
        try:
            outcome.result.json = await asyncio.to_thread(TOOLS[invoke.tool], invoke.arguments, step)
        except Stopped:
            outcome.failure.kind = outcome_pb2.FAILURE_KIND_CANCELLED
            outcome.failure.message = "The tool stopped because its call was cancelled."
        except Exception:  # Its text may quote the data: it goes to this worker's own log and no further.
            log.exception("execution %s failed", invoke.context.execution_id)
            outcome.failure.kind = outcome_pb2.FAILURE_KIND_TOOL_FAILED
            outcome.failure.message = "The tool failed; its worker's log says why."
        self.outbox.put_nowait(Frame(call=call, outcome=outcome))
        del self.running[call]
        self.part()

    def leave(self) -> None:
        """Says goodbye, so that no new call comes, and lets the running ones finish."""
        if not self.last_words:
            self.outbox.put_nowait(GOODBYE)
            self.last_words = [None]
        self.part()

    def part(self) -> None:
        """Says the last words, if any, once no call runs; `None` half-closes the stream."""
        for word in self.last_words if not self.running else []:
            self.outbox.put_nowait(word)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A worker with the tool profile_csv.")
    parser.add_argument("--target", required=True, help="the sidecar's worker listener, such as unix:/run/workers.sock")
    parser.add_argument("--name", default="profiler", help="the configured name of the worker set")
    parser.add_argument("--token-file", required=True, type=Path, help="the file that holds the set's token")
    options = parser.parse_args()
    asyncio.run(Worker(options.name, options.token_file.read_text().strip()).serve(options.target))
