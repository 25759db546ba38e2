"""Random steps against a sidecar in memory, and what must hold whatever they were."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

import grpc

from sidecar._gen.pillion.v1.call_pb2 import Start, Started
from sidecar._gen.pillion.v1.context_pb2 import CancelReason, TeardownScope
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outcome_pb2 import SideEffects
from sidecar._gen.pillion.v1.tool_pb2 import ToolDescriptor
from sidecar._gen.pillion.v1.worker_pb2 import Drain, Reattach, RegisterTeardown, TeardownDone
from sidecar.calls.limits import CallLimits
from sidecar.scope import ScopeKey, ScopeLimits, scope_of
from sidecar.wire.limits import WireLimits
from sidecar.wire.transport import StreamLost
from sidecar.workers.limits import WorkerLimits
from tests.support.caller import CallerPeer
from tests.support.host import MemoryHost, Setup
from tests.support.peer import Peer
from tests.support.tools import IDEMPOTENT, READ, UNSAFE, tool
from tests.support.virtual_time import VirtualTimeLoop
from tests.support.worker import WorkerPeer, failure, progress, result, tools_changed

CALLERS, WORKERS = 2, 3
TOOLS = ("send", "read", "put")
EFFECTS = {"send": UNSAFE, "read": READ, "put": IDEMPOTENT}

_KIB = 1024
_CALL = TeardownScope.TEARDOWN_SCOPE_CALL
_SESSION = TeardownScope.TEARDOWN_SCOPE_SESSION
# Everything is small, so that few steps reach every limit.
SETUP = Setup(
    CallLimits(
        timeout=4,
        cancel_grace=0.5,
        teardown_grace=1,
        worker_wait=1.5,
        waiting_per_set=3,
        in_flight_per_stream=6,
        in_flight_per_subject=8,
        large_outcome=_KIB,
    ),
    WireLimits(
        max_frame_bytes=8 * _KIB,
        max_inline_bytes=2 * _KIB,
        max_message_bytes=64 * _KIB,
        message_bytes=4 * _KIB,
        progress_kept=3,
        undelivered_soft=8 * _KIB,
        undelivered_hard=24 * _KIB,
        stall_after=5,
    ),
    WorkerLimits(ping_interval=3, reattach_window=5, unlist_after=5, drain=4),
    scopes=ScopeLimits(idle=6, live=2, registrations_per_instance=3, registrations_per_scope=2),
)
_LONG = 40.0
_TAKEN_WITHIN = 0.05


class Opened(NamedTuple):
    """A call that a caller opened."""

    caller: CallerPeer
    call: int
    taken: bool
    """Whether the sidecar certainly read the start."""


class Exercise:
    """A sidecar with callers and workers that come and go by number.

    Each public method but `finish` is a step, and always possible.
    """

    def __init__(self) -> None:
        self.host = MemoryHost(SETUP)
        self.callers: dict[int, CallerPeer] = {}
        self.workers: dict[int, WorkerPeer] = {}
        self.calls: list[Opened] = []
        self.all_callers: list[CallerPeer] = []
        self.all_workers: list[WorkerPeer] = []
        self.cut_callers: set[CallerPeer] = set()
        self._reported = 0
        self._ending: set[asyncio.Task[Any]] = set()

    # --- callers

    async def start(self, number: int, tool_name: str, key: str | None, timeout: float | None, size: int) -> None:
        """Opens a call."""
        caller = await self._caller(number)
        fields: dict[str, Any] = {"session_id": f"session of {tool_name}"}
        if key is not None:
            fields["idempotency_key"] = key
        if timeout is not None:
            fields |= {"timeout": timeout, "idle_timeout": 0.7}
        frame = caller.starting(tool_name, b'{"pad":"' + b"x" * size + b'"}', **fields)
        taken = await self._send(caller, frame)
        self.calls.append(Opened(caller, frame.call, taken))

    async def burst(self, number: int, tool_name: str, count: int) -> None:
        """Opens several calls in one message, some of a tool that is not there."""
        caller = await self._caller(number)
        frames = [caller.starting(tool_name if each % 4 < 3 else "nobody") for each in range(count)]
        taken = await self._send(caller, *frames)
        self.calls.extend(Opened(caller, frame.call, taken) for frame in frames)

    async def cancel(self, pick: int, reason: "CancelReason.ValueType") -> None:
        """Cancels one of the calls, perhaps one that has ended."""
        if self.calls:
            opened = self.calls[pick % len(self.calls)]
            frame = Frame(call=opened.call)
            frame.cancel.reason = reason
            await self._send(opened.caller, frame)

    async def caller_misbehaves(self, number: int, how: int, pick: int) -> None:
        """Sends what a caller may not send, or what nobody knows, perhaps on an open call."""
        caller = await self._caller(number)
        call = pick % (caller.last_call + 2)
        match how % 5:
            case 0:
                await self._send(caller, Frame(call=call, started=Started(execution_id="mine")))
            case 1:
                await self._send(caller, progress(call, "not a caller's"))
            case 2:
                await self._send(caller, Frame(call=min(call, caller.last_call), start=Start(tool="send")))
            case 3:
                frame = Frame(call=call)
                frame.reply.request_id = 7
                await self._send(caller, frame)
            case _:
                # A body of a later protocol, and a message that is no batch.
                await self._send_bytes(caller, b"\x0a\x07\x08\x01\xc2\x0c\x02hi")
                await self._send_bytes(caller, b"\x0a\xff")

    async def half_close_caller(self, number: int) -> None:
        """Ends what a caller writes."""
        caller = self.callers.pop(number, None)
        if caller is not None:
            await caller.half_close()

    async def cut_caller(self, number: int) -> None:
        """Loses a caller's stream."""
        caller = self.callers.pop(number, None)
        if caller is not None:
            self.cut_callers.add(caller)
            caller.cut()

    # --- workers

    async def attach(self, number: int, version: int, concurrency: int) -> None:
        """Attaches a worker, unless it is there."""
        if number in self.workers and not self.workers[number].is_over:
            return
        worker = self.workers[number] = await self.host.worker()
        self.all_workers.append(worker)
        with contextlib.suppress(StreamLost):
            await worker.present(*self._tools(version), concurrency=concurrency)

    async def come_back(self, number: int, pick: int) -> None:
        """Attaches a worker as an instance that was lost, perhaps for too long, with what that kept still."""
        if number in self.workers and not self.workers[number].is_over:
            return
        lost = [worker for worker in self.all_workers if worker not in self.workers.values() and worker.frames[0]]
        if not lost:
            return
        was = lost[pick % len(lost)]
        welcome = was.frames[0][0].welcome
        told = {one.registration_id for worker in self.all_workers for one in worker.teardowns()}
        accepted = {frame.reply.teardown.registration_id for frame in was.order if frame.HasField("reply")}
        worker = self.workers[number] = await self.host.worker()
        self.all_workers.append(worker)
        again = Reattach(
            instance_id=welcome.instance_id, secret=welcome.reattach_secret, registrations=sorted(accepted - told)
        )
        with contextlib.suppress(StreamLost):
            await worker.present(*self._tools(1), concurrency=2, reattach=again)

    async def act(self, number: int, pick: int, *actions: str) -> None:
        """Has a worker send frames of one of its calls, perhaps one that has ended."""
        busy = [worker for worker in self.workers.values() if worker.invoked]
        if busy:
            worker = busy[number % len(busy)]
            # The newest first: those are likely to run.
            run = worker.invoked[-1 - pick % len(worker.invoked)].call
            await self._send(worker, *(self._frame(run, action) for action in actions))

    async def tear_down(self, number: int) -> None:
        """Has a worker say that what it was to clean up is done, also what it has said that of before."""
        if number in self.workers:
            worker = self.workers[number]
            done = [
                Frame(teardown_done=TeardownDone(registration_id=one.registration_id)) for one in worker.teardowns()
            ]
            await self._send(worker, *done)

    async def end_session(self, tool_name: str) -> None:
        """Ends a session, and does not wait for that."""
        owner = scope_of(self.host.principal, None, None, None, "").owner
        key = ScopeKey(_SESSION, owner, f"session of {tool_name}")
        ending = asyncio.ensure_future(self.host.pipeline.teardowns.end(key, self.host.principal))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    async def change_tools(self, number: int, version: int) -> None:
        """Has a worker bring another version of its tools."""
        if number in self.workers:
            await self._send(self.workers[number], tools_changed(*self._tools(version)))

    async def leave(self, number: int) -> None:
        """Has a worker say goodbye."""
        if number in self.workers:
            frame = Frame()
            frame.goodbye.SetInParent()
            await self._send(self.workers[number], frame)

    async def half_close_worker(self, number: int) -> None:
        """Ends what a worker writes."""
        worker = self.workers.pop(number, None)
        if worker is not None:
            await worker.half_close()

    async def cut_worker(self, number: int) -> None:
        """Loses a worker's stream."""
        worker = self.workers.pop(number, None)
        if worker is not None:
            worker.cut()

    async def hang(self, number: int) -> None:
        """Has a worker answer no pings any more."""
        if number in self.workers:
            self.workers[number].pongs = False

    # --- both, and time

    async def pause(self, number: int) -> None:
        """Stops the reading of a peer: callers first, then workers."""
        peer = self.callers.get(number) if number < CALLERS else self.workers.get(number - CALLERS)
        if peer is not None:
            peer.pause()

    async def resume(self, number: int) -> None:
        """Has a peer read on."""
        peer = self.callers.get(number) if number < CALLERS else self.workers.get(number - CALLERS)
        if peer is not None:
            peer.resume()

    async def wait(self, seconds: float) -> None:
        """Lets time go on."""
        await asyncio.sleep(seconds)

    # --- what must hold

    async def finish(self) -> None:
        """Lets everything come to its end, and checks that it did and that nothing is left."""
        for peer in (*self.all_callers, *self.all_workers):
            peer.resume()
        await asyncio.sleep(_LONG)
        for opened in self.calls:
            await self._check_call(opened)
        for worker in self.all_workers:
            self._check_worker(worker)
        fired = [one.registration_id for worker in self.all_workers for one in worker.teardowns()]
        assert len(fired) == len(set(fired)), "a cleanup was fired twice"
        runs = Counter(
            (invocation.context.execution_id, invocation.invoke.tool)
            for worker in self.all_workers
            for invocation in worker.invoked
        )
        for (_, name), times in runs.items():
            assert times <= (1 if name == "send" else 2), f"{name} ran {times} times for one request"
        await self._check_nothing_is_left()

    async def _check_call(self, opened: Opened) -> None:
        caller = opened.caller
        frames = caller.frames[opened.call]
        bodies = [frame.WhichOneof("body") for frame in frames]
        assert bodies.count("outcome") <= 1, f"two outcomes of call {opened.call}"
        if not await self._is_owed(opened):
            return
        assert bodies.count("outcome") == 1, f"no outcome of call {opened.call}: {bodies}"
        assert bodies[0] == "started", bodies
        assert bodies[-1] == "outcome", bodies
        assert bodies.count("started") == 1, bodies
        sequence = [frame.sequence for frame in frames]
        assert sequence == sorted(set(sequence)), sequence
        reports = [int(frame.progress.payload) for frame in frames if frame.HasField("progress")]
        assert reports == sorted(set(reports)), reports

    async def _is_owed(self, opened: Opened) -> bool:
        """Whether the caller is owed an outcome: its start was taken, and its stream neither cut nor given up."""
        caller = opened.caller
        if caller in self.cut_callers or (caller.is_over and (await caller.end()).code is grpc.StatusCode.ABORTED):
            return False
        return opened.taken or bool(caller.frames[opened.call])

    def _check_worker(self, worker: WorkerPeer) -> None:
        runs = [invocation.call for invocation in worker.invoked]
        assert runs == sorted(set(runs))
        for run in runs:
            bodies = worker.bodies(run)
            assert bodies[0] == "invoke"
            assert bodies.count("cancel") <= 1

    async def _check_nothing_is_left(self) -> None:
        host = self.host
        assert not host.pipeline.running, "calls are left"
        for stream in host.streams.open:
            statistics = stream.outbox.statistics()
            assert (statistics.lanes_waiting, statistics.undelivered_bytes) == (0, 0), "bytes are left"
        for peer in (*self.all_callers, *self.all_workers):
            peer.cut()
        await asyncio.sleep(_LONG)
        assert len(host.pipeline.clocks) == 0, "due times are left"
        assert len(host.pipeline.admission) == 0, "admission counts calls that are over"
        assert len(host.pipeline.requests) == 0, "requests with a key are left"
        teardowns = host.pipeline.teardowns
        assert (teardowns.registry.registrations, teardowns.firing.open, len(teardowns.registry)) == (0, 0, 0)
        for workers in host.catalogue.sets.values():
            assert (workers.waiting, len(workers.instances), workers.attached) == (0, 0, False)
        assert not host.streams.open, "streams are left"
        assert host.counts["internal_errors"] == 0
        await host.aclose()
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        assert not loop.timers(), "timers are left"
        assert asyncio.all_tasks() == {asyncio.current_task()}, "tasks are left"

    # --- parts of the above

    async def _caller(self, number: int) -> CallerPeer:
        caller = self.callers.get(number)
        if caller is None or caller.is_over:
            caller = self.callers[number] = await self.host.caller()
            self.all_callers.append(caller)
        return caller

    async def _send(self, peer: Peer, *frames: Frame) -> bool:
        """Sends, if the sidecar takes it now; answers whether it did."""
        return await self._taken(peer.send(*frames))

    async def _send_bytes(self, peer: Peer, message: bytes) -> bool:
        return await self._taken(peer.send_bytes(message))

    async def _taken(self, sending: Coroutine[Any, Any, None]) -> bool:
        try:
            async with asyncio.timeout(_TAKEN_WITHIN):
                await sending
        except (StreamLost, TimeoutError):
            return False
        return True

    def _tools(self, version: int) -> list[ToolDescriptor]:
        return [tool(name, effects=EFFECTS[name], title=f"version {version}") for name in TOOLS]

    def _frame(self, run: int, action: str) -> Frame:
        """A frame of a call by what it is for."""
        if action == "progress":
            self._reported += 1
            return progress(run, self._reported)
        return FRAMES[action](run)


def _request(run: int) -> Frame:
    frame = Frame(call=run)
    frame.outbound_request.request_id = 1
    frame.outbound_request.kv_get.SetInParent()
    return frame


def _no_outcome(run: int) -> Frame:
    frame = Frame(call=run)
    frame.outcome.SetInParent()
    return frame


FRAMES: dict[str, Callable[[int], Frame]] = {
    "large progress": lambda run: progress(run, b"0" * 3 * _KIB),
    "result": lambda run: result(run, {"of": run}),
    "large result": lambda run: result(run, b'"' + b"x" * 5 * _KIB + b'"'),
    "oversized result": lambda run: result(run, b'"' + b"x" * 9 * _KIB + b'"'),
    "failure": lambda run: failure(run, side_effects=SideEffects.SIDE_EFFECTS_NONE),
    "request": _request,
    "registration": lambda run: Frame(call=run, register_teardown=RegisterTeardown(request_id=2, scope=_CALL)),
    "lasting registration": lambda run: Frame(
        call=run, register_teardown=RegisterTeardown(request_id=3, scope=_SESSION)
    ),
    "wrong direction": lambda run: Frame(call=run, drain=Drain()),
    "no outcome": _no_outcome,
}
ACTIONS = ("progress", *FRAMES)
"""What a worker may be told to send."""
