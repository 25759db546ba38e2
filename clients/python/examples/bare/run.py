"""The demo: a sidecar, a worker and one call on real data, as processes of their own, in a private directory.

It shows what the call reports, prints the result as one line of JSON, which is the last line on standard output, and
leaves nothing behind, also when it fails or is interrupted.
"""

import asyncio
import os
import secrets
import signal
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import IO

from grpc import aio
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[3]
READY_SECONDS, CALL_SECONDS, END_SECONDS = 30, 60, 10
SOCKET_PATH_BYTES = 103  # The smallest limit among the systems that have unix sockets.
# The first connection may be tried before the socket is there: then try again soon.
CHANNEL = [("grpc.initial_reconnect_backoff_ms", 100)]

CONFIG = """\
state_dir = "{home}/state"
[listen]
callers = "unix:{home}/callers.sock"
workers = "unix:{home}/workers.sock"
[[worker]]
name = "profiler"
token_file = "{home}/token"
tools = ["profile_csv"]
"""

ADVICE = """\
If these logs miss a module, run `make demo`, which installs all that the demo needs.
Otherwise they say what stood in the way: mend that and run it again."""


class DemoFailed(Exception):
    """A step of the demo did not work; the text says which."""


@asynccontextmanager
async def running(name: str, command: list[str], output: int | IO[bytes], errors: IO[bytes]) -> AsyncIterator[Process]:
    """A Python process in a group of its own, that is ended whatever happens."""
    paths = [str(ROOT), str(ROOT / "clients" / "python"), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONUNBUFFERED": "1"}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *command,
        stdin=DEVNULL,
        stdout=output,
        stderr=errors,
        cwd=ROOT,
        env=environment,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):  # It has ended by itself.
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), END_SECONDS)
        except TimeoutError:
            print(f"The {name} did not end within {END_SECONDS} s of SIGTERM and was killed.", file=sys.stderr)
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                await process.wait()


async def serving(channel: aio.Channel, service: str) -> None:
    """Returns once the sidecar's health says that the service is there."""
    watch = channel.unary_stream(
        "/grpc.health.v1.Health/Watch", HealthCheckRequest.SerializeToString, HealthCheckResponse.FromString
    )(HealthCheckRequest(service=service), wait_for_ready=True)
    try:
        async for answer in watch:
            if answer.status == HealthCheckResponse.SERVING:
                return
    finally:
        watch.cancel()


async def ready(name: str, process: Process, channel: aio.Channel, service: str) -> None:
    """Returns once the service is there, and fails as soon as its process ends instead."""
    health, end = asyncio.ensure_future(serving(channel, service)), asyncio.ensure_future(process.wait())
    try:
        await asyncio.wait({health, end}, timeout=READY_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if end.done():
            raise DemoFailed(f"The {name} ended with code {end.result()} before it was ready.")
        if not health.done():
            raise DemoFailed(f"The {name} was not ready within {READY_SECONDS} s.")
        health.result()
    except aio.AioRpcError as lost:
        raise DemoFailed(f"The sidecar does not tell its health: {lost.code().name}.") from None
    finally:
        health.cancel()
        end.cancel()
        await asyncio.gather(health, end, return_exceptions=True)


@contextmanager
def private_directory() -> Iterator[tuple[Path, IO[bytes], IO[bytes]]]:
    """A directory with the configuration and the token, and a log for each process. A failure shows their ends."""
    with tempfile.TemporaryDirectory(prefix="pillion-demo-") as directory:
        home = Path(directory)
        if len(os.fsencode(home / "callers.sock")) > SOCKET_PATH_BYTES:
            raise DemoFailed(
                "The directory for temporary files has too long a path for a unix socket: set a shorter TMPDIR."
            )
        (home / "pillion.toml").write_text(CONFIG.format(home=home))
        (home / "token").touch(0o600)
        (home / "token").write_text(secrets.token_urlsafe(32))
        logs = home / "sidecar.log", home / "worker.log"
        with logs[0].open("wb") as sidecar_log, logs[1].open("wb") as worker_log:
            try:
                yield home, sidecar_log, worker_log
            except DemoFailed:
                for log in logs:
                    lines = log.read_text(errors="replace").splitlines()[-15:]
                    print(f"--- the end of {log.name}", *(lines or ["(empty)"]), sep="\n", file=sys.stderr)
                print(ADVICE, file=sys.stderr)
                raise


async def demo() -> str:
    """All of it: what it starts is ended and what it writes is removed before it returns, fails or is cancelled."""
    with private_directory() as (home, sidecar_log, worker_log):
        return await one_call(home, sidecar_log, worker_log)


async def one_call(home: Path, sidecar_log: IO[bytes], worker_log: IO[bytes]) -> str:
    """Starts sidecar and worker, runs the call with its progress shown, ends all and returns the result."""
    sidecar_command = ["-m", "sidecar", "--config", f"{home}/pillion.toml"]
    worker_command = [f"{HERE}/worker.py", "--target", f"unix:{home}/workers.sock", "--token-file", f"{home}/token"]
    caller_command = [f"{HERE}/caller.py", f"unix:{home}/callers.sock", "profile_csv", '{"dataset": "airports"}']
    async with aio.insecure_channel(f"unix:{home}/callers.sock", CHANNEL) as channel:
        print("Starting the sidecar.", flush=True)
        async with running("sidecar", sidecar_command, sidecar_log, sidecar_log) as sidecar:
            await ready("sidecar", sidecar, channel, "")
            print("Starting a worker with the tool profile_csv.", flush=True)
            async with running("worker", worker_command, worker_log, worker_log) as worker:
                await ready("worker", worker, channel, "worker/profiler")
                print("Calling profile_csv on the airports of the world.", flush=True)
                async with running("caller", caller_command, PIPE, sys.stdout.buffer) as caller:
                    try:
                        result, _ = await asyncio.wait_for(caller.communicate(), CALL_SECONDS)
                    except TimeoutError:
                        raise DemoFailed(f"The call did not end within {CALL_SECONDS} s.") from None
                    if caller.returncode:
                        raise DemoFailed("The call failed; what its caller printed says why.")
    return result.decode().strip()


def main() -> None:
    """Runs the demo, so that a signal cancels it."""
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        task = loop.create_task(demo())
        for ending in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(ending, task.cancel)
        try:
            result = loop.run_until_complete(task)
        except asyncio.CancelledError:
            sys.exit("Interrupted: sidecar and worker have been ended.")
        except DemoFailed as failed:
            sys.exit(str(failed))
    print(result)


if __name__ == "__main__":
    main()
