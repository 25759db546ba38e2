"""The demo: `pillion serve` with a worker, and `pillion call` on real data, as anyone could type them.

It shows each command before it runs, and what the call reports. The last line on standard output is the call's result
as JSON. It leaves nothing behind, also when it fails or is interrupted, but the chart that the tool draws, which is
saved in `demo-output` or in the directory that is its argument.
"""

import asyncio
import os
import signal
import sys
import tempfile
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from importlib.resources import files
from pathlib import Path
from typing import IO, Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[3]
PILLION = "deploy/pillion"
CONFIG = str((HERE / "pillion.toml").relative_to(ROOT))
WAIT = (PILLION, "wait-ready", "profiler")
DATA, CHART, OUTPUT = "airports.csv", "airports.png", "demo-output"
CALL_SECONDS, END_SECONDS = 90, 10
LOG_LINES = 15
SOCKET_PATH_BYTES = 103  # The smallest limit among the systems that have unix sockets.

ADVICE = """\
If this log misses a module, run `make demo`, which installs all that the demo needs.
Otherwise it says what stood in the way: mend that and run it again."""


class DemoFailed(Exception):
    """A step of the demo did not work; the text says which."""


class Terminal:
    """What the demo runs, as a person would in a terminal: from the repository, with the address of the sidecar set."""

    def __init__(self, address: str) -> None:
        # Whatever this user has set for a sidecar of their own is not for this one.
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith("PILLION")}
        self._environment["PILLION_ADDRESS"] = address
        show(f"export PILLION_ADDRESS={address}")

    @asynccontextmanager
    async def running(self, *command: str, log: IO[bytes] | None = None) -> AsyncIterator[Process]:
        """A command in a group of its own, that is ended whatever happens. With a log it runs in the background."""
        show(" ".join(command) + (" &" if log is not None else ""))
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=DEVNULL,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env=self._environment,
                start_new_session=True,
            )
        except OSError as error:
            raise DemoFailed(f"{command[0]} cannot be run: {error.strerror}.") from None
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):  # It has ended by itself.
                process.terminate()
            try:
                await asyncio.wait_for(process.wait(), END_SECONDS)
            except TimeoutError:
                tell(f"{' '.join(command)} did not end within {END_SECONDS} s of SIGTERM and was killed.")
            finally:
                if process.returncode is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    await process.wait()


def show(command: str) -> None:
    """Prints what is about to run."""
    print(f"$ {command}", flush=True)


def tell(text: str) -> None:
    """Prints what is no result."""
    print(text, file=sys.stderr, flush=True)


async def demo() -> None:
    """All of it: what it starts is ended and what it writes is removed before it returns, fails or is cancelled."""
    output = sys.argv[1] if len(sys.argv) > 1 else OUTPUT
    call_it = (PILLION, "call", "profile_csv", "--artifact", f"data=@{data()}", "--save", output)
    # That of an earlier run, which a later one would not replace.
    (ROOT / output / CHART).unlink(missing_ok=True)
    with private_directory() as home, logged(home / "sidecar.log") as log:
        terminal = Terminal(f"unix:{home}/callers.sock")
        serve = (PILLION, "serve", "--config", CONFIG, "--state-dir", str(home))
        async with terminal.running(*serve, log=log) as sidecar:
            async with terminal.running(*WAIT) as waiting:
                await ready(waiting, sidecar)
            async with terminal.running(*call_it) as call:
                try:
                    code = await asyncio.wait_for(call.wait(), CALL_SECONDS)
                except TimeoutError:
                    raise DemoFailed(f"The call did not end within {CALL_SECONDS} s.") from None
                if code:
                    raise DemoFailed("The call failed; what it said is above.")


def data() -> str:
    """The file that the tool is called with; as it is seen from the repository, if it is in there."""
    try:
        path = Path(str(files("airportsdata"))) / DATA
    except ModuleNotFoundError:
        raise DemoFailed("There is no data to call the tool with: run `make demo`, which installs it.") from None
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


async def ready(waiting: Process, sidecar: Process) -> None:
    """Returns once who waits for the sidecar and its worker is content, and fails as soon as the sidecar ends."""
    content, end = asyncio.ensure_future(waiting.wait()), asyncio.ensure_future(sidecar.wait())
    try:
        await asyncio.wait({content, end}, return_when=asyncio.FIRST_COMPLETED)
        if end.done():
            raise DemoFailed(f"The sidecar ended with code {end.result()} before it was ready.")
        if content.result():
            raise DemoFailed("The sidecar or its worker was not ready in time.")
    finally:
        content.cancel()
        end.cancel()


@contextmanager
def private_directory() -> Iterator[Path]:
    """A directory for this user alone, short enough for the sockets that will be in it."""
    try:
        directory = tempfile.TemporaryDirectory(prefix="pillion-demo-")
    except OSError as error:
        raise DemoFailed(
            f"No temporary directory can be made ({error.strerror}): set TMPDIR to a writable one."
        ) from None
    with directory as name:
        if len(os.fsencode(f"{name}/callers.sock")) > SOCKET_PATH_BYTES:
            raise DemoFailed(
                "The directory for temporary files has too long a path for a unix socket: set a shorter TMPDIR."
            )
        yield Path(name)


@contextmanager
def logged(path: Path) -> Iterator[IO[bytes]]:
    """A file for the sidecar's log, whose end is shown after a failure."""
    with path.open("wb") as log:
        try:
            yield log
        except DemoFailed:
            lines = path.read_text(errors="replace").splitlines()[-LOG_LINES:]
            tell("\n".join(("--- the end of the sidecar's log", *(lines or ["(empty)"]), ADVICE)))
            raise


def main(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Runs a demo, so that a signal cancels it."""
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        task = loop.create_task(work())
        for ending in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(ending, task.cancel)
        try:
            loop.run_until_complete(task)
        except asyncio.CancelledError:
            if sys.stderr.isatty():
                tell("")  # Below what the terminal made of Ctrl-C, and what was being drawn.
            sys.exit("Interrupted: sidecar and worker have been ended.")
        except DemoFailed as failed:
            sys.exit(str(failed))
        except BrokenPipeError:  # Nobody reads any more; a second failure at exit would only be noise.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(128 + signal.SIGPIPE)


if __name__ == "__main__":
    main(demo)
