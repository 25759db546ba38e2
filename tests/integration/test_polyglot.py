"""Callers in four languages, each with a worker in Python and one in Go."""

import asyncio
import csv
import hashlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from sidecar._gen.pillion.v1.context_pb2 import CancelReason
from tests.integration.conftest import Run
from tests.support import Host, SocketHost, StartHost, attach, tool
from tests.support.demos import DemoRun, short_place
from tests.support.programs import CALLERS, GO_WORKER, IDLE, PYTHON_WORKER, ROOT, TOOLCHAINS

DEMO = ROOT / "clients" / "python" / "examples" / "polyglot" / "run.py"
SETS = {"profiler": frozenset(("profile_csv",)), "finder": frozenset(("find_duplicates",))}

# The time is that of the tests alone: building the examples takes minutes the first time.
pytestmark = [pytest.mark.timeout(60, func_only=True), pytest.mark.usefixtures("examples")]

in_every_language = pytest.mark.parametrize("language", CALLERS)


@pytest.fixture
def transport() -> str:
    return "unix"


# --- each caller with each worker


@pytest.fixture
async def matrix(start_host: StartHost) -> SocketHost:
    """A sidecar that knows both workers."""
    host = await start_host(sets=SETS)
    assert isinstance(host, SocketHost)
    return host


async def attached(host: SocketHost, worker: str) -> None:
    """Returns once an instance takes calls."""
    async with grpc.aio.insecure_channel(host.callers_at) as channel, asyncio.timeout(30):
        watch = channel.unary_stream(
            "/grpc.health.v1.Health/Watch", HealthCheckRequest.SerializeToString, HealthCheckResponse.FromString
        )(HealthCheckRequest(service=f"worker/{worker}"))
        async for answer in watch:
            if answer.status == HealthCheckResponse.SERVING:
                return


@in_every_language
async def test_calls_the_worker_in_python(language: str, matrix: SocketHost, run: Run, tmp_path: Path) -> None:
    run(*PYTHON_WORKER, "--target", matrix.workers_at, "--token-file", f"{tmp_path}/profiler.token")
    await attached(matrix, "profiler")
    caller = run(*CALLERS[language], matrix.callers_at, "profile_csv", '{"dataset": "iata_macs"}')
    code, output, reports = await caller.finish()

    assert code == 0, reports
    rows = list(csv.DictReader(files("airportsdata").joinpath("iata_macs.csv").read_text("utf-8").splitlines()))
    profile = json.loads(output)
    assert (profile["rows"], [column["name"] for column in profile["columns"]]) == (len(rows), list(rows[0]))
    steps = len(rows[0]) + 2
    assert [report.rpartition(", ")[2] for report in reports] == [f"{done + 1} of {steps}" for done in range(steps)]


@in_every_language
async def test_calls_the_worker_in_go(language: str, matrix: SocketHost, run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "served"
    expected = a_folder_with_duplicates(folder)
    token = f"{tmp_path}/finder.token"
    run(*GO_WORKER, "--target", matrix.workers_at, "--token-file", token, "--folder", str(folder))
    await attached(matrix, "finder")
    caller = run(*CALLERS[language], matrix.callers_at, "find_duplicates", "{}")
    code, output, reports = await caller.finish()

    assert code == 0, reports
    assert json.loads(output) == expected
    assert reports[0] == "listed 8 files, 3.03 kB in all"
    assert reports[-2:] == ["compared 2.02 kB of 2.02 kB", "found 2 groups of equal files"]


def a_folder_with_duplicates(folder: Path) -> dict[str, Any]:
    """Makes the folder; answers what is to be found in it."""
    large, small = b"1" * 1000, "grün".encode()
    contents = {
        "large": large,
        "deep/er/large": large,
        "a": small,
        "b": small,
        "deep/c": small,
        "other": b"other",  # Of the size of `small`.
        "alone": b"0" * 1001,
        "alone too": b"0" * 12,
    }
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    # None of these are copies.
    os.link(folder / "large", folder / "large again")
    (folder / "a link").symlink_to("large")
    (folder / "out").symlink_to(folder.parent)
    (folder / "empty").touch()
    (folder / "empty too").touch()
    os.mkfifo(folder / "pipe")
    return {
        "files": len(contents),
        "bytes": sum(map(len, contents.values())),
        "unreadable": 0,
        "reclaimable_bytes": len(large) + 2 * len(small),
        "groups_found": 2,
        "groups": [
            {"sha256": sha256(large), "bytes": len(large), "copies": 2, "paths": ["deep/er/large", "large"]},
            {"sha256": sha256(small), "bytes": len(small), "copies": 3, "paths": ["a", "b", "deep/c"]},
        ],
    }


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# --- each caller, with a worker in the test's hands


@in_every_language
async def test_a_caller_prints_reports_as_they_come_and_the_result_byte_for_byte(
    language: str, socket_host: SocketHost, run: Run
) -> None:
    worker = await attach(socket_host, tool("echo"))
    arguments, result = '{"a": 1.10, "b": "\\u0000 grün"}', b'{"n": 1e2, "s":  "\\u0000 gr\xc3\xbcn"}'
    caller = run(*CALLERS[language], socket_host.callers_at, "echo", arguments)
    invocation = await worker.next_invoke()
    assert invocation.invoke.arguments == arguments.encode()
    await worker.progress(invocation.call, {"message": "half way, grün", "done": 1})
    assert await caller.line() == "half way, grün"
    await worker.progress(invocation.call, [1, 2])
    assert json.loads(await caller.line()) == [1, 2]
    await worker.result(invocation.call, result)
    assert await caller.finish() == (0, result + b"\n", [])


@in_every_language
async def test_a_caller_shows_a_report_without_a_message_as_it_is(
    language: str, socket_host: SocketHost, run: Run
) -> None:
    worker = await attach(socket_host, tool("echo"))
    caller = run(*CALLERS[language], socket_host.callers_at, "echo", "{}")
    invocation = await worker.next_invoke()
    reports = ["no JSON", "null", '{"message": 1}', "[1,  2]"]
    for report in reports:
        await worker.progress(invocation.call, report.encode())
    await worker.result(invocation.call, b"1")
    assert await caller.finish() == (0, b"1\n", reports)


@in_every_language
async def test_a_caller_fails_with_the_sentence_of_the_failure(
    language: str, socket_host: SocketHost, run: Run
) -> None:
    worker = await attach(socket_host, tool("echo"))
    caller = run(*CALLERS[language], socket_host.callers_at, "echo", "{}")
    invocation = await worker.next_invoke()
    await worker.fail(invocation.call, message="The disk is full.")
    assert await caller.finish() == (1, b"", ["The disk is full."])


@in_every_language
async def test_a_caller_fails_with_a_result_that_is_an_error(language: str, socket_host: SocketHost, run: Run) -> None:
    worker = await attach(socket_host, tool("echo"))
    caller = run(*CALLERS[language], socket_host.callers_at, "echo", "{}")
    invocation = await worker.next_invoke()
    await worker.result(invocation.call, b'"no"', is_error=True)
    assert await caller.finish() == (1, b'"no"\n', ["The tool says that this is an error."])


@in_every_language
async def test_a_caller_says_so_when_there_is_no_sidecar(language: str, run: Run, tmp_path: Path) -> None:
    caller = run(*CALLERS[language], f"unix:{tmp_path}/nobody.sock", "echo", "{}")
    code, output, errors = await caller.finish()
    assert (code, output, len(errors)) == (1, b"", 1)
    assert errors[0].lower().startswith("the stream was lost: unavailable: ")


@in_every_language
async def test_a_caller_shows_its_usage(language: str, run: Run) -> None:
    caller = run(*CALLERS[language], "unix:/nowhere")
    code, output, errors = await caller.finish()
    assert (code, output) == (2, b"")
    assert errors[0].startswith("usage: ")


@in_every_language
async def test_a_caller_that_is_interrupted_cancels_its_call(language: str, socket_host: SocketHost, run: Run) -> None:
    worker = await attach(socket_host, tool("echo"))
    caller = run(*CALLERS[language], socket_host.callers_at, "echo", "{}")
    invocation = await worker.next_invoke()
    caller.signal(signal.SIGINT)
    assert await worker.cancelled(invocation.call) == CancelReason.CANCEL_REASON_DISCONNECT
    code, output, _ = await caller.finish()
    assert (code != 0, output) == (True, b"")


@in_every_language
async def test_a_proxy_for_the_web_does_not_capture_a_local_call(
    language: str, socket_host: SocketHost, run: Run
) -> None:
    names = [f"{scheme}_proxy" for scheme in ("http", "https", "all", "grpc")]
    proxies = dict.fromkeys([*names, *map(str.upper, names)], "http://127.0.0.1:9")
    worker = await attach(socket_host, tool("echo"))
    caller = run(*CALLERS[language], socket_host.callers_at, "echo", "{}", **proxies)
    invocation = await worker.next_invoke()
    await worker.result(invocation.call, b"1")
    assert await caller.finish() == (0, b"1\n", [])


# --- connections


@pytest.mark.slow
@pytest.mark.timeout(90, func_only=True)
async def test_keepalive_pings_of_an_idle_client_in_go_are_welcome(
    host: Host, socket_host: SocketHost, run: Run, tmp_path: Path
) -> None:
    # A server with the defaults of gRPC shows that this is long enough to be sent away: at the fourth ping.
    strict = grpc.aio.server()
    strict.add_insecure_port(f"unix:{tmp_path}/strict.sock")
    await strict.start()
    targets = (f"unix:{tmp_path}/strict.sock", socket_host.callers_at, socket_host.workers_at)
    clients = [run(*IDLE, target, "44s") for target in targets]
    (sent_away, _, words), *welcome = [await client.finish(within=60) for client in clients]
    await strict.stop(None)
    assert (sent_away, words[-1]) == (1, "The connection was lost after 40s.")
    assert welcome == [(0, b"", [])] * 2


# --- the demo


@pytest.fixture
def place() -> Iterator[Path]:
    with short_place() as directory:
        yield directory


@pytest.fixture
def demo(place: Path) -> Iterator[DemoRun]:
    started = DemoRun(place, DEMO)
    with started.process:
        yield started
        started.kill()


def test_the_demo_shows_the_reports_of_each_call_and_ends_in_a_table(demo: DemoRun) -> None:
    output, errors = demo.finish(within=120)
    assert (demo.process.returncode, errors) == (0, "")
    *shown, blank, header, python, go, rust, typescript, verdict = output
    assert shown[:3] == ["Starting the sidecar.", "Starting the Python worker.", "Starting the Go worker."]
    calls: dict[str, list[str]] = {}
    for line in shown[3:]:
        if line.startswith("    "):
            calls[next(reversed(calls))].append(line.strip())
        else:
            calls[line] = []
    for language in ("Python", "Go", "Rust", "TypeScript"):
        profiling = calls.pop(f"{language} calls profile_csv, which is in Python.")
        assert (len(profiling), profiling[-1]) == (13, "correlated 3 pairs of numeric columns, 13 of 13")
        finding = calls.pop(f"{language} calls find_duplicates, which is in Go.")
        assert len(finding) >= 10
        assert finding[-1].endswith(" groups of equal files")
    assert not calls
    assert blank == ""
    assert header.split() == ["profile_csv", "in", "Python", "find_duplicates", "in", "Go"]
    assert [row.split()[0] for row in (python, go, rust, typescript)] == ["Python", "Go", "Rust", "TypeScript"]
    assert all(row.count(" reports, ") == 2 for row in (python, go, rust, typescript))
    assert verdict == "All 8 calls came through; of each tool, every caller got the same bytes."
    assert demo.left() == []


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("after", ["Starting the sidecar.", "Starting the Go worker.", "read 28,298 rows"])
def test_the_demo_leaves_nothing_when_it_is_interrupted(demo: DemoRun, ending: signal.Signals, after: str) -> None:
    demo.until(after)
    demo.process.send_signal(ending)
    _, errors = demo.finish(within=120)
    assert (demo.process.returncode, errors) == (1, "Interrupted: all that was started has been ended.\n")
    assert demo.left() == []


def test_the_demo_says_what_to_do_when_the_examples_are_not_built(place: Path, tmp_path: Path) -> None:
    program = tmp_path / DEMO.relative_to(ROOT)
    program.parent.mkdir(parents=True)
    shutil.copy(DEMO, program)
    demo = DemoRun(place, program)
    with demo.process:
        output, errors = demo.finish(within=120)
    assert (demo.process.returncode, output) == (1, [])
    assert errors.endswith("is missing: run `make demo-polyglot`, which makes it.\n")


@pytest.mark.parametrize("program", TOOLCHAINS)
def test_make_names_a_missing_toolchain_in_one_sentence(program: str, tmp_path: Path) -> None:
    for name in {"bash", "make", *TOOLCHAINS} - {program}:
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    ended = subprocess.run(
        ["make", "demo-polyglot"], cwd=ROOT, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"{program} is not on PATH: install ")
    assert (ended.stdout, len(ended.stderr.splitlines())) == ("", 2)
