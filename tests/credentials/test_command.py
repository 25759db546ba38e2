"""`pillion credentials`, as a program: what it stores is issued, and what it is given is shown nowhere."""

import asyncio
import contextlib
import json
import os
import pty
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sidecar.config import read
from sidecar.credentials.facade import Credentials
from sidecar.credentials.making import Made, Maker
from sidecar.credentials.port import Basic, CredentialRefused, Headers, Issued, Mode, Need
from sidecar.scope import Owner, Principal, Scope, local_principal, scope_of
from tests.conformance.credentials.case import GRANT
from tests.support.programs import ROOT

SECRET = "canary-s3cret"
SETTINGS = """
state_dir = "state"
[credentials]
key_file = "key"
[[credential]]
service = "github"
provider = "encrypted_file"
[[credential]]
service = "jira"
provider = "encrypted_file"
"""
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "pillion.toml").write_text(SETTINGS)
    (tmp_path / "key").write_text("ab" * 32)
    return tmp_path


@pytest.fixture
def pillion(directory: Path) -> Run:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def run(*arguments: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
        command = (sys.executable, "-m", "sidecar", "credentials", *arguments)
        ended = subprocess.run(
            command,
            cwd=directory,
            env=environment,
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
        assert SECRET not in ended.stdout + ended.stderr
        assert "Traceback" not in ended.stderr
        return ended

    return run


async def issued(directory: Path, need: Need, scope: Scope | None = None) -> Issued:
    """What a sidecar with these settings issues."""

    def make() -> Made:
        settings = read(directory / "pillion.toml", {"HOME": "/home/someone"})
        return Maker(settings, settings.state_dir, {}).made()

    made = await asyncio.to_thread(make)
    door = Credentials(made.providers, resources=made.resources)
    caller = local_principal(os.getuid())
    answer = await door.resolve(scope or scope_of(caller, None, None, None, "exe"), caller, need, grant=GRANT)
    assert isinstance(answer, Issued)
    return answer


def values(answer: Issued) -> list[str | bytes]:
    return [secret.reveal() for secret in answer.credential.secrets()]


async def test_what_is_stored_is_issued(directory: Path, pillion: Run) -> None:
    ended = pillion("set", "github", stdin=SECRET + "\n")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == f"stored github, bearer, in {directory}/state/credentials.sealed\n"
    assert values(await issued(directory, Need("github"))) == [SECRET]


async def test_every_kind_is_stored(directory: Path, pillion: Run) -> None:
    assert pillion("set", "github", "--kind", "basic", "--username", "me", stdin=SECRET).returncode == 0
    answer = await issued(directory, Need("github"))
    assert isinstance(answer.credential, Basic)
    assert (answer.credential.username, values(answer)) == ("me", [SECRET])
    assert pillion("set", "github", "--kind", "headers", stdin=json.dumps({"x-a": SECRET})).returncode == 0
    answer = await issued(directory, Need("github"))
    assert isinstance(answer.credential, Headers)
    assert list(answer.credential.headers) == ["x-a"]
    assert pillion("set", "github", "--kind", "custom", stdin=json.dumps({"a": SECRET, "b": "é"})).returncode == 0
    assert values(await issued(directory, Need("github"))) == [SECRET.encode(), "é".encode()]
    assert pillion("set", "github", "--kind", "api_key", "--header", "x-k", stdin=SECRET).returncode == 0
    assert (await issued(directory, Need("github"))).credential.kind == "api_key"


async def test_a_subjects_own_is_issued_to_that_subject_alone(directory: Path, pillion: Run) -> None:
    user = Need("github", (), Mode.USER)
    ann, bob = Scope(Owner("acme", "named:ann"), "x"), Scope(Owner("acme", "named:bob"), "x")
    pillion("set", "github", "--tenant", "acme", "--principal", "ann", stdin=SECRET + "-ann")
    pillion("set", "github", "--tenant", "acme", "--principal", "bob", stdin=SECRET + "-bob")
    pillion("set", "github", "--mode", "user", stdin=SECRET + "-mine")
    assert values(await issued(directory, user, ann)) == [SECRET + "-ann"]
    assert values(await issued(directory, user, bob)) == [SECRET + "-bob"]
    assert values(await issued(directory, user)) == [SECRET + "-mine"]
    with pytest.raises(CredentialRefused):
        await issued(directory, Need("github"))
    assert pillion("remove", "github", "--tenant", "acme", "--principal", "ann").returncode == 0
    with pytest.raises(CredentialRefused):
        await issued(directory, user, ann)
    assert values(await issued(directory, user, bob)) == [SECRET + "-bob"]


def test_the_list_has_names_kinds_and_expiry(directory: Path, pillion: Run) -> None:
    assert pillion("list").stderr.startswith(f"Nothing is stored in {directory}/state; ")
    pillion("set", "jira", "--expires-in", "3600", stdin=SECRET)
    pillion("set", "github", "--tenant", "acme", "--principal", "ann", stdin=SECRET)
    rows = [json.loads(line) for line in pillion("list", "--json").stdout.splitlines()]
    assert [(row["service"], row["mode"], row["tenant"], row["principal"], row["kind"]) for row in rows] == [
        ("github", "user", "acme", "ann", "bearer"),
        ("jira", "machine", None, None, "bearer"),
    ]
    assert rows[0]["expires_at"] is None
    assert rows[1]["expires_at"].startswith(time.strftime("%Y-", time.gmtime(time.time() + 3600)))
    first, second = pillion("list").stdout.splitlines()
    assert first.split() == ["github", "acme/ann", "bearer", "expiry", "not", "known"]
    assert second.split()[:5] == ["jira", "the", "worker's", "own", "bearer"]


def test_what_is_not_there_is_not_removed(pillion: Run) -> None:
    pillion("set", "github", stdin=SECRET)
    ended = pillion("remove", "jira")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert pillion("remove", "github").stdout == "removed github\n"
    assert pillion("remove", "github").returncode == 1


def test_a_service_that_no_section_issues_is_stored_with_a_word(pillion: Run) -> None:
    ended = pillion("set", "other", stdin=SECRET)
    assert ended.returncode == 0
    assert 'add a [[credential]] with service = "other" and provider = "encrypted_file"' in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "stdin", "said"),
    [
        (("set", "github"), "", "is empty, or has a line break"),
        (("set", "github"), f"{SECRET}\n{SECRET}", "is empty, or has a line break"),
        (("set", "a b"), SECRET, "A service is named by"),
        (("set", "github", "--kind", "basic"), SECRET, "say which by --username"),
        (("set", "github", "--username", "me"), SECRET, "Only kind basic has a username"),
        (("set", "github", "--header", "x-a"), SECRET, "Only kind api_key has a header"),
        (("set", "github", "--kind", "headers"), SECRET, "as a JSON object of texts"),
        (("set", "github", "--kind", "headers"), '{"a b": "c"}', "a name that no header has"),
        (("set", "github", "--kind", "custom"), "{}", "is empty"),
        (("set", "github", "--kind", "custom"), '{"a": 1}', "as a JSON object of texts"),
        (("login", "github"), "", "is not authorised by people"),
        (("login", "nothing"), "", "is not authorised by people"),
        (("set", "github", "--config", "none.toml"), SECRET, "cannot be read"),
    ],
)
def test_what_cannot_be_done_is_said(
    pillion: Run, directory: Path, arguments: tuple[str, ...], stdin: str, said: str
) -> None:
    ended = pillion(*arguments, stdin=stdin)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert said in ended.stderr
    assert not (directory / "state" / "credentials.sealed").exists()


def test_a_wrong_key_is_said_before_the_secret_is_read(directory: Path, pillion: Run) -> None:
    pillion("set", "github", stdin=SECRET)
    before = (directory / "state" / "credentials.sealed").read_bytes()
    (directory / "key").write_text("cd" * 32)
    for arguments in (("set", "github"), ("list",), ("remove", "github")):
        ended = pillion(*arguments, stdin="other")
        assert ended.returncode == 2
        assert "was sealed with another key: name that one as the key of [credentials]." in ended.stderr
    assert (directory / "state" / "credentials.sealed").read_bytes() == before


def test_no_key_is_said(directory: Path, pillion: Run) -> None:
    (directory / "pillion.toml").write_text('state_dir = "state"\n')
    ended = pillion("set", "github", stdin=SECRET)
    assert ended.returncode == 2
    assert "name a key_file or a key_variable in [credentials]" in ended.stderr


def test_the_check_names_what_is_wrong_with_credentials_and_grants(directory: Path, pillion: Run) -> None:
    command = (sys.executable, "-m", "sidecar", "check")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def check() -> tuple[int, str]:
        ended = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
        return ended.returncode, ended.stderr

    (directory / "key").chmod(0o600)
    assert check() == (0, "")
    pillion("set", "github", stdin=SECRET)
    (directory / "key").write_text("cd" * 32)
    (directory / "token").write_text("token of a worker")
    with (directory / "pillion.toml").open("a") as file:
        file.write('[[worker]]\nname = "main"\ntoken_file = "token"\ncredentials = ["github", "other:user"]\n')
    code, said = check()
    assert code == 2
    assert "was sealed with another key" in said
    assert "Worker main is granted credentials for other, for which there is no [[credential]]" in said


def test_a_secret_is_no_argument(pillion: Run) -> None:
    ended = pillion("set", "github", "something", stdin="")
    assert ended.returncode == 2
    assert "unrecognized arguments" in ended.stderr


def test_on_a_terminal_the_secret_is_asked_for_and_not_echoed(directory: Path) -> None:
    # getpass talks to the terminal that controls the process: the first that it opens in a session of its own.
    program = (
        "import os, sys; os.open(os.ttyname(0), os.O_RDWR); from sidecar.cli import main; "
        "sys.exit(main(['credentials', 'set', 'github']))"
    )
    terminal, slave = pty.openpty()
    process = subprocess.Popen(
        (sys.executable, "-c", program),
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    )
    os.close(slave)
    shown = b""
    while b"Secret for github: " not in shown:
        shown += os.read(terminal, 1024)
    os.write(terminal, SECRET.encode() + b"\n")
    # The end of a terminal is an error to who reads it.
    with contextlib.suppress(OSError):
        while part := os.read(terminal, 1024):
            shown += part
    os.close(terminal)
    assert process.wait(30) == 0
    assert b"stored github" in shown
    assert SECRET.encode() not in shown


def test_the_principal_of_the_command_is_that_of_the_socket() -> None:
    assert local_principal(os.getuid()) == Principal(f"local:{os.getuid()}", authenticated=True)
