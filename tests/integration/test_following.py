"""`pillion call --detach` and `pillion follow`, against a sidecar that `pillion serve` started."""

import json
import signal

import pytest

from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind
from tests.support.calling import Program

FIRST_FAILURE = 10


def detached(program: Program, *arguments: str) -> str:
    """The line that tells of a call that was left running."""
    code, output, errors = program.run("call", *arguments, "--detach")
    assert (code, errors) == (0, "")
    told = json.loads(output)
    assert set(told) == {"ticket", "execution_id", "tool"}
    assert output.count("\n") == 1
    return output


def test_a_detached_call_is_followed_by_what_was_printed_of_it(program: Program) -> None:
    line = detached(program, "count", "--arg", "to=2", "--arg", "label=x")
    for _ in range(2):
        code, output, errors = program.run("follow", given=line)
        assert (code, json.loads(output)) == (0, {"counted": 2, "label": "x"})
        assert errors == "counted 1 …\ncounted 2 …\n"


def test_the_ticket_alone_will_do_and_progress_may_be_left_out(program: Program) -> None:
    ticket = json.loads(detached(program, "count", "--arg", "to=3"))["ticket"]
    assert program.run("follow", ticket, "--quiet")[::2] == (0, "")
    assert program.run("follow", "-", "--from-sequence", "4", given=ticket)[2] == "counted 3 …\n"
    assert program.run("follow", "--from-sequence", "4", given=ticket + "\nrc=0\n")[2] == "counted 3 …\n"


def test_it_exits_as_the_call_would(program: Program) -> None:
    line = detached(program, "count", "--json", '{"to": 0, "fail": true}')
    code, output, errors = program.run("follow", given=line)
    assert (code, output) == (FIRST_FAILURE + FailureKind.FAILURE_KIND_TOOL_FAILED, "")
    assert "asked to fail" in errors


def test_a_call_that_pauses_is_resumed_by_what_its_follower_was_told(program: Program) -> None:
    line = detached(program, "confirm", "--arg", "what=go")
    code, output, errors = program.run("follow", given=line)
    assert code == 3
    assert errors.splitlines()[0] == "The tool waits for an answer (confirm): Really go?"
    code, output, _ = program.run("resume", "--answer", "true", given=output)
    assert (code, json.loads(output)["sure"]) == (0, True)


def test_a_call_that_is_left_running_has_nothing_to_save(program: Program) -> None:
    code, output, errors = program.run("call", "count", "--arg", "to=1", "--detach", "--save", "there")
    assert (code, output) == (2, "")
    assert errors.startswith("--save needs the result")


@pytest.mark.parametrize("ticket", ["tic_none", '{"ticket": "tic_none"}'])
def test_a_ticket_that_is_none_is_refused(program: Program, ticket: str) -> None:
    code, output, errors = program.run("follow", ticket)
    assert (code, output) == (FIRST_FAILURE + FailureKind.FAILURE_KIND_TICKET_INVALID, "")
    assert "tic_none" not in errors


@pytest.mark.parametrize("given", ["", "{", "{}", '{"ticket": 7}', "tic_\N{WARNING SIGN}"])
def test_what_holds_no_ticket_is_told(program: Program, given: str) -> None:
    code, _, errors = program.run("follow", given=given)
    assert (code, errors) == (2, "Give the ticket, or the whole line that `pillion call --detach` printed.\n")


def test_a_call_that_is_refused_is_told_as_any_other(program: Program) -> None:
    code, output, errors = program.run("call", "nothing", "--detach")
    assert (code, output) == (FIRST_FAILURE + FailureKind.FAILURE_KIND_UNKNOWN_TOOL, "")
    assert "no tool of this name" in errors


def test_ctrl_c_leaves_the_call_running_and_cancel_stops_it(program: Program) -> None:
    line = detached(program, "count", "--arg", "to=-1")
    execution = json.loads(line)["execution_id"]
    with program.open("follow", "--config", str(program.config)) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(line)
        process.stdin.close()
        process.stdin = None
        assert process.stderr.readline() == "counting\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert f"The call goes on, and can be followed again; `pillion cancel {execution}` stops it." in errors
    assert program.run("cancel", execution)[0] == 0
    code, _, errors = program.run("follow", "--quiet", given=line)
    assert (code, errors) == (
        FIRST_FAILURE + FailureKind.FAILURE_KIND_CANCELLED,
        "CANCELLED: An operator cancelled the call.\n",
    )
