"""`pillion artifacts`: files go in and come out as they were, in their scope alone."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.calling import Program

NOT_THERE = "There is no such artifact here; List names those that there are.\n"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """A program whose sidecar serves."""
    started = Program(tmp_path_factory.mktemp("artifacts"))
    with started.open("serve", "--config", str(started.config)) as sidecar:
        assert started.run("wait-ready")[0] == 0
        yield started
        sidecar.send_signal(signal.SIGTERM)
        sidecar.communicate(timeout=30)
        assert sidecar.returncode == 0


def artifacts(program: Program, action: str, *arguments: str, given: str = "") -> tuple[int, str, str]:
    """Runs one of the commands; answers its exit code, and what it wrote."""
    with program.open("artifacts", action, "--config", str(program.config), *arguments) as process:
        output, errors = process.communicate(given, timeout=30)
        return process.returncode, output, errors


def put(program: Program, *arguments: str, given: str = "") -> str:
    code, output, errors = artifacts(program, "put", *arguments, given=given)
    assert (code, errors) == (0, "")
    return output.strip()


@pytest.mark.parametrize("size", [0, 1, 256 * 1024, 3_000_001])
def test_a_file_comes_out_as_it_went_in(program: Program, tmp_path: Path, size: int) -> None:
    source, copy = tmp_path / "source.csv", tmp_path / "copy"
    source.write_bytes(bytes(number * 7 % 251 for number in range(size)))
    reference = put(program, str(source), "--session", f"s-{size}")
    assert artifacts(program, "get", reference, "--session", f"s-{size}", "--out", str(copy)) == (0, "", "")
    assert copy.read_bytes() == source.read_bytes()
    code, output, _ = artifacts(program, "list", "--session", f"s-{size}", "--json")
    assert code == 0
    facts = json.loads(output)
    assert (facts["reference"], facts["size"], facts["label"]) == (reference, size, "source.csv")
    assert (facts["kind"], facts["media_type"], facts["shape"]) == ("file", "text/csv", "bytes")


def test_what_is_given_on_standard_input_is_kept_too(program: Program) -> None:
    reference = put(program, "-", "--shape", "json", "--label", "note", "--session", "stdin", given='{"a": 1}')
    assert artifacts(program, "get", reference, "--session", "stdin") == (0, '{"a": 1}', "")
    code, _, errors = artifacts(program, "put", "-", "--shape", "json", "--session", "stdin", given='{"a": ')
    assert (code, errors.startswith("The payload is not JSON as it is taken here: ")) == (1, True)


def test_nothing_is_there_in_another_scope(program: Program, tmp_path: Path) -> None:
    reference = put(program, "-", "--session", "mine", given="x")
    for scope in ((), ("--session", "other"), ("--run", "mine"), ("--session", "mine", "--tenant", "t")):
        copy = tmp_path / "copy"
        assert artifacts(program, "get", reference, *scope, "--out", str(copy)) == (1, "", NOT_THERE)
        assert list(tmp_path.iterdir()) == []
        assert reference not in artifacts(program, "list", *scope)[1]
        assert artifacts(program, "remove", reference, *scope)[0] == 0
    assert artifacts(program, "get", reference, "--session", "mine") == (0, "x", "")


def test_what_is_removed_is_not_there_any_more(program: Program) -> None:
    references = [put(program, "-", "--session", "gone", given=text) for text in ("a", "b", "c")]
    listed = artifacts(program, "list", "--session", "gone")[1].splitlines()
    assert [line.split("  ")[0] for line in listed] == references[::-1]
    code, _, errors = artifacts(program, "remove", *references[:2], "--session", "gone")
    assert (code, errors) == (0, "They are not there any more.\n")
    assert artifacts(program, "get", references[0], "--session", "gone") == (1, "", NOT_THERE)
    assert artifacts(program, "get", references[2], "--session", "gone") == (0, "c", "")


def test_files_that_cannot_be_used_are_told(program: Program, tmp_path: Path) -> None:
    code, _, errors = artifacts(program, "put", str(tmp_path / "nothing"))
    assert (code, errors) == (2, f"{tmp_path}/nothing cannot be read: No such file or directory.\n")
    reference = put(program, "-", "--session", "files", given="x")
    there = tmp_path / "there"
    there.write_text("keep me")
    code, _, errors = artifacts(program, "get", reference, "--session", "files", "--out", str(there))
    assert (code, errors) == (2, f"{there} is there already; name another file, or remove it.\n")
    assert there.read_text() == "keep me"
    code, _, errors = artifacts(program, "get", reference, "--session", "files", "--out", str(tmp_path / "no" / "way"))
    assert (code, errors) == (2, f"{tmp_path}/no/way cannot be written: No such file or directory.\n")


def test_it_says_where_else_to_look(program: Program) -> None:
    code, output, errors = artifacts(program, "list", "--session", "empty")
    assert (code, output) == (0, "")
    assert errors == "There are no artifacts here; --session, --run and --conversation say where else to look.\n"


def test_nobody_at_the_address_is_told(tmp_path: Path) -> None:
    program = Program(tmp_path)
    with program.open("artifacts", "list", "--address", f"unix:{tmp_path}/none.sock") as process:
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert errors.startswith(f"No sidecar answers at unix:{tmp_path}/none.sock; start one with `pillion serve`")


def test_a_closed_pipe_ends_it(program: Program) -> None:
    reference = put(program, "-", "--session", "pipe", given="x" * 3_000_000)
    with program.open("artifacts", "get", "--config", str(program.config), reference, "--session", "pipe") as process:
        assert process.stdout is not None
        assert process.stdout.read(1) == "x"
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
        process.wait(timeout=30)
    assert process.returncode == 141
