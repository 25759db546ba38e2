"""The event loop behind the face without asyncio, in a thread of its own."""

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Iterable
from concurrent.futures import CancelledError
from typing import Any, TypeVar

from pillion._wire.channel import closed

Answer = TypeVar("Answer")


class Portal:
    """The one background thread and its event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._entering = threading.Lock()
        self._is_closed = False
        self._thread = threading.Thread(target=self._loop.run_forever, name="pillion-sync", daemon=True)
        self._thread.start()

    def wait(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        """Awaits something on the loop.

        :raises Closed: if the connection was closed.
        """
        # What is handed over once the loop stops would never be answered.
        with self._entering:
            if self._is_closed:
                work.close()
                raise closed()
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except CancelledError:
            raise closed() from None
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Cancels what runs, and ends the thread."""

        async def last() -> None:
            others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in others:
                task.cancel()
            # Whoever waits for one in a thread is told when it ends.
            await asyncio.gather(*others, return_exceptions=True)
            await self._loop.shutdown_default_executor()

        with self._entering:
            self._is_closed = True
        asyncio.run_coroutine_threadsafe(last(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def following(iterator: Any) -> Any:
    """The next of an asynchronous iterator; `None` at its end."""
    try:
        return await iterator.__anext__()
    except StopAsyncIteration:
        return None


async def in_thread(chunks: Iterable[bytes]) -> AsyncIterator[bytes]:
    """The same, each awaited in a thread, since it may block."""
    iterator = iter(chunks)
    while (chunk := await asyncio.to_thread(next, iterator, None)) is not None:
        yield chunk
