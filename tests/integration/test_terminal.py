"""`pillion call` and the others on terminals of every kind, and with readers that leave."""

import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.calling import Program
from tests.support.documents import ROOT
from tests.support.terminal import CTRL_C, SECONDS, OnTerminal, frames, screen

Start = Callable[..., OnTerminal]
LONG = "a step that takes more words than there is room for in a window of this size, wherever it is opened"


@pytest.fixture
def start(program: Program) -> Iterator[Start]:
    """Starts a command of the program on a terminal; ends those that still run when the test ends."""
    started: list[OnTerminal] = []

    def on_terminal(
        command: str, *arguments: str, columns: int = 80, piped: bool = False, **variables: str
    ) -> OnTerminal:
        whole = (sys.executable, "-m", "sidecar", command, "--config", str(program.config), *arguments)
        started.append(OnTerminal(*whole, columns=columns, piped=piped, environment=variables))
        return started[-1]

    yield on_terminal
    for each in started:
        each.close()


# --- what a tool asks the person


def answer_of(terminal: OnTerminal) -> dict[str, object]:
    code, output = terminal.finish()
    assert code == 0, terminal.text
    answer: dict[str, object] = json.loads(output)
    return answer


def test_a_person_is_asked_field_by_field(start: Start) -> None:
    terminal = start("call", "ask", piped=True)
    terminal.shows("Your name (string): ")
    terminal.press("Ana Ü\n".encode())
    terminal.shows("age (integer, else 7): ")
    terminal.press(b"x\n")
    terminal.shows("age is integer by the tool's schema, and 'x' is not that as JSON.")
    terminal.press(b"\n")
    terminal.shows("colour (red | blue, may be left empty): ")
    terminal.press(b"green\n")
    terminal.shows("colour is one of red, blue.")
    terminal.press(b"\n")
    terminal.shows("sure (y/n): ")
    terminal.press(b"y\n")
    assert answer_of(terminal) == {"action": "accept", "content": {"name": "Ana Ü", "age": 7, "sure": True}}
    # The line of progress gave way to the question.
    assert screen(terminal.text)[0] == "The tool asks: Who are you?"


@pytest.mark.parametrize(("keys", "action"), [(b"\n", "decline"), (b"\x04", "cancel")], ids=["empty line", "Ctrl-D"])
def test_a_person_may_decline_or_dismiss(start: Start, keys: bytes, action: str) -> None:
    terminal = start("call", "ask", piped=True)
    terminal.shows("Your name (string): ")
    terminal.press(keys)
    assert answer_of(terminal) == {"action": action, "content": None}


@pytest.mark.parametrize(("keys", "action"), [(b"maybe\ny\n", "accept"), (b"n\n", "decline"), (b"\n", "decline")])
def test_a_question_without_fields_is_a_yes_or_no(start: Start, keys: bytes, action: str) -> None:
    terminal = start("call", "ask", "--arg", "fields=false", piped=True)
    terminal.shows("Accept? [y/N] ")
    terminal.press(keys)
    assert answer_of(terminal)["action"] == action
    assert (b"maybe" in keys) == ("Say y for yes, or n for no." in terminal.text)


def test_a_call_that_asks_is_cancelled_as_any_other(start: Start) -> None:
    terminal = start("call", "ask")
    terminal.shows("Your name (string): ")
    terminal.press(CTRL_C)
    code, _ = terminal.finish()
    assert code == 130
    assert "CANCELLED" in terminal.text


def test_a_question_does_not_steer_the_terminal(start: Start) -> None:
    terminal = start("call", "ask", "--arg", "message=\x1b[31mred", piped=True)
    terminal.shows("The tool asks: \\x1b[31mred")
    terminal.press(b"\x04")
    assert answer_of(terminal)["action"] == "cancel"


def test_without_a_terminal_all_is_declined(program: Program) -> None:
    code, output, told = program.run("call", "ask", given="yes\n")
    assert (code, json.loads(output)) == (0, {"action": "decline", "content": None})
    assert "asks" not in told


# --- the progress of a call


@pytest.mark.parametrize(
    ("columns", "bar", "words"),
    [(40, "[###########--]  90% ", "a step that take"), (100, "[##################--]  90% ", LONG[:69])],
)
@pytest.mark.parametrize("piped", [False, True])
def test_a_bar_fits_the_window(start: Start, columns: int, bar: str, words: str, piped: bool) -> None:
    terminal = start("call", "count", "--arg", "to=10", "--arg", f"says={LONG}", columns=columns, piped=piped)
    code, output = terminal.finish()
    assert code == 0
    bars = [frame for frame in frames(terminal.text) if frame.startswith("[")]
    assert len(bars) == 10
    assert bars[-2] == bar + words
    assert all(len(each) == columns - 3 for each in bars)
    # What is left is the result alone, wherever it goes.
    result = output if piped else terminal.text.rpartition("\x1b[2K")[2]
    assert json.loads(result) == {"counted": 10, "label": ""}
    assert screen(terminal.text)[-1] == ""
    assert not any(line.startswith("[") for line in screen(terminal.text))


def test_wide_characters_fit_the_window(start: Start) -> None:
    terminal = start("call", "count", "--arg", "to=1", "--arg", f"says={'数' * 100}", columns=40)
    assert terminal.finish()[0] == 0
    (bar,) = (frame for frame in frames(terminal.text) if frame.startswith("["))
    assert len(bar) + bar.count("数") in (36, 37)


def test_a_tool_cannot_steer_the_terminal(start: Start) -> None:
    steering = "\x1b]0;title\x07\x1b[31mred\x9b2J"
    terminal = start("call", "count", "--json", json.dumps({"to": 1, "says": steering}))
    assert terminal.finish()[0] == 0
    assert "\\x1b]0;title\\x07\\x1b[31mred\\x9b2J" in terminal.text
    assert "\x1b]0" not in terminal.text
    assert "\x1b[31m" not in terminal.text


@pytest.mark.parametrize("variables", [{"TERM": "dumb"}, {"TERM": ""}])
def test_a_terminal_that_cannot_redraw_gets_lines(start: Start, variables: dict[str, str]) -> None:
    terminal = start("call", "count", "--arg", "to=2", **variables)
    assert terminal.finish()[0] == 0
    assert "\x1b" not in terminal.text
    assert terminal.text.splitlines()[:2] == ["counted 1 …", "counted 2 …"]


@pytest.mark.parametrize(
    "variables", [{"LC_ALL": "C"}, {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"}, {"NO_COLOR": "1"}]
)
def test_a_bar_needs_no_colours_and_no_locale(start: Start, variables: dict[str, str]) -> None:
    terminal = start("call", "count", "--arg", "to=2", "--arg", "label=grün", **variables)
    assert terminal.finish()[0] == 0
    assert "[####################] 100% counted 2 " in terminal.text
    assert all(part.startswith("[2K") for part in terminal.text.split("\x1b")[1:])
    if "PYTHONIOENCODING" in variables:
        assert terminal.text.isascii()


def test_quiet_is_quiet(start: Start) -> None:
    terminal = start("call", "count", "--arg", "to=2", "--quiet")
    assert terminal.finish()[0] == 0
    assert terminal.text.splitlines() == ['{"counted":2,"label":""}']


# --- Ctrl-C


def test_ctrl_c_cancels_the_call_and_says_so(start: Start, program: Program) -> None:
    terminal = start("call", "count", "--arg", "to=-1")
    terminal.shows("counting")
    terminal.press(CTRL_C)
    assert terminal.finish()[0] == 130
    assert screen(terminal.text) == [
        "Cancelling; Ctrl-C again leaves.",
        "CANCELLED: The caller cancelled the call.",
        "",
    ]
    assert program.run("calls") == (0, "", "No calls are running.\n")


def test_ctrl_c_twice_leaves_at_once(start: Start) -> None:
    terminal = start("call", "count", "--json", '{"to": -1, "deaf": true}')
    terminal.shows("counting")
    terminal.press(CTRL_C)
    terminal.shows("Ctrl-C again leaves.")
    begun = time.monotonic()
    terminal.press(CTRL_C)
    assert terminal.finish()[0] == 130
    # The tool would have gone on for as long as a cancelled one may.
    assert time.monotonic() - begun < 1
    assert screen(terminal.text) == ["Cancelling; Ctrl-C again leaves.", "^C", ""]


def test_a_person_is_asked_for_the_ticket(start: Start, program: Program) -> None:
    ticket = json.loads(program.run("call", "confirm", "--arg", "what=go")[1])["ticket"]
    terminal = start("resume", "--answer", "true", piped=True)
    terminal.shows("Ticket:")
    terminal.press(ticket.encode() + b"\n")
    assert answer_of(terminal)["sure"] is True
    line = program.run("call", "count", "--arg", "to=1", "--detach")[1]
    terminal = start("follow", piped=True)
    terminal.shows("Ticket:")
    terminal.press(line.encode())
    assert answer_of(terminal)["counted"] == 1


def test_ctrl_c_ends_a_wait(start: Start) -> None:
    with tempfile.TemporaryDirectory(prefix="pt-") as directory, socket.socket(socket.AF_UNIX) as mute:
        mute.bind(f"{directory}/mute.sock")
        mute.listen()
        mute.settimeout(SECONDS)
        terminal = start("wait-ready", "--address", f"unix:{directory}/mute.sock")
        mute.accept()[0].close()
        terminal.press(CTRL_C)
        assert terminal.finish()[0] == 130
    assert terminal.text.strip() == "^C"


def test_ctrl_c_stops_a_sidecar(start: Start, tmp_path: Path) -> None:
    terminal = start("serve", "--state-dir", str(tmp_path / "state"))
    terminal.shows("callers at")
    terminal.press(CTRL_C)
    assert terminal.finish()[0] == 0
    assert "stopping: 0 running calls" in terminal.text
    assert "Traceback" not in terminal.text


# --- colours of the log


@pytest.mark.parametrize(("variables", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_the_log_has_colours_where_they_are_wanted(
    start: Start, variables: dict[str, str], coloured: bool, tmp_path: Path
) -> None:
    config = tmp_path / "pillion.toml"
    config.write_text("state_dir = 'state'\n[[worker]]\nname = 'brief'\ncommand = ['false']\n")
    terminal = start("serve", "--config", str(config), **variables)
    terminal.shows("worker brief (1): exited with status 1")
    terminal.press(CTRL_C)
    assert terminal.finish()[0] == 0
    assert ("\x1b[33mwarning" in terminal.text) is coloured
    assert ("\x1b" in terminal.text) is coloured


# --- readers that leave


@pytest.mark.parametrize(
    "arguments", [("call", "count", "--arg", "to=3"), ("tools",), ("tools", "--json"), ("tools", "count")]
)
def test_a_reader_that_leaves_is_no_error(program: Program, arguments: tuple[str, ...]) -> None:
    command = " ".join(f"'{each}'" for each in (*arguments, "--config", str(program.config)))
    script = f'"$0" -m sidecar {command} 2>&3 | head -c 0; echo "${{PIPESTATUS[0]}}"'
    done = subprocess.run(
        ["bash", "-c", f"exec 3>&2; {script}", sys.executable],
        cwd=ROOT,
        env=program.environment,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.stdout.strip() in ("141", "0")  # 0 where all of it was written before the reader left
    assert "Traceback" not in done.stderr
    assert "Broken" not in done.stderr


def test_nobody_reads_the_progress(program: Program) -> None:
    with program.open("call", "--config", str(program.config), "count", "--arg", "to=3") as process:
        assert process.stderr is not None
        process.stderr.close()
        output, _ = process.communicate(timeout=30)
    assert "Traceback" not in output
    assert process.returncode in (0, 141)
