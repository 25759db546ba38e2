"""The cleanups that tools have registered, until their scope ends."""

import asyncio
import inspect
import logging
from collections.abc import Callable

from pillion._facts import TeardownReason, seconds_of
from pillion._gen.pillion.v1.frame_pb2 import Frame
from pillion._gen.pillion.v1.worker_pb2 import RunTeardown
from pillion._worker.port import Cleanup
from pillion._worker.threads import Threads

_log = logging.getLogger("pillion.worker")

_SECONDS = 5.0
_ERROR_BYTES = 1_024


class Cleanups:
    """Runs each at most once: when the sidecar says so, or by itself after too long apart from the sidecar."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._kept: dict[str, Cleanup] = {}
        self._running: set[asyncio.Task[None]] = set()

    @property
    def registrations(self) -> tuple[str, ...]:
        """The ids of those that are kept."""
        return tuple(self._kept)

    def keep(self, registration_id: str, cleanup: Cleanup) -> None:
        """Keeps a cleanup. The first of a registration stays."""
        self._kept.setdefault(registration_id, cleanup)

    def release(self, registration_id: str) -> None:
        """Forgets one without running it."""
        self._kept.pop(registration_id, None)

    def fire(self, order: RunTeardown, send: Callable[[Frame], None]) -> None:
        """Runs one and says how it went."""
        cleanup = self._kept.pop(order.registration_id, None)
        reason = TeardownReason(order.reason) if order.reason else TeardownReason.SHUTDOWN
        work = self._fire(order.registration_id, cleanup, reason, seconds_of(order.timeout), send)
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def fire_all(self, reason: TeardownReason) -> None:
        """Runs all that are kept, newest first, in 5 seconds at most; and waits for those that run already."""
        kept, self._kept = self._kept, {}
        work = [self._run(cleanup, reason, _SECONDS) for cleanup in reversed(kept.values())]
        await asyncio.gather(*work, *self._running, return_exceptions=True)

    async def _fire(
        self,
        registration_id: str,
        cleanup: Cleanup | None,
        reason: TeardownReason,
        seconds: float,
        send: Callable[[Frame], None],
    ) -> None:
        frame = Frame()
        frame.teardown_done.registration_id = registration_id
        error = "no such cleanup is here" if cleanup is None else await self._run(cleanup, reason, seconds)
        if error is not None:
            frame.teardown_done.error = error[:_ERROR_BYTES]
        send(frame)

    async def _run(self, cleanup: Cleanup, reason: TeardownReason, seconds: float) -> str | None:
        """What went wrong, as the name of an exception; `None` if nothing did."""
        try:
            async with asyncio.timeout(seconds):
                if inspect.iscoroutinefunction(cleanup):
                    await cleanup(reason)
                else:
                    await self._in_thread(cleanup, reason)
        except Exception as error:  # noqa: BLE001  # it is reported, and harms no other
            _log.exception("a cleanup failed")
            return type(error).__name__
        return None

    async def _in_thread(self, cleanup: Cleanup, reason: TeardownReason) -> None:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[object] = loop.create_future()

        def work() -> None:
            try:
                answer: object = cleanup(reason)
            except Exception as error:  # noqa: BLE001  # it is raised where it is waited for
                loop.call_soon_threadsafe(_settle, done, None, error)
            else:
                loop.call_soon_threadsafe(_settle, done, answer, None)

        self._threads.run(work)
        answer = await done
        if inspect.isawaitable(answer):
            await answer


def _settle(done: asyncio.Future[object], answer: object, error: Exception | None) -> None:
    if done.done():
        return
    if error is not None:
        done.set_exception(error)
    else:
        done.set_result(answer)
