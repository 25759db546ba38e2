"""Waits for calls and inside them, and whose a cancellation is that comes up in one."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from sidecar._gen.pillion.v1.frame_pb2 import Frame

if TYPE_CHECKING:
    from sidecar.calls.pipeline import Pipeline


def is_asked_to_stop() -> bool:
    """Whether a cancellation is meant for the task that it comes up in, and not for something that it waits for."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


async def until_idle(pipeline: "Pipeline") -> None:
    """Waits until no call runs."""
    while pipeline.running:
        await pipeline.idle()


async def reply_with(
    answer: Coroutine[Any, Any, Frame],
    patience: float | None,
    reply: Callable[[Frame], None],
    failed: Callable[[BaseException], Frame],
    too_late: Callable[[], Frame],
) -> None:
    """Replies with an answer, once it is there; with another where it fails, or takes longer than `patience` seconds.

    It replies whatever happens, unless the task is cancelled.
    """
    limit = asyncio.timeout(patience)
    try:
        async with limit:
            frame = await answer
    except TimeoutError as error:
        frame = too_late() if limit.expired() else failed(error)
    except asyncio.CancelledError as error:
        if is_asked_to_stop():
            raise
        frame = failed(error)
    except Exception as error:  # noqa: BLE001  # whatever it was, the tool has an answer
        frame = failed(error)
    reply(frame)
