"""The programs and commands of the guides work as they are shown."""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.documents import ROOT, blocks
from tests.support.scripts import lay_out, run_script

WRITE, CALL = "docs/write-a-tool.md", "docs/call-a-tool.md"
PYTHONPATH = f"{ROOT}:{ROOT / 'clients' / 'python'}"
RESULT = [{"word": "to", "times": 2}, {"word": "be", "times": 2}]
WORKERS = ("words", "patient", "careful", "tables", "notes", "money")
TOOLS = "".join(f'[[worker]]\nname = "{name}"\ncommand = ["{sys.executable}", "{name}.py"]\n' for name in WORKERS)
TOOLS_OF_THE_GUIDES = [
    "add_note",
    "add_up",
    "common_words",
    "count_words",
    "rows_of",
    "shorten",
    "sort_rows",
    "transfer",
    "wait_for",
]
REPORTS_AND_RESULT = [
    *("counted a", "counted b", "counted a"),
    "[{'word': 'a', 'times': 2}, {'word': 'b', 'times': 1}]",
]
SAID = {
    "call.py": [
        str(TOOLS_OF_THE_GUIDES),
        str(RESULT),
    ],
    "watch.py": [*REPORTS_AND_RESULT, "CANCELLED", "CallTimedOut"],
    "many.py": ["500 [{'word': '7', 'times': 2}]"],
    "session.py": ["1", "2", "1 0 0", "1"],
    "answers.py": ["The text has 4 words. How many are to stay?", "one two three"],
    "paused.py": ["Transfer 5? {'type': 'boolean'}", "transferred 5 at 1.5"],
    "plain.py": ["55", *REPORTS_AND_RESULT],
    "files.py": [
        "words.csv text/csv 26",
        "['word,times', 'be,2', 'or,1', 'to,2'] True",
        "[{'word': 'be', 'times': '2'}, {'word': 'or', 'times': '1'}, {'word': 'to', 'times': '2'}]",
        "None",
    ],
    "keyed.py": ["waited", "waited"],
    "later.py": REPORTS_AND_RESULT,
}


def programs(document: str) -> dict[str, str]:
    """The programs of a guide, by the name that each begins with."""
    return {block.text.partition("\n")[0].removeprefix("# "): block.text for block in blocks(document, "python")}


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A directory like a clone, with the programs of the guides."""
    with tempfile.TemporaryDirectory(prefix="pg-") as directory:
        place = Path(directory)
        lay_out(place)
        for document in (WRITE, CALL):
            for name, text in programs(document).items():
                (place / name).write_text(text)
        yield place


@pytest.fixture(scope="module")
def address(place: Path) -> Iterator[str]:
    """A sidecar with the tools of the guides."""
    (place / "tools.toml").write_text(f'state_dir = "state"\n{TOOLS}')
    serve = [str(place / "deploy" / "pillion"), "serve", "--config", "tools.toml"]
    with subprocess.Popen(serve, cwd=place, stderr=subprocess.DEVNULL) as sidecar:
        try:
            address = f"unix:{place}/state/callers.sock"
            wait = [str(place / "deploy" / "pillion"), "wait-ready", "--address", address, *WORKERS]
            subprocess.run(wait, check=True)
            yield address
        finally:
            sidecar.terminate()


def run(place: Path, *command: str) -> "subprocess.CompletedProcess[str]":
    done = subprocess.run(
        [sys.executable, "-X", "dev", *command],
        cwd=place,
        env={"PYTHONPATH": PYTHONPATH},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    # That a step took long is said of the machine, not of the program.
    done.stderr = "".join(line for line in done.stderr.splitlines(True) if not line.startswith("Executing <"))
    return done


# --- write a tool


def test_a_supervised_worker_runs_with_the_settings_and_commands_that_are_shown(place: Path) -> None:
    settings, _ = blocks(WRITE, "toml")
    commands, _ = blocks(WRITE, "sh")
    (place / "pillion.toml").write_text(settings.text)
    done = run_script(commands.text, place)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == RESULT
    assert done.stdout.strip() in " ".join((ROOT / WRITE).read_text("utf-8").split())


def test_an_attached_worker_runs_with_the_settings_and_commands_that_are_shown(place: Path) -> None:
    _, settings = blocks(WRITE, "toml")
    _, commands = blocks(WRITE, "sh")
    (place / "pillion.toml").write_text(settings.text)
    token, *others, worker = commands.text.splitlines()
    script = [
        *(token, "deploy/pillion serve &", *others, f"{worker} &"),
        "deploy/pillion wait-ready words",
        "deploy/pillion call common_words --quiet --arg text='to be or not to be' --arg most=2",
        "deploy/pillion shutdown",
        "wait",
    ]
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    done = run_script("\n".join(script), place, {"PATH": path, "PYTHONPATH": PYTHONPATH})
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == RESULT


def test_the_tests_of_a_tool_pass(place: Path) -> None:
    done = run(place, "test_words.py")
    assert (done.returncode, done.stdout, done.stderr) == (0, "passed\n", "")


def test_a_tool_has_the_credential_that_it_needs(place: Path) -> None:
    (place / "issues.toml").write_text(
        f'state_dir = "issues"\n[[worker]]\nname = "issues"\ncommand = ["{sys.executable}", "issues.py"]\n'
        'credentials = ["tracker", "mail:user"]\n'
        '[[credential]]\nservice = "tracker"\nprovider = "environment"\nvariable = "TRACKER_TOKEN"\n'
    )
    script = [
        "deploy/pillion serve --config issues.toml &",
        "export PILLION_ADDRESS=unix:issues/callers.sock",
        "deploy/pillion wait-ready issues",
        "deploy/pillion call open_issues --quiet --arg project=pillion",
        "deploy/pillion call unread_mail --quiet || echo $?",
        "deploy/pillion shutdown",
        "wait",
    ]
    done = run_script("\n".join(script), place, {"TRACKER_TOKEN": "t"})
    assert done.stdout.splitlines() == ['"asked for pillion with authorization"', "16"], done.stderr


# --- call a tool


def test_every_program_is_known_here() -> None:
    assert programs(CALL).keys() == SAID.keys()


@pytest.mark.parametrize("program", SAID)
def test_a_caller_prints_what_it_should(place: Path, address: str, program: str) -> None:
    done = run(place, program, address)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == SAID[program]


def test_the_commands_of_a_shell(place: Path, address: str) -> None:
    (commands,) = blocks(CALL, "sh")
    script = f'pillion() {{ deploy/pillion "$@"; }}\n{commands.text}'
    done = run_script(script, place, {"PILLION_ADDRESS": address})
    assert done.returncode == 20, done.stderr
    listed = [line.split()[0] for line in done.stdout.splitlines()[: len(TOOLS_OF_THE_GUIDES)]]
    assert listed == TOOLS_OF_THE_GUIDES
    *_, called, piped, sorted_file, followed = done.stdout.splitlines()
    assert re.fullmatch(r'"art_[0-9A-Za-z]{22}"', sorted_file)
    assert "sorted/sorted.csv: text/csv, 24 bytes" in done.stderr
    assert (place / "sorted" / "sorted.csv").read_text().split() == ["word,times", "be,2", "to,2"]
    assert json.loads(called) == RESULT
    assert json.loads(piped) == json.loads(followed) == [{"word": "a", "times": 2}, {"word": "b", "times": 1}]
    assert done.stderr.splitlines()[-1].startswith("TIMEOUT: ")
