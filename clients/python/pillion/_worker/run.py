"""Runs a worker as a program: settings from arguments or the environment, and an end by signal."""

import asyncio
import os
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from pillion._worker.worker import Worker, WorkerRefused

TARGET, NAME, TOKEN_FD, TOKEN_FILE = (
    "PILLION_WORKER_TARGET",
    "PILLION_WORKER_NAME",
    "PILLION_WORKER_TOKEN_FD",
    "PILLION_WORKER_TOKEN_FILE",
)


def run_worker(
    tools: Iterable[Callable[..., Any]],
    *,
    target: str | None = None,
    worker: str | None = None,
    token: str | None = None,
    token_file: str | os.PathLike[str] | None = None,
    concurrency: int = 64,
    threads: int | None = None,
    drain: float = 30.0,
) -> None:
    """Hosts tools until the sidecar drains this worker, or SIGTERM or SIGINT comes.

    `tools` are functions, made tools by `@pillion.tool` or as they are. `target` is the sidecar's listener for workers,
    `worker` the configured name of the worker set. What is not given comes from the environment, which a sidecar that
    starts the worker itself has set: `PILLION_WORKER_TARGET`, `PILLION_WORKER_NAME`, and the token behind the file
    descriptor `PILLION_WORKER_TOKEN_FD`, else in the file `PILLION_WORKER_TOKEN_FILE`. The descriptor is read once.

    A first signal lets what runs finish, for `drain` seconds; a second asks it to stop. For the main thread, where no
    event loop runs. With `uvloop` installed, its loop is used.

    :raises WorkerRefused: if a setting is missing, or the sidecar does not take this worker; the text says what to do.
    :raises ToolRefused: if a function cannot be a tool.
    """
    made = Worker(
        tools,
        target=_setting("target", target, TARGET),
        worker=_setting("worker", worker, NAME),
        token=token if token is not None else _token(token_file),
        concurrency=concurrency,
        threads=threads,
        drain=drain,
    )
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_serve(made))


async def _serve(worker: Worker) -> None:
    loop = asyncio.get_running_loop()
    signals = 0

    def told() -> None:
        nonlocal signals
        signals += 1
        if signals == 1:
            worker.leave()
        else:
            worker.hurry()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told)
    try:
        await worker.run()
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def _setting(name: str, given: str | None, variable: str) -> str:
    value = given if given is not None else os.environ.get(variable)
    if not value:
        raise WorkerRefused(f"The worker's {name} is not known: pass {name}=, or set {variable}.")
    return value


def _token(token_file: str | os.PathLike[str] | None) -> str:
    descriptor = os.environ.get(TOKEN_FD)
    try:
        if token_file is not None:
            text = Path(token_file).read_text("utf-8")
        elif descriptor:
            with open(int(descriptor), encoding="utf-8") as inherited:  # noqa: PTH123  # it is a descriptor
                text = inherited.read()
            del os.environ[TOKEN_FD]
        elif TOKEN_FILE in os.environ:
            text = Path(os.environ[TOKEN_FILE]).read_text("utf-8")
        else:
            raise WorkerRefused(
                f"The worker has no token: pass token= or token_file=, or set {TOKEN_FD} or {TOKEN_FILE}."
            )
    except (OSError, ValueError) as error:
        raise WorkerRefused(f"The worker's token cannot be read: {type(error).__name__}.") from None
    if not text.strip():
        raise WorkerRefused("The worker's token is empty.")
    return text.strip()
