"""The demo in four languages: a caller in each calls a tool in Python and a tool in Go, through one sidecar.

All are processes of their own, in a private directory. It shows what each call reports, ends in a table, and leaves
nothing behind, also when it fails or is interrupted.
"""

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

ROOT = Path(__file__).resolve().parents[4]
BARE = ROOT / "clients" / "python" / "examples" / "bare"
PACKAGES = ROOT / "clients" / "typescript" / "node_modules"
GO = ROOT / ".tools" / "go"
RUST = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / ".tools" / "rust-target")) / "debug" / "examples"
TYPESCRIPT = ROOT / "clients" / "typescript" / "dist" / "examples" / "bare"
READY_SECONDS, CALL_SECONDS, END_SECONDS = 30, 60, 10
SOCKET_PATH_BYTES = 103  # The smallest limit among the systems that have unix sockets.
# The first connection may be tried before the socket is there: then try again soon.
CHANNEL = [("grpc.initial_reconnect_backoff_ms", 100)]

CALLERS = {
    "Python": [sys.executable, str(BARE / "caller.py")],
    "Go": [str(GO / "caller")],
    "Rust": [str(RUST / "bare")],
    "TypeScript": ["node", str(TYPESCRIPT / "caller.js")],
}


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool, the worker that hosts it, and what is asked of it."""

    name: str
    worker: str
    language: str
    command: list[str]
    arguments: str
    gist: Callable[[Any], str]
    """What a person wants to know of its result."""


TOOLS = [
    Tool(
        "profile_csv",
        "profiler",
        "Python",
        [sys.executable, str(BARE / "worker.py")],
        '{"dataset": "airports"}',
        lambda result: f"{result['rows']:,} rows, {len(result['columns'])} columns",
    ),
    Tool(
        "find_duplicates",
        "finder",
        "Go",
        [str(GO / "worker"), "--folder", str(PACKAGES)],
        '{"limit": 3}',
        lambda result: f"{result['files']:,} files, {result['reclaimable_bytes'] / 1e6:.1f} MB to free",
    ),
]

CONFIG = """\
state_dir = "{home}/state"
[listen]
callers = "unix:{home}/callers.sock"
workers = "unix:{home}/workers.sock"
"""
WORKER = """\
[[worker]]
name = "{tool.worker}"
token_file = "{home}/token"
tools = ["{tool.name}"]
"""


class DemoFailed(Exception):
    """A step of the demo did not work; the text says which."""


class Interrupted(Exception):
    """A signal asked the demo to end. Raised where nothing is just being started or ended."""


interrupted = threading.Event()
"""Set by a signal."""


@contextmanager
def running(name: str, command: list[str], **files: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a group of its own, that is ended whatever happens."""
    paths = [str(ROOT), str(ROOT / "clients" / "python"), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, cwd=ROOT, env=environment, start_new_session=True, **files
    ) as process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                print(f"The {name} did not end within {END_SECONDS} s of SIGTERM and was killed.", file=sys.stderr)
                with suppress(ProcessLookupError):  # It has ended by itself.
                    os.killpg(process.pid, signal.SIGKILL)


def wait_until_serving(name: str, process: subprocess.Popen[bytes], channel: grpc.Channel, service: str) -> None:
    """Returns once the sidecar's health says that the service is there; fails as soon as its process ends instead."""
    check = channel.unary_unary(
        "/grpc.health.v1.Health/Check", HealthCheckRequest.SerializeToString, HealthCheckResponse.FromString
    )
    end = time.monotonic() + READY_SECONDS
    while time.monotonic() < end:
        if interrupted.is_set():
            raise Interrupted
        if process.poll() is not None:
            raise DemoFailed(f"The {name} ended with code {process.returncode} before it was ready.")
        with suppress(grpc.RpcError):  # It does not listen yet, or does not know the service yet.
            if check(HealthCheckRequest(service=service), timeout=1).status == HealthCheckResponse.SERVING:
                return
        interrupted.wait(0.05)
    raise DemoFailed(f"The {name} was not ready within {READY_SECONDS} s.")


@contextmanager
def private_directory() -> Iterator[Path]:
    """A directory with the configuration and the token. A failure shows the ends of the logs that are there then."""
    with tempfile.TemporaryDirectory(prefix="pillion-demo-") as directory:
        home = Path(directory)
        if len(os.fsencode(home / "callers.sock")) > SOCKET_PATH_BYTES:
            raise DemoFailed(
                "The directory for temporary files has too long a path for a unix socket: set a shorter TMPDIR."
            )
        workers = [WORKER.format(home=home, tool=tool) for tool in TOOLS]
        (home / "pillion.toml").write_text(CONFIG.format(home=home) + "".join(workers))
        (home / "token").touch(0o600)
        (home / "token").write_text(secrets.token_urlsafe(32))
        try:
            yield home
        except DemoFailed:
            for log in sorted(home.glob("*.log")):
                lines = log.read_text(errors="replace").splitlines()[-15:]
                print(f"--- the end of {log.name}", *(lines or ["(empty)"]), sep="\n", file=sys.stderr)
            raise


@contextmanager
def sidecar_with_workers(home: Path) -> Iterator[None]:
    """A sidecar, and a worker for each tool. What they print is kept in a log for each."""
    target, where = (
        f"unix:{home}/callers.sock",
        ["--target", f"unix:{home}/workers.sock", "--token-file", f"{home}/token"],
    )
    commands = [
        ("sidecar", "", [sys.executable, "-m", "sidecar", "--config", f"{home}/pillion.toml"]),
        *((f"{tool.language} worker", f"worker/{tool.worker}", [*tool.command, *where]) for tool in TOOLS),
    ]
    with grpc.insecure_channel(target, CHANNEL) as channel, ExitStack() as started:
        for name, service, command in commands:
            print(f"Starting the {name}.", flush=True)
            log = started.enter_context((home / f"{name.replace(' ', '-')}.log").open("wb"))
            process = started.enter_context(running(name, command, stdout=log, stderr=log))
            wait_until_serving(name, process, channel, service)
        yield


def end_in_time(caller: subprocess.Popen[bytes]) -> None:
    """Kills a caller when its time is up or the demo was interrupted. One that has ended is left alone."""
    interrupted.wait(CALL_SECONDS)
    caller.kill()


def call(home: Path, language: str, tool: Tool) -> tuple[bytes, str]:
    """Runs a caller and shows what it reports. Answers the result, empty if it failed, and what the table says."""
    print(f"{language} calls {tool.name}, which is in {tool.language}.", flush=True)
    command = [*CALLERS[language], f"unix:{home}/callers.sock", tool.name, tool.arguments]
    begun, reports = time.perf_counter(), 0
    with (home / "result").open("w+b") as output:
        with running("caller", command, stdout=output, stderr=subprocess.PIPE) as caller:
            assert caller.stderr is not None  # noqa: S101  # it is a pipe, which the type does not say
            # One thread ends a caller that takes too long or is not wanted any more. It may outlive the call.
            threading.Thread(target=end_in_time, args=(caller,), daemon=True).start()
            for line in caller.stderr:
                print(f"    {line.decode(errors='replace').rstrip()}", flush=True)
                reports += 1
            code = caller.wait()
        took = time.perf_counter() - begun
        output.seek(0)
        result = output.read()
    if interrupted.is_set():
        raise Interrupted
    if code:
        return b"", f"FAILED with code {code}"
    return result, f"{tool.gist(json.loads(result))}; {reports} reports, {took:.2f} s"


def table(cells: dict[tuple[str, str], str]) -> Iterator[str]:
    """The lines of the table: a row for each caller, a column for each tool."""
    rows = [["", *(f"{tool.name} in {tool.language}" for tool in TOOLS)]]
    rows.extend([language, *(cells[language, tool.name] for tool in TOOLS)] for language in CALLERS)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()


def demo() -> None:
    """All of it: what it starts is ended and what it writes is removed before it returns or raises."""
    if shutil.which("node") is None:
        raise DemoFailed("node is not on PATH: install Node.js, which the caller in TypeScript needs.")
    for needed in (*(command[-1] for command in CALLERS.values()), f"{GO}/worker", f"{PACKAGES}"):
        if not Path(needed).exists():
            raise DemoFailed(f"{needed} is missing: run `make demo-polyglot`, which makes it.")
    cells: dict[tuple[str, str], str] = {}
    results: dict[str, set[bytes]] = {tool.name: set() for tool in TOOLS}
    with private_directory() as home:
        with sidecar_with_workers(home):
            for language in CALLERS:
                for tool in TOOLS:
                    result, cells[language, tool.name] = call(home, language, tool)
                    results[tool.name].add(result)
        print("", *table(cells), sep="\n", flush=True)
        if any(b"" in found for found in results.values()):
            raise DemoFailed("Some calls failed; what their callers printed says why.")
        differing = [name for name, found in results.items() if len(found) > 1]
        if differing:
            raise DemoFailed(f"The callers got different results from {differing[0]}.")
    print(f"All {len(cells)} calls came through; of each tool, every caller got the same bytes.")


def main() -> None:
    """Runs the demo, so that a signal ends it in order."""
    for ending in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, lambda _signal, _frame: interrupted.set())
    try:
        demo()
    except Interrupted:
        sys.exit("Interrupted: all that was started has been ended.")
    except DemoFailed as failed:
        sys.exit(str(failed))


if __name__ == "__main__":
    main()
