"""A worker that a sidecar starts, whose tools and bad habits its arguments name.

Tools: `echo` answers its arguments, `label` who answered, `pid` the process; `wait` and `clock` end after some seconds,
the latter with the time, `block` keeps a thread busy for as long, and `shout` prints a text and runs until cancelled.
`keep` registers a cleanup of a `name` for the end of a `scope`, which writes a line to a file, and ends after some
seconds; with `call` the cleanup names a call of `clean`, which writes such a line too. What it keeps and names none it
runs by itself when it loses the sidecar. `ask` waits as long, then asks the sidecar something, and ends with the time
of the answer.
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

# As the sidecar does: there is no fork without exec here that gRPC had to know of.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

from grpc import aio

from pillion._gen.pillion.v1 import attach_pb2, attach_pb2_grpc, context_pb2, tool_pb2, worker_pb2
from pillion._gen.pillion.v1.frame_pb2 import Frame, Pong

_MARK = "PILLION_TEST_MARK"
_ENDLESS = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"


class Worker:
    """One instance: what is to be written, and the calls that run."""

    def __init__(self, options: argparse.Namespace) -> None:
        label = self.label = options.label
        self.left: Path | None = options.left
        self.cleaned: Path | None = options.cleaned
        self.kept: dict[str, str] = {}
        self.named: set[str] = set()
        """Those of them that name a call."""
        self.replies: dict[int, asyncio.Future[Frame]] = {}
        self.outbox: asyncio.Queue[Frame] = asyncio.Queue()
        self.running: dict[int, asyncio.Event] = {}
        self.leaving = False
        descriptors = [
            tool_pb2.ToolDescriptor(
                name=name,
                description=f"{name} of {label}",
                effects=tool_pb2.EFFECTS_READ if name == "pid" else tool_pb2.EFFECTS_UNSAFE,
                holds=context_pb2.TEARDOWN_SCOPE_SESSION if options.holds else context_pb2.TEARDOWN_SCOPE_UNSPECIFIED,
            )
            for name in options.tools
        ]
        hello = worker_pb2.WorkerHello(
            worker=os.environ["PILLION_WORKER_NAME"], token=_token(), tools=descriptors, concurrency=512
        )
        self.outbox.put_nowait(Frame(worker_hello=hello))

    async def serve(self) -> None:
        """Attaches, and runs what is invoked until the stream ends."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.leave)
        async with aio.insecure_channel(os.environ["PILLION_WORKER_TARGET"]) as channel:
            stream = attach_pb2_grpc.WorkerHostServiceStub(channel).Attach(self._messages(), wait_for_ready=True)
            try:
                async with asyncio.TaskGroup() as calls:
                    async for message in stream:
                        for frame in message.frames:
                            self._handle(frame, calls)
            except* aio.AioRpcError:
                for number in self.kept.keys() - self.named:
                    self._write(self.kept[number], "BY_ITSELF")
                sys.exit("the stream was lost")
        if self.left is not None:
            with self.left.open("a") as file:
                file.write(f"{time.monotonic()}\n")
        print(f"{self.label} left in order", flush=True)

    async def _messages(self) -> AsyncIterator[attach_pb2.AttachRequest]:
        while True:
            yield attach_pb2.AttachRequest(frames=[await self.outbox.get()])

    def _handle(self, frame: Frame, calls: asyncio.TaskGroup) -> None:
        match frame.WhichOneof("body"):
            case "invoke":
                self.running[frame.call] = asyncio.Event()
                calls.create_task(self._run(frame.call, frame.invoke))
            case "cancel" if frame.call in self.running:
                self.running[frame.call].set()
            case "ping":
                self.outbox.put_nowait(Frame(pong=Pong(nonce=frame.ping.nonce)))
            case "reply":
                self.replies.pop(frame.call).set_result(frame)
            case "run_teardown":
                self._clean(frame.run_teardown)
            case "drain":
                self.leave()

    async def _run(self, call: int, invoke: worker_pb2.Invoke) -> None:
        arguments = json.loads(invoke.arguments or b"{}")
        progress = Frame(call=call)
        progress.progress.payload = b'{"message":"begun"}'
        self.outbox.put_nowait(progress)
        frame = Frame(call=call)
        frame.outcome.result.json = json.dumps(await self._value(call, invoke, arguments)).encode()
        self.outbox.put_nowait(frame)
        del self.running[call]

    async def _value(self, call: int, invoke: worker_pb2.Invoke, arguments: dict[str, Any]) -> Any:  # noqa: PLR0911  # one for each tool
        tool, context = invoke.tool, invoke.context
        match tool:
            case "wait" | "clock":
                try:
                    await asyncio.wait_for(self.running[call].wait(), arguments["seconds"])
                except TimeoutError:
                    return self.label if tool == "wait" else time.monotonic()
                return "cancelled"
            case "block":
                done, loop = asyncio.Event(), asyncio.get_running_loop()

                def block() -> None:
                    time.sleep(arguments["seconds"])
                    loop.call_soon_threadsafe(done.set)

                threading.Thread(target=block, daemon=True).start()
                await done.wait()
                return self.label
            case "pid":
                return os.getpid()
            case "shout":
                print(arguments.get("text", ""), flush=True)
                await self.running[call].wait()
                return None
            case "keep":
                return await self._keep(call, arguments)
            case "clean":
                return self._write(arguments["name"], _word(context.cleanup_reason))
            case "ask":
                await asyncio.sleep(arguments["seconds"])
                question = Frame(call=call)
                question.outbound_request.request_id = 1
                question.outbound_request.tools_has.tool = "ask"
                answer = (await self._ask(question)).reply
                return time.monotonic() if answer.tool_available.available else answer.error.message
            case _:
                return self.label if tool == "label" else arguments

    async def _keep(self, call: int, arguments: dict[str, Any]) -> str:
        frame = Frame(call=call)
        registration = frame.register_teardown
        registration.request_id = 1
        registration.scope = context_pb2.TeardownScope.Value(f"TEARDOWN_SCOPE_{arguments['scope'].upper()}")
        registration.name = arguments["name"]
        if arguments.get("call"):
            registration.cleanup_call.tool = "clean"
            registration.cleanup_call.arguments = json.dumps({"name": arguments["name"]}).encode()
        accepted = (await self._ask(frame)).reply.teardown
        if arguments.get("call"):
            self.named.add(accepted.registration_id)
        self.kept[accepted.registration_id] = arguments["name"]
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.running[call].wait(), arguments["seconds"])
        return accepted.registration_id

    async def _ask(self, frame: Frame) -> Frame:
        """The answer to the one request of a call."""
        answer: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self.replies[frame.call] = answer
        self.outbox.put_nowait(frame)
        return await answer

    def _clean(self, order: worker_pb2.RunTeardown) -> None:
        """Runs a cleanup."""
        self._write(self.kept.pop(order.registration_id), _word(order.reason))
        done = Frame()
        done.teardown_done.registration_id = order.registration_id
        self.outbox.put_nowait(done)

    def _write(self, name: str, reason: str) -> None:
        """Writes that something is cleaned up: when, what and why."""
        if self.cleaned is not None:
            with self.cleaned.open("a") as file:
                file.write(f"{time.monotonic()} {name} {reason}\n")

    def leave(self) -> None:
        """Says goodbye. What was on its way is run still; the sidecar ends the stream once nothing runs."""
        if not self.leaving:
            self.leaving = True
            goodbye = Frame()
            goodbye.goodbye.SetInParent()
            self.outbox.put_nowait(goodbye)


def _word(reason: "context_pb2.TeardownReason.ValueType") -> str:
    return context_pb2.TeardownReason.Name(reason).removeprefix("TEARDOWN_REASON_")


def _token() -> str:
    descriptor = int(os.environ.pop("PILLION_WORKER_TOKEN_FD"))
    token = os.read(descriptor, 4096).decode()
    os.close(descriptor)
    return token


def _detach() -> None:
    """Leaves a process behind that is of another session, whose parent has ended, and which heeds no SIGTERM."""
    script = (
        f"import os, subprocess, sys; os.setsid(); subprocess.Popen([sys.executable, '-c', {_ENDLESS!r}], env={{}})"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("tools", nargs="*", default=["echo"])
    parser.add_argument("--label", default="")
    parser.add_argument("--left", type=Path, help="a file to write when it leaves")
    parser.add_argument("--cleaned", type=Path, help="a file to which each cleanup writes a line")
    parser.add_argument("--holds", action="store_true", help="its tools hold something for sessions")
    parser.add_argument("--detach", action="store_true", help="leave a process in another session behind")
    parser.add_argument("--stubborn", action="store_true", help="heed no SIGTERM")
    parser.add_argument("--say", type=Path, help="a file to write to stdout before all else")
    options = parser.parse_args()
    if options.say is not None:
        sys.stdout.buffer.write(options.say.read_bytes())
        sys.stdout.flush()
    if options.detach:
        _detach()
    worker = Worker(options)
    if options.stubborn:
        worker.leave = lambda: None  # type: ignore[method-assign]  # not even when it is asked to drain
    asyncio.run(worker.serve())


if __name__ == "__main__":
    main()
