"""Workers that the sidecar starts and that are no good: each is told in a sentence, and harms nobody else."""

import asyncio
import contextlib
import json
import logging
import os
import pwd
import resource
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Protocol

import psutil
import pytest

from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind
from sidecar.config import ConfigRefused, Settings, Worker
from sidecar.serving import serve
from sidecar.workers.processes import Command, Guardian
from tests.faults.conftest import Inside
from tests.faults.running import running
from tests.support import CallLimits, Setup, SocketHost, WorkerLimits, attach, settings, tool
from tests.support.process import HOSTED, ROOT
from tests.support.watch import watched

_PATIENCE = 20.0
_POLL_SECONDS = 0.02
LIMITS = WorkerLimits(attach_within=15, restart_at_most=0.2, stop_grace=0.3, drain=0.5)
PATHS = {"PYTHONPATH": f"{ROOT}:{ROOT / 'clients' / 'python'}"}

MIB = 1024 * 1024


class Supervise(Protocol):
    """Starts a sidecar that starts this worker, beside another that attaches. Its fixture ends it."""

    async def __call__(
        self, *command: str, limits: WorkerLimits = LIMITS, over: str = "unix", **fields: Any
    ) -> SocketHost:
        """The running sidecar."""
        ...


@pytest.fixture
def transport() -> str:
    """They are over unix sockets where nothing else is said."""
    return "unix"


@pytest.fixture
async def supervise(tmp_path: Path) -> AsyncIterator[Supervise]:
    hosts: list[SocketHost] = []

    async def start(*command: str, limits: WorkerLimits = LIMITS, over: str = "unix", **fields: Any) -> SocketHost:
        # A call waits for a process that is being started again.
        made_with = settings(Setup(calls=CallLimits(worker_wait=_PATIENCE), workers=limits), over, tmp_path)
        worker = Worker(name="started", command=command, environment=PATHS, **fields)
        host = SocketHost(over, made_with.model_copy(update={"worker": (*made_with.worker, worker)}))
        await host.open()
        hosts.append(host)
        return host

    yield start
    for host in hosts:
        await host.aclose()
    assert not descendants(), "processes outlive their sidecar"


def descendants() -> list[psutil.Process]:
    return [each for each in psutil.Process().children(recursive=True) if each.status() != psutil.STATUS_ZOMBIE]


def hosted(*options: str) -> tuple[str, ...]:
    return sys.executable, str(HOSTED), *options


def script(text: str) -> tuple[str, ...]:
    return sys.executable, "-c", text


async def until(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + _PATIENCE
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen within {_PATIENCE:g} s"
        await asyncio.sleep(_POLL_SECONDS)


class Said(logging.Handler):
    """What the sidecar logs."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        super().__init__()
        caplog.set_level(logging.INFO)
        self._caplog = caplog
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self._loop.call_soon_threadsafe(self._news.set)

    def times(self, text: str) -> int:
        return sum(text in message for message in self._caplog.messages)

    async def so(self, text: str, times: int = 1) -> None:
        try:
            async with asyncio.timeout(_PATIENCE):
                while self.times(text) < times:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"{text!r} was not said within {_PATIENCE:g} s") from None

    def of_worker(self) -> list[logging.LogRecord]:
        """What the worker printed."""
        return [record for record in self._caplog.records if record.name == "pillion.worker"]


@pytest.fixture
async def said(caplog: pytest.LogCaptureFixture) -> AsyncIterator[Said]:
    said = Said(caplog)
    logging.getLogger().addHandler(said)
    yield said
    logging.getLogger().removeHandler(said)


async def others_are_served(host: SocketHost) -> None:
    """Another worker is attached and called as if nothing were."""
    worker = await attach(host, tool("other"), worker="other")
    await (await running(await host.caller(), worker, "other")).ends_well()


async def answers(host: SocketHost, name: str = "pid") -> Any:
    """What a tool of the started worker says, once it is attached."""
    async with watched(host.callers_at) as watch:
        await watch.has(name)
    outcome = await (await host.caller()).call(name)
    assert outcome.HasField("result"), outcome
    return json.loads(outcome.result.json)


# --- commands that cannot be run


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("/nowhere/worker", "No such file or directory"),
        ("no-such-program-of-anybody", "No such file or directory"),
        ("/etc", "Permission denied"),
    ],
)
async def test_a_command_that_is_not_there(supervise: Supervise, said: Said, command: str, why: str) -> None:
    host = await supervise(command)
    await said.so(f"worker started (1): could not be started: {why}; look at its command in the settings; next try", 2)
    await others_are_served(host)


async def test_a_command_of_what_no_program_can_be_given(supervise: Supervise, said: Said) -> None:
    host = await supervise("true", "a\0b")
    await said.so("worker started (1): could not be started: ")
    await others_are_served(host)


# --- processes that do not last


async def test_a_process_that_exits_at_once(supervise: Supervise, said: Said, inside: Inside) -> None:
    host = await supervise(*script("import sys; sys.exit('my last words')"), instances=2)
    await said.so("worker started (1): exited with status 1; next try in ", 2)
    await said.so("worker started (2): exited with status 1; next try in ", 2)
    await said.so("my last words", 4)
    assert inside.counts["restarts"] >= 4
    await others_are_served(host)


async def test_a_process_that_has_failed_for_ever_is_still_started_again(supervise: Supervise, inside: Inside) -> None:
    # A pause that doubles is beyond every float after 1,024 failures, which is hours where pauses are as by default.
    limits = WorkerLimits(restart_first=1e-9, restart_at_most=1e-9)
    host = await supervise("/is/not/there", limits=limits)
    await until(lambda: inside.counts.get("restarts", 0) > 1_100, "start number 1,100")
    await others_are_served(host)


async def test_a_process_that_is_ended_by_a_signal(supervise: Supervise, said: Said) -> None:
    host = await supervise(*script("import os; os.kill(os.getpid(), 11)"))
    await said.so("worker started (1): ended by signal 11; next try in ")
    await others_are_served(host)


async def test_a_process_that_never_attaches(supervise: Supervise, said: Said) -> None:
    endless = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    limits = WorkerLimits(attach_within=0.5, restart_at_most=0.2, stop_grace=0.2)
    host = await supervise(*script(endless), limits=limits)
    await said.so("worker started (1): did not attach within 0.5 s and was ended; next try in ", 2)
    await others_are_served(host)


async def test_a_process_with_a_token_of_another(supervise: Supervise, said: Said) -> None:
    wrong = (
        "import os, runpy, sys; reading, writing = os.pipe(); os.write(writing, b'wrong'); os.close(writing);"
        f"os.environ['PILLION_WORKER_TOKEN_FD'] = str(reading); sys.argv = ['hosted', 'pid'];"
        f"runpy.run_path({str(HOSTED)!r}, run_name='__main__')"
    )
    host = await supervise(*script(wrong))
    await said.so("worker started (1): exited with status 1; next try in ")
    await others_are_served(host)


async def test_a_process_that_is_lost_in_the_middle_of_a_call_is_started_again(
    supervise: Supervise, said: Said
) -> None:
    host = await supervise(*hosted("pid", "wait"))
    pid = await answers(host)
    caller = await host.caller()
    call = await caller.start("wait", {"seconds": 50})
    await caller.next_of("progress", call)
    os.kill(pid, signal.SIGKILL)
    assert (await caller.outcome(call)).failure.kind == FailureKind.FAILURE_KIND_OUTCOME_UNKNOWN
    await said.so("worker started (1): ended by signal 9; next try in ")
    assert await answers(host) != pid
    await others_are_served(host)


async def test_a_process_that_hangs_is_ended_and_started_again(supervise: Supervise, said: Said) -> None:
    limits = WorkerLimits(ping_interval=0.3, attach_within=15, restart_at_most=0.2, stop_grace=0.3, drain=0.5)
    host = await supervise(*hosted("pid"), limits=limits)
    pid = await answers(host)
    os.kill(pid, signal.SIGSTOP)
    await said.so("worker started (1): was given up as hung, and ended; next try in ")
    assert await answers(host) != pid
    assert not psutil.pid_exists(pid)
    await others_are_served(host)


# --- what they print


async def test_what_is_printed_is_logged_by_bounded_lines_whatever_it_is(
    supervise: Supervise, said: Said, tmp_path: Path
) -> None:
    words = tmp_path / "words"
    words.write_bytes(
        b"first\n" + b"x" * MIB + b"\n\xff\xfe not of UTF-8 \x00\n\n   \n\xe2\x82\r\nlast\nwithout an end"
    )
    host = await supervise(*hosted("--say", str(words), "pid"))
    await answers(host)
    await said.so("last")
    texts = [record.getMessage() for record in said.of_worker()]
    long = "x" * 8_192 + f"… (+{MIB - 8_192} bytes)"
    assert texts == ["first", long, "\ufffd\ufffd not of UTF-8 \x00", "\ufffd", "last"]
    assert {record.__dict__["worker"] for record in said.of_worker()} == {"started"}
    await others_are_served(host)


async def test_what_is_printed_during_a_call_is_tied_to_it(supervise: Supervise, said: Said) -> None:
    host = await supervise(*hosted("shout", "pid"))
    caller = await host.caller()
    await answers(host)
    call = await caller.start("shout", {"text": "of the second"})
    started = await caller.started(call)
    await said.so("of the second")
    await caller.cancel(call)
    await caller.outcome(call)
    (record,) = [record for record in said.of_worker() if record.getMessage() == "of the second"]
    assert record.__dict__["execution_id"] == started.execution_id


async def test_a_flood_of_lines_is_bounded(supervise: Supervise, said: Said, inside: Inside) -> None:
    limits = WorkerLimits(log_lines_per_second=5, attach_within=2, restart_at_most=0.2, stop_grace=0.2)
    host = await supervise(*script("while True: print('flood')"), limits=limits)
    await others_are_served(host)
    await until(lambda: inside.counts.get("dropped_log_lines", 0) > 10_000, "a drop of lines")
    assert said.times("flood") < 100


@pytest.mark.parametrize("closed", ["<&-", "<&- >&-", "<&- >&- 2>&-"])
async def test_a_process_may_close_what_it_was_given(supervise: Supervise, closed: str) -> None:
    host = await supervise("sh", "-c", f'exec "$@" {closed}', "sh", *hosted("pid"))
    await answers(host)
    await others_are_served(host)


# --- what they get


async def test_a_process_sees_only_what_it_is_to_see(
    supervise: Supervise, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OF_THE_SIDECAR", "secret")
    monkeypatch.setenv("TZ", "UTC")
    await supervise(
        *script(
            "import json, os; print(json.dumps(dict(os.environ)), file=open('seen.new', 'w')); "
            "os.rename('seen.new', 'seen')"
        ),
        directory=tmp_path,
    )
    seen = tmp_path / "seen"
    await until(seen.exists, "a start")
    variables = json.loads(seen.read_text())
    own = {name for name in variables if name.startswith("PILLION_")}
    assert own == {
        "PILLION_WORKER_NAME",
        "PILLION_WORKER_PROCESS",
        "PILLION_WORKER_TARGET",
        "PILLION_WORKER_TOKEN_FD",
    }
    assert variables["TZ"] == "UTC"
    assert "OF_THE_SIDECAR" not in variables
    assert variables.keys() - own <= {"PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "PYTHONPATH"}


async def test_a_process_begins_with_the_signals_of_any_program_and_no_descriptor_but_its_token(
    supervise: Supervise, tmp_path: Path
) -> None:
    await supervise(
        *script(
            "import os; state = open('/proc/self/status').read(); kept = os.listdir('/proc/self/fd');"
            "seen = open('seen.new', 'w'); print(state, *kept, file=seen); seen.close(); os.rename('seen.new', 'seen')"
        ),
        directory=tmp_path,
    )
    seen = tmp_path / "seen"
    await until(seen.exists, "a start")
    *lines, kept = seen.read_text().splitlines()
    (ignored,) = [int(line.split()[1], 16) for line in lines if line.startswith("SigIgn")]
    # Python itself ignores two, once it runs.
    for ending in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        assert not ignored >> (ending - 1) & 1, f"a worker that does nothing about it cannot be ended by {ending.name}"
    # Standard input, output and errors, the token, and the listing itself.
    assert len(kept.split()) == 5


@pytest.mark.skipif(os.getuid() != 0, reason="only root may run a worker as another user")
async def test_a_process_of_another_user(supervise: Supervise, said: Said) -> None:
    nobody = pwd.getpwnam("nobody")
    groups = os.getgroups()
    os.setgroups([0, 1])
    try:
        host = await supervise("sh", "-c", "echo I am $(id -u):$(id -g):$(id -G)", over="tcp", user="nobody")
        await said.so(f"I am {nobody.pw_uid}:{nobody.pw_gid}:{nobody.pw_gid}")
    finally:
        os.setgroups(groups)
    assert not said.times(f"{nobody.pw_gid} ")
    await others_are_served(host)


# --- settings of theirs


async def refusal(made_with: Settings) -> str:
    """Why a sidecar with these settings does not start."""
    with pytest.raises(ConfigRefused) as refused:
        await serve(lambda: made_with)
    return str(refused.value)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"directory": "nowhere"}, "The directory of worker started, {}/nowhere, is not there; make it."),
        ({"directory": "a-file"}, "The directory of worker started, {}/a-file, is not there; make it."),
        (
            {"user": "nobody-of-this-name"},
            "There is no user nobody-of-this-name for worker started; name one there is.",
        ),
        pytest.param(
            {"user": "nobody"},
            "Worker started runs as nobody, who may not connect to the workers' socket; name a group of that user as "
            "listen.worker_socket_group.",
            marks=pytest.mark.skipif(os.getuid() != 0, reason="only root may run a worker as another user"),
        ),
    ],
)
async def test_a_directory_or_a_user_that_is_not_there(tmp_path: Path, fields: dict[str, str], sentence: str) -> None:
    (tmp_path / "a-file").write_text("")
    if "directory" in fields:
        fields = {"directory": str(tmp_path / fields["directory"])}
    worker = Worker.model_validate({"name": "started", "command": ("true",), **fields})
    made_with = settings(Setup(), "unix", tmp_path).model_copy(update={"worker": (worker,)})
    assert await refusal(made_with) == sentence.format(tmp_path)


async def test_a_process_whose_start_nobody_waits_for_any_more_is_ended() -> None:
    guardian = Guardian()
    command = Command((sys.executable, "-c", "import time; time.sleep(600)"), None, {}, None, None, None)
    try:
        starting = [asyncio.ensure_future(guardian.start(command, "token")) for _ in range(3)]
        # Each has told the guardian, and heard nothing yet.
        await asyncio.sleep(0)
        for start in starting[:2]:
            start.cancel()
        process = await starting[2]
        async with asyncio.timeout(_PATIENCE):
            while {child.pid for child in psutil.Process(guardian.pid).children()} != {process.pid}:  # noqa: ASYNC110  # nothing tells of it
                await asyncio.sleep(_POLL_SECONDS)
        process.kill()
        assert await process.exited == -signal.SIGKILL
        os.close(process.stdout)
        os.close(process.stderr)
    finally:
        await guardian.end()


@pytest.mark.skipif(resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 2_048, reason="so many may not be open here")
async def test_a_guardian_that_is_started_late_has_a_descriptor_of_any_number() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as open_already:
        resource.setrlimit(resource.RLIMIT_NOFILE, (2_048, hard))
        open_already.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        # As many connections take.
        for _ in range(1_100):
            open_already.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        guardian = Guardian()
        try:
            process = await guardian.start(Command(("true",), None, {"PATH": os.defpath}, None, None, None), "token")
            assert await process.exited == 0
            os.close(process.stdout)
            os.close(process.stderr)
        finally:
            await guardian.end()


def descriptors() -> list[int]:
    return sorted(int(entry.name) for entry in Path("/proc/self/fd").iterdir())


async def test_a_start_that_finds_no_descriptors_free_keeps_none() -> None:
    guardian = Guardian()
    command = Command(("true",), None, {}, None, None, None)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(descriptors())
    with contextlib.ExitStack() as gaps:
        while (descriptor := os.open(os.devnull, os.O_RDONLY)) <= highest:
            gaps.callback(os.close, descriptor)
        os.close(descriptor)
        taken = descriptors()
        try:
            # None, one or two of its three pipes can be made, or half of one.
            for room in range(1, 6):
                resource.setrlimit(resource.RLIMIT_NOFILE, (highest + room, hard))
                with pytest.raises(OSError, match="Too many open files"):
                    await guardian.start(command, "token")
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
                assert descriptors() == taken
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            await guardian.end()
