"""A worker: attaches to a sidecar, runs what it is told to, and comes back when the stream is lost."""

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import grpc

from pillion import _failures
from pillion._facts import CancelReason, Secret, TeardownReason, seconds_of
from pillion._gen.pillion.v1 import outcome_pb2
from pillion._gen.pillion.v1.artifacts_pb2 import DownloadRequest
from pillion._gen.pillion.v1.frame_pb2 import Frame
from pillion._gen.pillion.v1.worker_pb2 import Goodbye, Reattach, WorkerHello
from pillion._wire.backoff import Backoff
from pillion._wire.channel import ATTACH, DOWNLOAD, UPLOAD, GrpcConnection, StreamEnded, Transport
from pillion._wire.outbox import Lane, Limits
from pillion._wire.security import Security, StrPath, Tls, Token
from pillion._wire.stream import FrameStream
from pillion._worker.cleanups import SECONDS as CLEANUP_SECONDS
from pillion._worker.cleanups import Cleanups, Kept
from pillion._worker.execution import Execution
from pillion._worker.schema import ToolRefused
from pillion._worker.threads import Threads
from pillion._worker.tool import Tool, made_tool
from pillion._worker.wanted import Workspace

_log = logging.getLogger("pillion.worker")

_SDK = "pillion-python 0.1.0"
_CANCEL_GRACE = 2.0
_ORDERS = 10.0
"""How long a worker that leaves waits for the sidecar to have it run what it keeps."""
_NESTED = 64
"""How many calls beside its concurrency a sidecar gives it by default, for other calls that wait for them."""
_INSTANCE_SECRET = "pillion-instance-secret"  # noqa: S105  # the name of the metadata
_HOPELESS = frozenset(
    (
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.UNIMPLEMENTED,
    )
)


class WorkerRefused(_failures.PillionError):
    """The sidecar does not take this worker, or none of its tools; the text says why."""


class Worker:
    """Hosts tools for a sidecar. `run` lives until the worker left.

    A call's tool runs as a task, or in a thread. When the stream is lost, every call of it is cancelled (`DISCONNECT`),
    and the worker attaches again as the instance it was, after a wait of full jitter.
    """

    def __init__(  # noqa: PLR0913  # settings, each by its name
        self,
        tools: Iterable[Callable[..., Any]],
        *,
        target: str,
        worker: str,
        token: str | Secret | None = None,
        token_file: StrPath | None = None,
        tls: Tls | None = None,
        concurrency: int = 64,
        threads: int | None = None,
        drain: float = 30.0,
    ) -> None:
        """`concurrency` is how many calls run at once, `threads` how many plain tools among them (by default all).

        Beside them it is given calls that other calls have made, so that those do not wait for a slot in vain.

        The worker's token is `token`, or in `token_file`. By TCP off loopback it takes certificates, `tls`, as well.
        Files are read again for each stream.

        :raises ToolRefused: if a function cannot be a tool, or two have one name.
        :raises WorkerRefused: if there is no token, or it would go over a network in the clear.
        """
        self.loop: asyncio.AbstractEventLoop
        self.tools: dict[str, Tool[..., Any]] = {}
        """The tools by name."""
        for candidate in tools:
            tool = made_tool(candidate)
            if tool.name in self.tools:
                raise ToolRefused(f"Two tools have the name {tool.name}.")
            self.tools[tool.name] = tool
        self.instance_id: str | None = None
        """The id that the sidecar gave this instance; `None` before it did."""
        self.attached = asyncio.Event()
        """Set while the worker is attached."""
        self._target = target
        self._name = worker
        try:
            self._token = Token(token, token_file)
            self._security = Security(target, tls=tls)
            if not self._token.exists:
                raise WorkerRefused("The worker has no token: pass token= or token_file=.")
            self._security.keep_token()
        except _failures.CannotConnect as error:
            raise WorkerRefused(str(error)) from None
        self._concurrency = concurrency
        self._drain_seconds = drain
        self._secret = ""
        self._threads = Threads(threads or concurrency + _NESTED)
        self._cleanups = Cleanups()
        self._cleanups.on_idle = self._part
        self._connection: GrpcConnection | None = None
        self._clearing: set[asyncio.Task[None]] = set()
        self._stream: FrameStream | None = None
        self._running: dict[int, Execution] = {}
        self._all: set[Execution] = set()
        self._leaving = False
        # The sidecar may come after its worker; later it is this worker's back-off that spreads its tries.
        self._patient = True
        self._goodbye_said = False
        self._left = asyncio.Event()
        self._idle = asyncio.Event()
        self._refused: WorkerRefused | None = None
        self._window = math.inf
        self._apart: asyncio.TimerHandle | None = None
        self._parting: asyncio.TimerHandle | None = None
        self._handlers: Mapping[str | None, Callable[[Frame], None]] = {
            "welcome": self._welcome,
            "invoke": self._invoke,
            "cancel": self._cancel,
            "reply": self._reply,
            "progress": self._reported,
            "delivery": self._delivery,
            "run_teardown": self._run_teardown,
            "release": self._release,
            "drain": self._drain,
            "ping": self._ping,
            "stream_error": self._error,
        }

    @property
    def stubborn(self) -> tuple[str, ...]:
        """The asynchronous tools that run on though the worker has left: they ignore that they are cancelled.

        Those too whose cleanups do.
        """
        tools = (execution.tool.name for execution in self._all if execution.tool.is_async)
        return (*tools, *self._cleanups.stubborn)

    # --- its life

    async def run(self) -> None:
        """Serves until the sidecar drains this instance, or `leave` was called. Cancelling it leaves at once.

        :raises WorkerRefused: if the sidecar does not take this worker.
        """
        self.loop = asyncio.get_running_loop()
        connection = self._connection = GrpcConnection(self._target, self._security)
        backoff = Backoff()
        try:
            while not self._left.is_set():
                ended = await self._one_stream(connection)
                self._raise_if_refused()
                if self.attached.is_set():
                    backoff.reset()
                self._lost(ended)
                if self._left.is_set():
                    return
                if ended.code in _HOPELESS and not self._forgets(ended):
                    raise WorkerRefused(f"The sidecar turns this worker away: {ended.code.name}: {ended.details}")
                _log.info("the stream was lost: %s", ended.code.name if ended.code else "the sidecar ended it")
                with suppress(TimeoutError):
                    async with asyncio.timeout(backoff.next()):
                        await self._left.wait()
        finally:
            await self._end(connection)

    def leave(self) -> None:
        """Says goodbye, so that nothing new comes, and lets what runs finish, for `drain` seconds at most.

        Then the sidecar has it run what it keeps for the ends of scopes; what it has not, the worker runs by itself.
        """
        self._begin_to_leave(self._drain_seconds)
        if self._stream is not None and self.attached.is_set() and not self._goodbye_said:
            self._goodbye_said = True
            self._stream.send(Frame(goodbye=Goodbye()))
        self._part()

    def hurry(self) -> None:
        """Asks what runs to stop, and leaves when it did or its grace is over."""
        self.leave()
        self._cancel_all(CancelReason.DRAIN)
        self.loop.call_later(_CANCEL_GRACE, self._drop)

    def _forgets(self, ended: StreamEnded) -> bool:
        """Whether to come back as another instance: the sidecar may not know this one by its secret any more."""
        known, self.instance_id = self.instance_id, None
        if known is None or ended.code is not grpc.StatusCode.UNAUTHENTICATED:
            return False
        self._cleanups.part(TeardownReason.WORKER_LOST)
        return True

    def _raise_if_refused(self) -> None:
        if self._refused is not None:
            raise self._refused

    async def _one_stream(self, connection: GrpcConnection) -> StreamEnded:
        try:
            shown = await self._token.shown()
            await connection.prepare(anew=True)
        except _failures.CannotConnect as error:
            raise WorkerRefused(str(error)) from None
        hello = WorkerHello(
            worker=self._name,
            token=shown or "",
            sdk=_SDK,
            tools=[tool.descriptor for tool in self.tools.values()],
            concurrency=self._concurrency,
        )
        if self.instance_id is not None:
            again = Reattach(instance_id=self.instance_id, secret=self._secret)
            again.registrations.extend(self._cleanups.registrations)
            hello.reattach.CopyFrom(again)
        stream = FrameStream(connection.open(ATTACH, wait_for_ready=self._patient), self._handlers)
        self._stream = stream
        self._patient = False
        stream.send(Frame(worker_hello=hello))
        serving = self.loop.create_task(stream.run())
        leaving = self.loop.create_task(self._left.wait())
        try:
            # A stream that was never welcomed has nobody to say goodbye to.
            await asyncio.wait((serving, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not serving.done() and not self.attached.is_set():
                stream.drop()
            return await serving
        finally:
            leaving.cancel()
            serving.cancel()
            await asyncio.gather(leaving, serving, return_exceptions=True)

    def _lost(self, ended: StreamEnded) -> None:
        """The stream is over: every call of it is cancelled, and its frames go nowhere."""
        was_attached = self.attached.is_set()
        self._stream = None
        self.attached.clear()
        if self._running:
            _log.warning("%d calls are cancelled: the stream is lost: %s", len(self._running), ended.details)
        self._cancel_all(CancelReason.DISCONNECT)
        self._running.clear()
        self._cleanups.stream_lost()
        if was_attached and self._cleanups.registrations and not self._leaving and self._apart is None:
            self._apart = self.loop.call_later(self._window, self._fire_apart)

    def _fire_apart(self) -> None:
        self._apart = None
        if not self.attached.is_set():
            # What a hello on its way says is kept is so no more; the next one says what is.
            self._drop()
            self._cleanups.fire_unasked(TeardownReason.WORKER_LOST)

    async def _end(self, connection: GrpcConnection) -> None:
        self._leaving = True
        self._left.set()
        for timer in (self._apart, self._parting):
            if timer is not None:
                timer.cancel()
        # All that a guardian leaves, to tools that are cancelled and to cleanups together.
        until = self.loop.time() + CLEANUP_SECONDS
        self._cancel_all(CancelReason.DRAIN)
        if self._all:
            self._idle.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(_CANCEL_GRACE):
                    await self._idle.wait()
            for name in self.stubborn:
                _log.error("%s ignores that it is cancelled, and is left behind", name)
        self._cleanups.fire_unasked(TeardownReason.SHUTDOWN, until - self.loop.time())
        await self._cleanups.finish(until - self.loop.time())
        if self._clearing:
            await asyncio.wait(self._clearing)
        self._threads.close()
        await connection.close()

    def _begin_to_leave(self, grace: float) -> None:
        if not self._leaving:
            self._leaving = True
            self.loop.call_later(grace, self._hurry_late)
            self._left.set()

    def _hurry_late(self) -> None:
        if self._stream is not None:
            self.hurry()

    def _drop(self) -> None:
        # Cleanups that the sidecar has it run now are waited for, for as long as they may take.
        if self._stream is not None and (self._running or self._parting is None):
            self._stream.drop()

    def _part(self) -> None:
        """Says the last word once nothing runs any more, and nothing is kept; for that the sidecar has its time."""
        stream = self._stream
        if self._leaving and stream is not None and not self._running and self.attached.is_set():
            if not self._goodbye_said:
                self._goodbye_said = True
                stream.send(Frame(goodbye=Goodbye()))
            if self._cleanups.idle:
                stream.finish()
            elif self._parting is None:
                self._parting = self.loop.call_later(_ORDERS, stream.finish)

    def _cancel_all(self, reason: CancelReason) -> None:
        for execution in tuple(self._all):
            execution.cancel(reason)

    # --- for executions

    def finished(self, execution: Execution) -> None:
        """An execution has ended."""
        self._all.discard(execution)
        if self._running.get(execution.call) is execution:
            del self._running[execution.call]
        if self._leaving:
            if not self._all:
                self._idle.set()
            self._part()

    def clear(self, workspace: Workspace) -> None:
        """Removes what an execution was handed."""
        clearing = self.loop.create_task(workspace.close())
        self._clearing.add(clearing)
        clearing.add_done_callback(self._clearing.discard)

    def open_transfer(self, request: DownloadRequest | None) -> Transport:
        """A stream of a download; without a request, of an upload."""
        if self._connection is None:
            raise _failures.Closed("The worker was closed.")
        shown = ((_INSTANCE_SECRET, self._secret),)
        if request is None:
            return self._connection.transfer(UPLOAD, None, metadata=shown)
        return self._connection.transfer(DOWNLOAD, request.SerializeToString(), metadata=shown)

    def expect_cleanup(self, call: int, request_id: int, kept: Kept) -> None:
        """A cleanup is on its way to be registered."""
        self._cleanups.expect(call, request_id, kept)

    # --- frames

    def _welcome(self, frame: Frame) -> None:
        welcome = frame.welcome
        stream = self._stream
        if stream is None:
            return
        if self.instance_id not in (None, welcome.instance_id):
            # The sidecar has given up the instance that it was.
            self._cleanups.part(TeardownReason.WORKER_LOST)
        self.instance_id, self._secret = welcome.instance_id, welcome.reattach_secret
        self._window = seconds_of(welcome.reattach_window)
        limits = welcome.limits
        stream.outbox.limits = Limits(limits.max_frame_bytes, limits.max_inline_bytes, limits.max_in_flight)
        for refused in welcome.refused:
            _log.error("the tool %s was refused: %s", refused.name, refused.reason)
        if self._apart is not None:
            self._apart.cancel()
            self._apart = None
        if welcome.refused and len(welcome.refused) >= len(self.tools):
            reasons = "; ".join(f"{refused.name}: {refused.reason}" for refused in welcome.refused)
            self._refused = WorkerRefused(f"None of the tools was taken: {reasons}")
            stream.drop()
            return
        self.attached.set()
        _log.info("attached as %s with %d tools", self.instance_id, len(self.tools) - len(welcome.refused))
        if self._leaving:
            self.leave()

    def _invoke(self, frame: Frame) -> None:
        stream = self._stream
        if stream is None:
            return
        lane = Lane(stream.outbox, frame.call)
        tool = self.tools.get(frame.invoke.tool)
        if tool is None:
            failed = Frame(call=frame.call)
            failure = failed.outcome.failure
            failure.kind = outcome_pb2.FailureKind.FAILURE_KIND_UNAVAILABLE
            failure.message = "This worker does not have the tool."
            failure.side_effects = outcome_pb2.SideEffects.SIDE_EFFECTS_NONE
            lane.send(failed.SerializeToString(), last=True)
            return
        execution = Execution(self, tool, frame.invoke, lane)
        self._running[frame.call] = execution
        self._all.add(execution)
        if tool.is_async:
            execution.start()
        else:
            self._threads.run(execution.run_in_thread)

    def _cancel(self, frame: Frame) -> None:
        execution = self._running.get(frame.call)
        if execution is not None:
            number = frame.cancel.reason
            execution.cancel(CancelReason(number) if 1 <= number <= len(CancelReason) else CancelReason.CALLER)

    def _reply(self, frame: Frame) -> None:
        # Before anything else of the message: the order to run it may be in there too.
        self._cleanups.replied(frame.call, frame.reply)
        execution = self._running.get(frame.call)
        if execution is not None:
            execution.replied(frame.reply)

    def _reported(self, frame: Frame) -> None:
        execution = self._running.get(frame.call)
        if execution is not None:
            execution.reported(frame.progress)

    def _delivery(self, frame: Frame) -> None:
        execution = self._running.get(frame.call)
        if execution is not None:
            execution.delivered(frame)

    def _run_teardown(self, frame: Frame) -> None:
        stream = self._stream
        if stream is not None:
            self._cleanups.fire(frame.run_teardown, partial(self._send_on, stream))

    def _send_on(self, stream: FrameStream, frame: Frame) -> bool:
        """Sends a frame. False: that stream is over."""
        if stream is not self._stream:
            return False
        stream.send(frame)
        return True

    def _release(self, frame: Frame) -> None:
        self._cleanups.release(frame.release.registration_id)

    def _drain(self, frame: Frame) -> None:
        _log.info("the sidecar drains this instance")
        self._begin_to_leave(seconds_of(frame.drain.grace))
        self._part()

    def _ping(self, frame: Frame) -> None:
        answer = Frame()
        answer.pong.nonce = frame.ping.nonce
        if self._stream is not None:
            self._stream.send(answer)

    def _error(self, frame: Frame) -> None:
        _log.warning("the sidecar complains of this stream: %s", frame.stream_error.message)
