"""The cleanups that tools have registered, until their scope ends."""

import asyncio
import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass

from pillion._facts import TeardownReason, TeardownScope, seconds_of
from pillion._gen.pillion.v1.frame_pb2 import Frame
from pillion._gen.pillion.v1.outbound_pb2 import Reply
from pillion._gen.pillion.v1.worker_pb2 import RunTeardown
from pillion._worker.port import Cleanup
from pillion._worker.threads import Threads

_log = logging.getLogger("pillion.worker")

SECONDS = 5.0
"""How long cleanups have, all together, where the worker runs them by itself."""
_HEEDING = 0.1
_THREADS = 64
_ERROR_BYTES = 1_024
_UNKNOWN = "no such cleanup is here"

Send = Callable[[Frame], bool]
"""Sends a frame on the stream that it belongs to. False: that is over."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A cleanup, and what is known of it."""

    cleanup: Cleanup
    tool: str
    """Who registered it."""
    scope: TeardownScope
    has_call: bool
    """Whether the sidecar has a call run in its stead where this worker cannot."""


class _Run:
    """A cleanup that the sidecar has ordered, until the sidecar was told how it went."""

    __slots__ = ("send", "task")

    def __init__(self, task: asyncio.Task[str | None], send: Send) -> None:
        self.task = task
        self.send = send
        """On the stream that it was last ordered on."""


class Cleanups:
    """Runs each at most once: when the sidecar says so, or by itself where no sidecar can say so any more.

    A plain cleanup runs in a thread, and not in one of the tools': those may all be taken. For the event loop's thread.
    """

    def __init__(self) -> None:
        self.on_idle: Callable[[], None] = lambda: None
        """Called when nothing is kept or runs any more."""
        self._threads = Threads(_THREADS)
        self._expected: dict[tuple[int, int], Kept] = {}
        self._kept: dict[str, Kept] = {}
        self._ordered: dict[str, _Run] = {}
        self._own: set[asyncio.Task[str | None]] = set()
        """Those that run without an order."""
        self._work: dict[asyncio.Task[str | None], Kept] = {}
        """What was begun and has not ended, though its time may be over."""

    @property
    def registrations(self) -> tuple[str, ...]:
        """The ids of those that are kept, and of those that were ordered and are not answered."""
        return (*self._kept, *self._ordered)

    @property
    def idle(self) -> bool:
        """Whether nothing is kept, may come to be kept, or runs."""
        return not (self._kept or self._expected or self._ordered or self._own)

    @property
    def stubborn(self) -> tuple[str, ...]:
        """The tools whose asynchronous cleanups run on though their time is over and they were cancelled."""
        return tuple(kept.tool for kept in self._work.values())

    # --- registrations

    def expect(self, call: int, request_id: int, kept: Kept) -> None:
        """A cleanup is on its way to be registered. It is kept as soon as the answer comes, whoever waits for that."""
        self._expected[call, request_id] = kept

    def replied(self, call: int, reply: Reply) -> None:
        """An answer came, to a registration perhaps."""
        kept = self._expected.pop((call, reply.request_id), None) if self._expected else None
        if kept is not None and reply.HasField("teardown"):
            self.keep(reply.teardown.registration_id, kept)

    def keep(self, registration_id: str, kept: Kept) -> None:
        """Keeps a cleanup. The first of a registration stays."""
        self._kept.setdefault(registration_id, kept)

    def release(self, registration_id: str) -> None:
        """The sidecar does not know of this one: it is forgotten without running.

        One for the end of a call runs: the call is as unknown there, and so has ended.
        """
        kept = self._kept.pop(registration_id, None)
        if kept is not None and kept.scope is TeardownScope.CALL:
            self._run_unasked(kept, TeardownReason.CALL_END, SECONDS)
        ordered = self._ordered.get(registration_id)
        if ordered is not None and ordered.task.done():
            del self._ordered[registration_id]
        self._tell_if_idle()

    def stream_lost(self) -> None:
        """No answer comes any more to what was asked on the stream."""
        self._expected.clear()

    # --- orders

    def fire(self, order: RunTeardown, send: Send) -> None:
        """Runs one and says how it went. One that was begun already is not run again: how it went is said here."""
        registration_id = order.registration_id
        ordered = self._ordered.get(registration_id)
        if ordered is not None:
            ordered.send = send
            self._answer(registration_id)
            return
        kept = self._kept.pop(registration_id, None)
        if kept is None:
            send(_done(registration_id, _UNKNOWN))
            return
        known = order.reason in TeardownReason._value2member_map_
        reason = TeardownReason(order.reason) if known else TeardownReason.SHUTDOWN
        task = asyncio.get_running_loop().create_task(self._run(kept, reason, seconds_of(order.timeout)))
        self._ordered[registration_id] = _Run(task, send)
        task.add_done_callback(lambda _: self._answer(registration_id))

    def _answer(self, registration_id: str) -> None:
        ordered = self._ordered.get(registration_id)
        if ordered is None or not ordered.task.done():
            return
        error = "CancelledError" if ordered.task.cancelled() else ordered.task.result()
        # Else its stream was lost, and it is ordered again on the next.
        if ordered.send(_done(registration_id, error)):
            del self._ordered[registration_id]
            self._tell_if_idle()

    # --- without orders

    def fire_unasked(self, reason: TeardownReason, seconds: float = SECONDS) -> None:
        """Begins all that are kept, newest first, but for those in whose stead the sidecar has a call run."""
        for registration_id in [number for number, kept in reversed(self._kept.items()) if not kept.has_call]:
            self._run_unasked(self._kept.pop(registration_id), reason, seconds)

    def part(self, reason: TeardownReason) -> None:
        """The sidecar knows nothing of what is kept any more: what it does not care for runs, the rest is forgotten."""
        self.fire_unasked(reason)
        self._kept.clear()
        for run in self._ordered.values():
            if not run.task.done():
                self._watch(run.task)
        self._ordered.clear()

    async def finish(self, seconds: float = SECONDS) -> None:
        """Waits for all that run, at most so many seconds, and frees the threads."""
        running = [run.task for run in self._ordered.values() if not run.task.done()] + [*self._own]
        if running:
            await asyncio.wait(running, timeout=seconds)
        if self._work:
            # Those whose time was over have been cancelled, and most heed it.
            await asyncio.wait(self._work, timeout=_HEEDING)
        self._threads.close()

    def _run_unasked(self, kept: Kept, reason: TeardownReason, seconds: float) -> None:
        self._watch(asyncio.get_running_loop().create_task(self._run(kept, reason, seconds)))

    def _watch(self, task: asyncio.Task[str | None]) -> None:
        self._own.add(task)
        task.add_done_callback(self._own_over)

    def _own_over(self, task: asyncio.Task[str | None]) -> None:
        self._own.discard(task)
        self._tell_if_idle()

    def _tell_if_idle(self) -> None:
        if self.idle:
            self.on_idle()

    # --- running

    async def _run(self, kept: Kept, reason: TeardownReason, seconds: float) -> str | None:
        """What went wrong, as the name of an exception; `None` if nothing did. Not later than in so many seconds."""
        work = asyncio.get_running_loop().create_task(self._cleaned(kept, reason))
        self._work[work] = kept
        work.add_done_callback(self._work.pop)
        await asyncio.wait((work,), timeout=seconds)
        if work.done():
            return work.result()
        # It is not waited for: it may well not heed this.
        work.cancel()
        _log.error("a cleanup of %s did not end within %g s (%s)", kept.tool, seconds, reason.name)
        return TimeoutError.__name__

    async def _cleaned(self, kept: Kept, reason: TeardownReason) -> str | None:
        cleanup = kept.cleanup
        try:
            if inspect.iscoroutinefunction(cleanup):
                await cleanup(reason)
            else:
                await self._in_thread(cleanup, reason)
        except asyncio.CancelledError as error:
            return type(error).__name__
        except BaseException as error:  # noqa: BLE001  # it is reported, and harms no other
            _log.error("a cleanup of %s failed (%s)", kept.tool, reason.name, exc_info=error)
            return type(error).__name__
        return None

    async def _in_thread(self, cleanup: Cleanup, reason: TeardownReason) -> None:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[object] = loop.create_future()

        def work() -> None:
            answer: object = None
            failure: BaseException | None = None
            try:
                answer = cleanup(reason)
            except BaseException as error:  # noqa: BLE001  # it is raised where it is waited for
                failure = error
            try:
                loop.call_soon_threadsafe(_settle, done, answer, failure)
            except RuntimeError:  # The loop is closed: nobody waits for it any more.
                _log.debug("a cleanup ended after its worker")

        self._threads.run(work)
        answer = await done
        if inspect.isawaitable(answer):
            await answer


def _settle(done: asyncio.Future[object], answer: object, failure: BaseException | None) -> None:
    if done.done():
        # Its time is over, and so nobody awaits what it began.
        if inspect.iscoroutine(answer):
            answer.close()
    elif failure is None:
        done.set_result(answer)
    elif isinstance(failure, StopIteration):
        # No future takes it.
        done.set_exception(RuntimeError("a cleanup raised StopIteration"))
    else:
        done.set_exception(failure)


def _done(registration_id: str, error: str | None) -> Frame:
    frame = Frame()
    frame.teardown_done.registration_id = registration_id
    if error is not None:
        frame.teardown_done.error = error[:_ERROR_BYTES]
    return frame
