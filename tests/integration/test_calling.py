"""`pillion call` and `pillion tools`, against a sidecar that `pillion serve` started with a worker of the SDK."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind
from tests.support.calling import Program

FIRST_FAILURE = 10


def test_a_result_goes_to_stdout_and_progress_to_stderr(program: Program) -> None:
    code, output, errors = program.run("call", "count", "--arg", "to=2", "--arg", "label=7")
    assert code == 0
    assert json.loads(output) == {"counted": 2, "label": "7"}
    assert errors == "counted 1 …\ncounted 2 …\n"


def test_arguments_may_come_as_json_from_stdin(program: Program) -> None:
    code, output, errors = program.run("call", "count", "--json", "-", "--quiet", given='{"to": 1}')
    assert (code, json.loads(output), errors) == (0, {"counted": 1, "label": ""}, "")


def test_an_argument_of_the_wrong_type_is_refused_before_it_is_sent(program: Program) -> None:
    code, output, errors = program.run("call", "count", "--arg", "to=many")
    assert (code, output) == (2, "")
    assert errors == "to is integer by the tool's schema, and 'many' is not that as JSON.\n"


@pytest.mark.parametrize(
    ("arguments", "kind", "says"),
    [
        (("count", "--json", '{"to": 0, "fail": true}'), FailureKind.FAILURE_KIND_TOOL_FAILED, "asked to fail"),
        (("nothing",), FailureKind.FAILURE_KIND_UNKNOWN_TOOL, "no tool of this name"),
        (("count", "--json", '{"to": "x"}'), FailureKind.FAILURE_KIND_INVALID_ARGUMENTS, "/to"),
        (("count", "--arg", "to=-1", "--timeout", "0.3"), FailureKind.FAILURE_KIND_TIMEOUT, "time is up"),
    ],
)
def test_a_failure_has_an_exit_code_and_a_sentence(
    program: Program, arguments: tuple[str, ...], kind: int, says: str
) -> None:
    code, output, errors = program.run("call", *arguments)
    assert (code, output) == (FIRST_FAILURE + kind, "")
    assert says in errors


@pytest.mark.parametrize("arguments", [("--json", '{"to":"\udcff"}'), ("--arg", "label=\udcff"), ("--run", "\udcff")])
def test_an_argument_that_is_not_utf_8_is_refused_in_a_sentence(program: Program, arguments: tuple[str, ...]) -> None:
    code, output, errors = program.run("call", "count", *arguments)
    assert (code, output) == (2, "")
    assert errors == "An argument is not UTF-8, as every text of Pillion is; write it in UTF-8.\n"


def shell(program: Program, redirected: str) -> "subprocess.CompletedProcess[str]":
    """A call with its output elsewhere."""
    command = f'"$0" -m sidecar call count --arg to=1 --config "$1" {redirected}'
    return subprocess.run(
        ["sh", "-c", command, sys.executable, str(program.config)],
        env=program.environment,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_a_result_that_cannot_be_written_is_told(program: Program) -> None:
    done = shell(program, ">/dev/full")
    assert done.returncode == 74
    assert done.stderr == "counted 1 …\nThe result cannot be written: No space left on device.\n"


@pytest.mark.parametrize("lost", ["2>&-", "2>/dev/full"])
def test_progress_that_nobody_can_be_shown_harms_no_call(program: Program, lost: str) -> None:
    done = shell(program, lost)
    assert (json.loads(done.stdout), done.returncode) == ({"counted": 1, "label": ""}, 0)


def test_ctrl_c_cancels_the_call(program: Program) -> None:
    with program.open("call", "--config", str(program.config), "count", "--arg", "to=-1") as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "counting\n"
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=30)
    assert (process.returncode, output) == (130, "")
    assert "CANCELLED" in errors


def test_an_ascii_terminal_gets_ascii(program: Program) -> None:
    code, _, errors = program.run("call", "count", "--arg", "to=1", LC_ALL="C", PYTHONIOENCODING="ascii")
    assert (code, errors) == (0, "counted 1 ...\n")


def test_tools_are_listed_and_shown(program: Program) -> None:
    code, output, _ = program.run("tools")
    assert code == 0
    assert ["count", "read"] in [line.split()[:2] for line in output.splitlines()]
    code, output, _ = program.run("tools", "count")
    assert json.loads(output)["input_schema"]["properties"]["to"]["type"] == "integer"
    code, _, errors = program.run("tools", "none")
    assert (code, errors) == (1, "There is no tool none; there are ask, confirm, copy, count.\n")


def test_calls_are_watched_as_they_go_on(program: Program) -> None:
    with program.open("calls", "--config", str(program.config), "--watch", "--json", "--tool", "count") as watching:
        assert watching.stdout is not None
        program.run("call", "ask")
        assert program.run("call", "count", "--arg", "to=2", "--arg", "says=at")[0] == 0
        seen = [json.loads(watching.stdout.readline()) for _ in range(4)]
        assert program.run("call", "count", "--arg", "to=0", "--arg", "fail=true")[0] != 0
        seen += [json.loads(watching.stdout.readline()) for _ in range(2)]
        watching.send_signal(signal.SIGINT)
        watching.communicate(timeout=20)
    assert [event["event"] for event in seen] == ["started", "progress", "progress", "ended", "started", "ended"]
    assert [event.get("line") for event in seen[1:3]] == ["at 1 …", "at 2 …"]
    assert {event["tool"] for event in seen} == {"count"}
    assert [event["state"] for event in seen[2:4]] == ["running", "ended"]
    assert seen[-1]["failure"] == "TOOL_FAILED"
    assert watching.returncode == 130


def test_who_watches_learns_that_a_call_pauses(program: Program) -> None:
    with program.open("calls", "--config", str(program.config), "--watch", "--tool", "confirm") as watching:
        assert watching.stdout is not None
        assert watching.stderr is not None
        assert watching.stderr.readline() == "Watching; Ctrl-C leaves.\n"
        assert program.run("call", "confirm", "--arg", "what=this")[0] == 3
        seen = [watching.stdout.readline().split() for _ in range(2)]
        watching.send_signal(signal.SIGINT)
        watching.communicate(timeout=20)
    assert [words[1] for words in seen] == ["started", "ended"]
    assert seen[1][4:6] == ["paused", "after"]


def test_a_file_goes_in_as_an_artifact_and_what_comes_back_is_saved(program: Program, tmp_path: Path) -> None:
    source, kept = tmp_path / "data.csv", tmp_path / "kept" / "here"
    source.write_bytes(b"a,b\n" * 100_000)
    call = ("copy", "--artifact", f"data=@{source}", "--save", str(kept))
    code, output, errors = program.run("call", *call)
    assert code == 0
    given, made = json.loads(output)
    assert given != made
    assert errors == f"{kept / 'copy.csv'}: text/csv, 390.6 KiB\n"
    assert [path.name for path in kept.iterdir()] == ["copy.csv"]
    assert (kept / "copy.csv").read_bytes() == source.read_bytes()
    code, _, errors = program.run("call", *call, "--arg", "label=../../.x/é", "--session", "s")
    assert (code, errors) == (0, f"{kept / '_.._.x_é'}: text/csv, 390.6 KiB\n")
    code, _, errors = program.run("call", *call)
    assert errors == f"{kept / 'copy 2.csv'}: text/csv, 390.6 KiB\n", "nothing that is there is replaced"


def test_a_large_result_is_saved_or_it_is_told_where_it_is(program: Program, tmp_path: Path) -> None:
    source = tmp_path / "data.csv"
    source.write_bytes(b"a,b\n")
    call = ("copy", "--artifact", f"data=@{source}", "--arg", "times=50")
    code, output, errors = program.run("call", *call, "--save", str(tmp_path))
    assert (code, output, errors) == (0, "", f"{tmp_path / 'copy result.json'}: application/json, 2.8 KiB\n")
    assert len(json.loads((tmp_path / "copy result.json").read_bytes())) == 100
    code, output, errors = program.run("call", *call)
    assert (code, output) == (0, "")
    hint = re.fullmatch(r"The result is an artifact of 2\.8 KiB; .* `pillion (artifacts get .*)`\.\n", errors)
    assert hint is not None, errors
    artifacts, get, *rest = hint[1].split()
    with program.open(artifacts, get, "--config", str(program.config), *rest) as process:
        assert len(json.loads(process.communicate(timeout=30)[0])) == 100


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--artifact", "data"), "'data' names no file; write --artifact NAME=@FILE."),
        (("--artifact", "data=x"), "'data=x' names no file; write --artifact NAME=@FILE."),
        (("--artifact", "data=@/nowhere/x"), "/nowhere/x cannot be read: No such file or directory."),
        (("--artifact", "label=@/dev/null"), "copy wants no artifact label; it wants data."),
        (("--artifact", "data=@x", "--json", "{}"), "Give --json alone, or --arg and --artifact."),
    ],
)
def test_a_file_that_cannot_be_sent_is_refused(program: Program, arguments: tuple[str, ...], says: str) -> None:
    assert program.run("call", "copy", *arguments) == (2, "", says + "\n")


def test_a_call_that_pauses_tells_the_ask_and_writes_its_ticket(program: Program) -> None:
    code, output, errors = program.run("call", "confirm", "--arg", "what=go", "--principal", "ann")
    assert code == 3
    assert errors.splitlines()[0] == "The tool waits for an answer (confirm): Really go?"
    told = json.loads(output)
    assert {**told, "ticket": None} == {
        "kind": "confirm",
        "message": "Really go?",
        "schema": {"type": "boolean"},
        "ticket": None,
    }
    assert told["ticket"] not in errors

    foreign = program.run("resume", "--answer", "true", given=output)
    assert foreign[0] == FIRST_FAILURE + FailureKind.FAILURE_KIND_TICKET_INVALID
    code, output, errors = program.run("resume", "--answer", "true", "--principal", "ann", given=output)
    assert (code, json.loads(output)) == (0, {"sure": True, "state": {"seen": "go"}})
    assert errors == "going on\n"
    code, output, errors = program.run("resume", told["ticket"], "--principal", "ann")
    assert (code, output) == (foreign[0], "")
    assert errors == foreign[2]


@pytest.mark.parametrize("given", ["", "{", "{}", '{"ticket": 1}', '{"ticket":' + "[" * 100_000])
def test_a_resume_without_a_ticket_is_refused(program: Program, given: str) -> None:
    code, output, errors = program.run("resume", given=given)
    assert (code, output) == (2, "")
    assert errors.startswith("There is no ticket")


def test_an_answer_that_is_not_json_is_refused_and_the_ticket_stays(program: Program) -> None:
    ticket = json.loads(program.run("call", "confirm", "--arg", "what=go")[1])["ticket"]
    code, output, _ = program.run("resume", "--answer", "yes", given=ticket)
    assert (code, output) == (FIRST_FAILURE + FailureKind.FAILURE_KIND_INVALID_ARGUMENTS, "")
    assert program.run("resume", "--answer", '"yes"', "--quiet", given=ticket)[0] == 0
