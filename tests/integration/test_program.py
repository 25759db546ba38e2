"""The program, as people and scripts run it: what each command says, where, and how it ends."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from sidecar import __version__
from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind
from tests.support import SidecarProcess, attach, on_unix
from tests.support.documents import ROOT

SECONDS = 30
COMMANDS = ("serve", "check", "tools", "call", "calls", "cancel", "wait-ready", "shutdown", "version")
ASCII = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"}
MISTAKEN = "colour = 1\n[listen]\ncaller = 'unix:a'\ninsecure = 'perhaps'\n"


def pillion(
    *arguments: str, environment: Mapping[str, str | None] | None = None, cwd: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    """Runs the program to its end. A variable that is `None` is not set."""
    variables: dict[str, str | None] = {**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})}
    return subprocess.run(
        [sys.executable, "-m", "sidecar", *arguments],
        cwd=cwd,
        env={name: value for name, value in variables.items() if value is not None},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=SECONDS,
        check=False,
    )


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Settings that can be used."""
    path = tmp_path / "pillion.toml"
    path.write_text(f"state_dir = 'state'\n[[worker]]\nname = 'main'\ncommand = [{sys.executable!r}]\n")
    return path


# --- help, and what is no command


@pytest.mark.parametrize("command", [(), *((each,) for each in COMMANDS)])
def test_every_command_helps(command: tuple[str, ...]) -> None:
    done = pillion(*command, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: {' '.join(('pillion', *command))} ")
    if not command:
        assert all(each in done.stdout for each in COMMANDS)


def test_help_is_fast_and_loads_nothing_of_the_sidecar() -> None:
    look = (
        "import sys; from sidecar.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print({'grpc', 'pydantic', 'asyncio', 'sidecar.app'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", look], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.endswith("\nset()\n")
    took: list[float] = []
    while not took or min(took) > 2:
        assert len(took) < 5, took
        begun = time.perf_counter()
        assert pillion("--help").returncode == 0
        took.append(time.perf_counter() - begun)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "required: COMMAND"),
        (("sing",), "invalid choice: 'sing'"),
        (("cancel",), "required: execution"),
        (("wait-ready", "--timeout", "soon"), "soon is no number of seconds"),
        (("shutdown", "--grace", "nan"), "nan is no number of seconds"),
        (("shutdown", "--grace", "-1"), "-1 is no number of seconds"),
    ],
)
def test_what_is_no_command_is_refused(arguments: tuple[str, ...], said: str) -> None:
    done = pillion(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert done.stderr.startswith("usage: pillion")
    assert "Traceback" not in done.stderr


def test_the_version() -> None:
    done = pillion("version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"pillion {__version__}\n", "")


# --- check


def test_settings_that_are_good(config: Path, tmp_path: Path) -> None:
    for arguments, cwd, told in (
        (("check", "--config", str(config)), ROOT, str(config)),
        (("check",), tmp_path, "pillion.toml"),
    ):
        done = pillion(*arguments, cwd=cwd)
        assert done.returncode == 0
        assert done.stdout == f"{told}: good; 1 workers, callers at unix:{tmp_path}/state/callers.sock\n"
        assert done.stderr.startswith("warning: worker main runs as the sidecar's own user")
    assert not (tmp_path / "state").exists(), "a check changes nothing"


def test_every_mistake_is_named_at_once_each_with_its_line(tmp_path: Path) -> None:
    config = tmp_path / "pillion.toml"
    config.write_text(MISTAKEN)
    for command in ("check", "serve"):
        done = pillion(command, "--config", str(config), environment={"PILLION__STATE_DIR": "5"})
        assert (done.returncode, done.stdout) == (2, "")
        settings = (
            "allow, artifacts, audit, credential, credentials, limits, listen, log, metrics, state_dir, tracing, worker"
        )
        assert done.stderr.splitlines() == [
            f"{config}:1: colour is not a setting; here there are {settings}.",
            f"{config}:3: listen.caller is not a setting; did you mean callers?",
            f"{config}:4: listen.insecure must be true or false.",
            "PILLION__STATE_DIR: state_dir must be a path in quotes.",
        ]


def test_what_only_a_look_at_the_machine_can_tell_is_named_at_once(tmp_path: Path) -> None:
    config = tmp_path / "pillion.toml"
    config.write_text(
        "state_dir = 'state'\n[listen]\ncallers = '0.0.0.0:80'\ninsecure = true\n"
        "[[worker]]\nname = 'a'\ncommand = ['no-such-program-of-anybody']\nuser = 'nobody-of-this-name'\n"
        "[[worker]]\nname = 'b'\ntoken_file = 'none.token'\n"
    )
    done = pillion("check", "--config", str(config))
    assert (done.returncode, done.stdout) == (2, "")
    *mistakes, warning = done.stderr.splitlines()
    assert mistakes.pop(0).startswith("0.0.0.0:80 is not on loopback, where anyone could connect: give it certificates")
    assert mistakes == [
        "There is no user nobody-of-this-name for worker a; name one there is.",
        "The command of worker a, no-such-program-of-anybody, is not there or cannot be run.",
        f"The token file of worker b, {tmp_path}/none.token, cannot be read; put a random text in it.",
    ]
    assert warning.startswith("warning: listen.insecure serves TCP on loopback")


def test_a_command_is_looked_for_where_it_would_be_run(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    tool = place / "tool"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o700)
    config = place / "pillion.toml"

    def checked(worker: str) -> int:
        config.write_text(f"state_dir = 'state'\n[[worker]]\nname = 'a'\n{worker}\n")
        return pillion("check", "--config", str(config), cwd=tmp_path).returncode

    assert checked("command = ['./tool']") == 0
    assert checked(f"command = ['tool']\nenvironment = {{ PATH = '{place}' }}") == 0
    assert checked("command = ['tool']") == 2
    assert checked(f"command = ['sh']\nenvironment = {{ PATH = '{place}' }}") == 2


def test_a_process_without_a_home_is_told_what_to_set(tmp_path: Path) -> None:
    bare = {"HOME": None, "XDG_STATE_HOME": None}
    for command in ("check", "serve", "calls"):
        done = pillion(command, environment=bare, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("There is no HOME to keep state in; set state_dir, or PILLION__STATE_DIR.\n")
        assert "Traceback" not in done.stderr
    done = pillion("check", environment=bare | {"PILLION__STATE_DIR": str(tmp_path / "state")}, cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith("the defaults: good; 0 workers, ")


# --- a sidecar that runs


@on_unix
async def test_the_operators_commands(sidecar_process: SidecarProcess) -> None:
    config = ("--config", str(sidecar_process.config))
    worker, caller = await attach(sidecar_process), await sidecar_process.caller()
    assert pillion("wait-ready", *config, "main").returncode == 0

    none = pillion("calls", *config)
    assert (none.returncode, none.stdout, none.stderr) == (0, "", "No calls are running.\n")

    call = await caller.start("echo", {"text": "hello"}, tool_call_id="of-the-model")
    run = (await worker.next_invoke()).call
    await worker.progress(run)
    execution = (await caller.started(call)).execution_id

    listed = pillion("calls", *config)
    assert (listed.returncode, listed.stderr) == (0, "")
    assert listed.stdout.startswith(f"{execution}  echo  running  ")
    (line,) = pillion("calls", "--json", *config).stdout.splitlines()
    facts = json.loads(line)
    assert facts.pop("age_seconds") < facts.pop("remaining_seconds") <= 60
    assert facts.pop("instance").startswith("ins_")
    assert facts == {
        "execution_id": execution,
        "tool_call_id": "of-the-model",
        "tool": "echo",
        "state": "running",
        "worker": "main",
        "reports": 1,
    }

    unknown = pillion("cancel", "exe_of_nobody", *config)
    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert unknown.stderr.startswith("No such call is running; ")
    cancelled = pillion("cancel", execution, "--address", sidecar_process.callers_at)
    assert (cancelled.returncode, cancelled.stdout, cancelled.stderr) == (0, "", "It was asked to stop.\n")
    assert (await worker.cancelled(run)) is not None
    await worker.fail(run, FailureKind.FAILURE_KIND_CANCELLED)
    assert (await caller.outcome(call)).failure.kind == FailureKind.FAILURE_KIND_CANCELLED

    missing = pillion("wait-ready", "other", "--timeout", "0.3", environment={"PILLION_ADDRESS": caller_of(config)})
    assert (missing.returncode, missing.stderr) == (1, "Not ready within 0.3 s; the sidecar's log says why.\n")

    last = await caller.start("echo")
    await worker.next_invoke()
    stopped = pillion("shutdown", "--grace", "0", *config)
    assert (stopped.returncode, stopped.stdout) == (0, "")
    assert stopped.stderr == "It stops; 1 calls are running.\n"
    assert (await caller.outcome(last)).failure.kind == FailureKind.FAILURE_KIND_CANCELLED
    assert await sidecar_process.ended() == 0


def caller_of(config: tuple[str, str]) -> str:
    """The address of the settings."""
    return next(line.split('"')[1] for line in Path(config[1]).read_text().splitlines() if line.startswith("callers"))


@pytest.mark.parametrize("command", [("calls",), ("cancel", "exe_of_nobody"), ("shutdown",)])
def test_no_sidecar_answers(tmp_path: Path, command: tuple[str, ...]) -> None:
    address = f"unix:{tmp_path}/callers.sock"
    done = pillion(*command, "--address", address)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (f"No sidecar answers at {address}; start one with `pillion serve`, or name its --address.\n")


def test_waiting_for_a_sidecar_that_does_not_come(tmp_path: Path) -> None:
    done = pillion("wait-ready", "--timeout", "0.5", "--address", f"unix:{tmp_path}/callers.sock")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "Not ready within 0.5 s; the sidecar's log says why.\n"


def test_settings_that_cannot_be_used_are_told_to_operators_too(tmp_path: Path) -> None:
    config = tmp_path / "pillion.toml"
    config.write_text(MISTAKEN)
    done = pillion("calls", "--config", str(config))
    assert (done.returncode, done.stdout) == (2, "")
    assert "listen.caller is not a setting; did you mean callers?\n" in done.stderr
    assert done.stderr.endswith("\nOr name the sidecar's --address.\n")


class Served:
    """A sidecar that was started by these arguments, in a directory of its own."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sidecar", *arguments],
            cwd=directory,
            env=os.environ | {"PYTHONPATH": str(ROOT), "HOME": str(directory), "XDG_STATE_HOME": ""},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ends(self, how: signal.Signals) -> tuple[int, str, str]:
        self.process.send_signal(how)
        said, told = self.process.communicate(timeout=SECONDS)
        return self.process.returncode, said, told


@pytest.fixture
def served() -> Iterator[list[Served]]:
    """Those that were started; none outlives the test."""
    started: list[Served] = []
    yield started
    for each in started:
        each.process.kill()
        each.process.communicate()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(
    ("arguments", "socket"),
    [
        (("serve",), ".local/state/pillion/callers.sock"),
        (("serve", "--state-dir", "kept"), "kept/callers.sock"),
        (("serve", "--callers", "unix:here.sock"), "here.sock"),
        (("--config", "pillion.toml"), ".local/state/pillion/callers.sock"),
    ],
)
def test_it_serves_until_it_is_told_to_stop(
    tmp_path: Path, served: list[Served], arguments: tuple[str, ...], socket: str, how: signal.Signals
) -> None:
    (tmp_path / "pillion.toml").write_text("")
    served.append(Served(tmp_path, *arguments))
    ready = pillion("wait-ready", "--timeout", "20", "--address", f"unix:{tmp_path / socket}")
    assert ready.returncode == 0, ready.stderr
    assert (tmp_path / socket).stat().st_mode & 0o777 == 0o600
    code, said, told = served[0].ends(how)
    assert (code, said) == (0, "")
    assert "stopping: 0 running calls" in told
    assert "Traceback" not in told


# --- terminals and pipes of every kind


@pytest.mark.parametrize("arguments", [("version",), ("--help",), ("check", "--help")])
def test_nobody_reads(arguments: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "sidecar", *arguments],
            cwd=ROOT,
            stdout=writing,
            stderr=subprocess.PIPE,
            timeout=SECONDS,
            check=False,
        )
    finally:
        os.close(writing)
    # The parser of arguments makes nothing of it where its help cannot be written at once.
    assert (done.returncode, done.stderr) in ([(141, b"")] if arguments == ("version",) else [(141, b""), (0, b"")])


def test_what_it_would_write_to_is_closed(config: Path) -> None:
    command = f'"$0" -m sidecar check --config "{config}" >&- 2>&-'
    done = subprocess.run(["sh", "-c", command, sys.executable], cwd=ROOT, timeout=SECONDS, check=False)
    assert done.returncode == 0


def test_a_terminal_of_ascii(tmp_path: Path) -> None:
    place = tmp_path / "Straße"
    place.mkdir()
    config = place / "pillion.toml"
    config.write_text("state_dir = 'Zustände'\n", "utf-8")
    good = pillion("check", "--config", str(config), environment=ASCII)
    assert (good.returncode, good.stderr) == (0, "")
    assert good.stdout.isascii()
    assert "pillion.toml: good; 0 workers, callers at unix:" in good.stdout
    config.write_text("größe = 1\n", "utf-8")
    bad = pillion("check", "--config", str(config), environment=ASCII)
    assert bad.returncode == 2
    assert bad.stderr.isascii()
    assert "Traceback" not in bad.stderr
    assert pillion("--help", environment=ASCII).returncode == 0
