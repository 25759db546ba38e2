"""Runs a worker as a program: settings from arguments or the environment, and an end by signal."""

import asyncio
import os
import signal
from collections.abc import Callable, Iterable
from typing import Any, TypedDict

from pillion._facts import Secret
from pillion._wire.security import StrPath, Tls
from pillion._worker.worker import Worker, WorkerRefused

TARGET, NAME, TOKEN_FD, TOKEN_FILE = (
    "PILLION_WORKER_TARGET",
    "PILLION_WORKER_NAME",
    "PILLION_WORKER_TOKEN_FD",
    "PILLION_WORKER_TOKEN_FILE",
)
TLS = {
    "ca": "PILLION_WORKER_TLS_CA",
    "certificate": "PILLION_WORKER_TLS_CERTIFICATE",
    "key": "PILLION_WORKER_TLS_KEY",
    "server_name": "PILLION_WORKER_TLS_SERVER_NAME",
}


def run_worker(  # noqa: PLR0913  # settings, each by its name
    tools: Iterable[Callable[..., Any]],
    *,
    target: str | None = None,
    worker: str | None = None,
    token: str | Secret | None = None,
    token_file: StrPath | None = None,
    tls: Tls | None = None,
    concurrency: int = 64,
    threads: int | None = None,
    drain: float = 30.0,
) -> None:
    """Hosts tools until the sidecar drains this worker, or SIGTERM or SIGINT comes.

    `tools` are functions, made tools by `@pillion.tool` or as they are. `target` is the sidecar's listener for workers,
    `worker` the configured name of the worker set. What is not given comes from the environment, which a sidecar that
    starts the worker itself has set: `PILLION_WORKER_TARGET`, `PILLION_WORKER_NAME`, and the token behind the file
    descriptor `PILLION_WORKER_TOKEN_FD`, else in the file `PILLION_WORKER_TOKEN_FILE`. The descriptor is read once, the
    file for each stream. A listener by TCP off loopback takes certificates as well: `tls`, or the files that
    `PILLION_WORKER_TLS_CA`, `PILLION_WORKER_TLS_CERTIFICATE` and `PILLION_WORKER_TLS_KEY` name.

    A first signal lets what runs finish, for `drain` seconds; a second asks it to stop. For the main thread, where no
    event loop runs. With `uvloop` installed, its loop is used.

    If a setting is missing, or the sidecar does not take this worker, the program ends with code 1 and a sentence that
    says what to do (`SystemExit`); whoever wants to handle that uses `pillion.Worker`.

    :raises ToolRefused: if a function cannot be a tool.
    """
    try:
        made = Worker(
            tools,
            target=_setting("target", target, TARGET),
            worker=_setting("worker", worker, NAME),
            **_token(token, token_file),
            tls=tls or _tls(),
            concurrency=concurrency,
            threads=threads,
            drain=drain,
        )
        runner = asyncio.Runner(loop_factory=_loop_factory())
        try:
            runner.run(_serve(made))
        finally:
            # Closing waits for every task, and one that heeds no cancel would keep the process for ever.
            if not made.stubborn:
                runner.close()
    except WorkerRefused as refused:
        raise SystemExit(str(refused)) from None


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


class _Token(TypedDict, total=False):
    token: str | Secret | None
    token_file: StrPath | None


def _token(token: str | Secret | None, token_file: StrPath | None) -> _Token:
    if token is not None or token_file is not None:
        return _Token(token=token, token_file=token_file)
    descriptor = os.environ.get(TOKEN_FD)
    if not descriptor:
        file = os.environ.get(TOKEN_FILE)
        if file is None:
            raise WorkerRefused(
                f"The worker has no token: pass token= or token_file=, or set {TOKEN_FD} or {TOKEN_FILE}."
            )
        return _Token(token_file=file)
    try:
        with open(int(descriptor), encoding="utf-8") as inherited:  # noqa: PTH123  # it is a descriptor
            text = inherited.read().strip()
    except (OSError, ValueError) as error:
        raise WorkerRefused(f"The worker's token cannot be read: {type(error).__name__}.") from None
    del os.environ[TOKEN_FD]
    if not text:
        raise WorkerRefused("The worker's token is empty.")
    return _Token(token=text)


def _tls() -> Tls | None:
    found = {name: os.environ[variable] for name, variable in TLS.items() if os.environ.get(variable)}
    return Tls(**found) if found else None
