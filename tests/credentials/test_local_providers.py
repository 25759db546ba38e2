"""Variables, mounted files, and the shapes of what they make."""

import shutil
from pathlib import Path

import pytest

from sidecar.credentials.environment import EnvironmentProvider
from sidecar.credentials.fields import Shape
from sidecar.credentials.mounted import MountedProvider, _content
from sidecar.credentials.port import Basic, Credential, CredentialRefused, Custom, Headers, Issued, Need, Request
from tests.support.people import ANN

ASKED = Request(ANN.scope, ANN.principal, Need("service"))


def facts(credential: Credential) -> dict[str, object]:
    """All that a credential says."""
    if isinstance(credential, Headers):
        return {name: secret.reveal() for name, secret in credential.headers.items()}
    if isinstance(credential, Custom):
        return {name: secret.reveal() for name, secret in credential.values.items()}
    if isinstance(credential, Basic):
        return {"username": credential.username, "password": credential.password.reveal()}
    (secret,) = credential.secrets()
    return {credential.kind: secret.reveal()}


async def issued(provider: EnvironmentProvider | MountedProvider) -> dict[str, object]:
    answer = await provider.issue(ASKED)
    assert isinstance(answer, Issued)
    assert answer.expires_at is None
    return facts(answer.credential)


async def test_variables_make_every_kind() -> None:
    environment = {"A": "one", "B": "two"}

    async def made(shape: Shape, variables: dict[str, str]) -> dict[str, object]:
        return await issued(EnvironmentProvider(shape, variables, environment))

    assert await made(Shape("s", "bearer"), {"token": "A"}) == {"bearer": "one"}
    assert await made(Shape("s", "api_key"), {"key": "A"}) == {"api_key": "one"}
    basic = {"username": "one", "password": "two"}
    assert await made(Shape("s", "basic"), {"username": "A", "password": "B"}) == basic
    assert await made(Shape("s", "basic", username="one"), {"password": "B"}) == basic
    assert await made(Shape("s", "headers"), {"x-a": "A"}) == {"x-a": "one"}
    assert await made(Shape("s", "custom"), {"a": "A"}) == {"a": b"one"}


async def test_a_variable_that_is_unset_or_empty_is_named() -> None:
    for environment in ({}, {"A": ""}):
        with pytest.raises(CredentialRefused, match="start the sidecar with A"):
            await EnvironmentProvider(Shape("s", "bearer"), {"token": "A"}, environment).issue(ASKED)


@pytest.mark.parametrize("value", [b"", b"a\nb", b"a\r\nx-evil: 1", b"a\x00", b"a\x7f", b"\xff"])
@pytest.mark.parametrize("kind", ["bearer", "api_key", "basic", "headers"])
def test_what_is_not_fit_for_a_header_is_refused_without_showing_it(kind: str, value: bytes) -> None:
    field = {"bearer": "token", "api_key": "key", "basic": "password", "headers": "x-a"}[kind]
    with pytest.raises(CredentialRefused, match=f"The {field} of the credential for s is empty, or has a line"):
        Shape("s", kind, username="me").credential({field: value})  # type: ignore[arg-type]  # one of them


@pytest.mark.parametrize("value", ["plain", "with space", "\u00e9\U0001f511", "tab\tin it", "a" * 10_000])
def test_what_is_fit_is_unchanged(value: str) -> None:
    assert facts(Shape("s", "bearer").credential({"token": value.encode()})) == {"bearer": value}


async def test_plain_files_are_read_without_the_end_of_their_line(tmp_path: Path) -> None:
    (tmp_path / "token").write_bytes(b"value\r\n")
    assert await issued(MountedProvider(Shape("s", "bearer"), tmp_path)) == {"bearer": "value"}
    (tmp_path / "other").write_bytes(b"second")
    assert await issued(MountedProvider(Shape("s", "bearer"), tmp_path, {"token": "other"})) == {"bearer": "second"}


async def test_every_visible_file_is_a_header_or_a_value(tmp_path: Path) -> None:
    (tmp_path / "x-a").write_text("one\n")
    (tmp_path / "x-b").write_text("two")
    (tmp_path / ".hidden").write_text("three")
    (tmp_path / "directory").mkdir()
    assert await issued(MountedProvider(Shape("s", "headers"), tmp_path)) == {"x-a": "one", "x-b": "two"}
    (tmp_path / "x-b").write_bytes(b"\x00\xff")
    assert await issued(MountedProvider(Shape("s", "custom"), tmp_path)) == {"x-a": b"one", "x-b": b"\x00\xff"}


async def test_a_file_that_is_too_large_or_none_is_refused(tmp_path: Path) -> None:
    provider = MountedProvider(Shape("s", "bearer"), tmp_path)
    with pytest.raises(CredentialRefused, match="is not in"):
        await provider.issue(ASKED)
    with (tmp_path / "token").open("wb") as file:
        file.truncate(2 * 1024 * 1024)
    with pytest.raises(CredentialRefused, match="too large"):
        await provider.issue(ASKED)
    (tmp_path / "token").unlink()
    (tmp_path / "token").mkdir()
    with pytest.raises(CredentialRefused, match="Is a directory"):
        await provider.issue(ASKED)


@pytest.mark.parametrize("is_kept", [True, False], ids=["the old version stays", "the old version goes"])
async def test_files_that_are_swapped_together_are_read_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_kept: bool
) -> None:
    def swap(number: int) -> None:
        version = tmp_path / f"..{number}"
        version.mkdir()
        for name in ("username", "password"):
            (version / name).write_text(str(number))
        link = tmp_path / "..new"
        link.symlink_to(version.name)
        link.replace(tmp_path / "..data")

    swap(0)
    for name in ("username", "password"):
        (tmp_path / name).symlink_to(f"..data/{name}")
    swapped: list[Path] = []

    def read_and_swap(path: Path) -> bytes:
        content = _content(path)
        if not swapped:
            swapped.append(path)
            swap(1)
            if not is_kept:
                shutil.rmtree(tmp_path / "..0")
        return content

    monkeypatch.setattr("sidecar.credentials.mounted._content", read_and_swap)
    provider = MountedProvider(Shape("s", "basic"), tmp_path)
    first = "0" if is_kept else "1"
    assert await issued(provider) == {"username": first, "password": first}
    assert swapped
    assert await issued(provider) == {"username": "1", "password": "1"}
