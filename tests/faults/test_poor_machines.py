"""A disk that is full, a root that is read-only, no home, a user whom nobody knows: it works, or says what to do."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path

import pytest
from grpc import aio
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind
from tests.support import READ, SidecarProcess, attach, hosted, tool
from tests.support.host import SETS
from tests.support.machines import lacking, of_a_stranger, read_only, refused, with_disk
from tests.support.process import ROOT
from tests.support.watch import watched

KIB = 1024
UNAVAILABLE = FailureKind.FAILURE_KIND_UNAVAILABLE
OUTCOME_UNKNOWN = FailureKind.FAILURE_KIND_OUTCOME_UNKNOWN

_PATIENCE = 30.0
_LACKING = lacking()
on_other_machines = pytest.mark.skipif(bool(_LACKING), reason=_LACKING)

CLUSTER = {
    "PILLION_PORT": "tcp://10.0.0.1:80",
    "PILLION_PORT_80_TCP": "tcp://10.0.0.1:80",
    "PILLION_SERVICE_HOST": "10.0.0.1",
    "PILLION_SERVICE_PORT": "80",
}
"""What Kubernetes gives every container beside a service of the name pillion."""


@pytest.fixture
def transport() -> str:
    """All of them are over unix sockets."""
    return "unix"


Starts = Callable[..., Awaitable[SidecarProcess]]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Starts]:
    """Starts the program on a machine, with workers of its own or those that attach."""
    started: list[SidecarProcess] = []

    async def begin(within: Sequence[str], workers: str = "", **environment: str | None) -> SidecarProcess:
        process = SidecarProcess(tmp_path, {} if workers else SETS, within=within, environment=environment)
        if workers:
            process.write(workers)
        started.append(process)
        await process.start()
        return process

    yield begin
    for process in started:
        await process.aclose()


def fill(process: SidecarProcess, state: Path) -> Path:
    """Leaves no room on the disk of the state; answers the file that takes it."""
    file = Path(f"/proc/{process.pid}/root{state}/fill")
    with file.open("wb", buffering=0) as full:
        for size in (64 * KIB, 4 * KIB):
            while True:
                try:
                    full.write(bytes(size))
                except OSError:
                    break
    return file


# --- full disks


@on_other_machines
async def test_a_disk_that_is_full_refuses_requests_with_a_key_alone_until_there_is_room(
    start: Starts, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    process = await start(with_disk(state, "1m"))
    worker, caller = await attach(process), await process.caller()
    call = await caller.start(idempotency_key="before")
    await worker.result((await worker.next_invoke()).call, "before")
    await caller.outcome(call)
    running = await caller.start(idempotency_key="during")
    run = await worker.next_invoke()

    file = fill(process, state)
    failure = (await caller.call(idempotency_key="full")).failure
    assert (failure.kind, failure.retryable) == (UNAVAILABLE, True)
    assert failure.message.startswith("The record of idempotency keys cannot be reached, so the request was not run")
    await worker.result(run.call, "during")
    assert (await caller.outcome(running)).result.json == b'"during"', "its outcome is told, though it is not recorded"
    call = await caller.start()
    await worker.result((await worker.next_invoke()).call, "without a key")
    assert (await caller.outcome(call)).result.json == b'"without a key"'
    assert "look after its disk" in "".join(process.said)

    file.unlink()
    call = await caller.start(idempotency_key="full")
    await worker.result((await worker.next_invoke()).call, "after")
    assert (await caller.outcome(call)).result.json == b'"after"'
    assert (await caller.call(idempotency_key="before")).result.json == b'"before"'
    # Nothing says how that one ended, so it is not run again.
    assert (await caller.call(idempotency_key="during")).failure.kind == OUTCOME_UNKNOWN


@on_other_machines
async def test_a_disk_that_is_full_at_the_start_is_told(tmp_path: Path) -> None:
    state = tmp_path / "state"
    said = await refused(with_disk(state, "64k", filled=60 * KIB), tmp_path)
    assert said == f"There is no room to write {state}/pillion.db: free some space on its disk.\n"


def standard_error_of(pid: int) -> Path:
    """Where the process writes what is meant for people."""
    return Path(f"/proc/{pid}/fd/2").readlink()


@pytest.fixture(params=["<&- >&- 2>&-", "2>/dev/full"], ids=["all closed", "full disk"])
def unlogged(
    tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[tuple[SidecarProcess, "subprocess.Popen[bytes]"]]:
    """A sidecar that runs, though nothing can be written to its log."""
    process = SidecarProcess(tmp_path)
    with subprocess.Popen(
        (
            *("sh", "-c", f'exec "$@" {request.param}', "sh"),
            *(sys.executable, "-m", "sidecar", "--config", str(process.config)),
        ),
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    ) as running:
        yield process, running
        running.kill()


async def test_a_log_that_cannot_be_written_stops_nothing(
    unlogged: tuple[SidecarProcess, "subprocess.Popen[bytes]"],
) -> None:
    process, running = unlogged
    async with aio.insecure_channel(process.callers_at) as channel, asyncio.timeout(_PATIENCE):
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            HealthCheckRequest.SerializeToString,
            HealthCheckResponse.FromString,
        )
        await check(HealthCheckRequest(), wait_for_ready=True)
    # What a library says goes nowhere else.
    assert standard_error_of(running.pid).is_char_device()
    worker, caller = await attach(process, tool("read", effects=READ)), await process.caller()
    call = await caller.start("read")
    await worker.result((await worker.next_invoke()).call, 1)
    assert (await caller.outcome(call)).result.json == b"1"
    await process.aclose()
    running.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(running.wait, _PATIENCE) == 0


# --- places that cannot be written to, and users whom nobody knows


@on_other_machines
async def test_a_read_only_root_no_home_and_a_user_whom_nobody_knows_are_enough(start: Starts, tmp_path: Path) -> None:
    lacking = dict.fromkeys(("HOME", "XDG_STATE_HOME", "USER", "LOGNAME"))
    process = await start(read_only(but=tmp_path), hosted("own", "pid echo"), **lacking, **CLUSTER)
    async with watched(process.callers_at) as watch:
        await watch.until("pid", "echo")
    caller = await process.caller()
    assert (await caller.call("echo", {"a": 1}, idempotency_key="k")).result.json == b'{"a": 1}'
    process.send(signal.SIGTERM)
    assert await process.ended() == 0


@on_other_machines
async def test_a_state_directory_that_cannot_be_written_to_is_told(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    state.chmod(0o500)
    said = await refused(of_a_stranger(), tmp_path, HOME=None)
    assert said == f"{state}/lock cannot be made: Permission denied; may this user write there?\n"


@on_other_machines
async def test_a_read_only_root_without_a_place_for_state_is_told(tmp_path: Path) -> None:
    said = await refused(read_only(but=tmp_path / "elsewhere"), tmp_path)
    assert said == f"{tmp_path}/state cannot be made: Read-only file system; may this user write there?\n"
