"""The encrypted file: what it refuses, and that it is never half of anything."""

import asyncio
import base64
import os
import stat
import threading
from pathlib import Path

import pytest

from sidecar.credentials.files import locked
from sidecar.credentials.logins import Login, LoginFiles, LoginKey
from sidecar.credentials.port import Mode, Need
from sidecar.credentials.sealed_file import Entry, SealedFile
from sidecar.credentials.sealing import Key, Sealer, SealRefused
from sidecar.credentials.secret import Secret
from tests.support.people import ALIKE, ANN, BOB

KEY = Key(Secret(b"k" * 32))
OTHER = Key(Secret(b"o" * 32))


def entry(value: str, service: str = "service") -> Entry:
    return Entry(service, None, "bearer", {"token": Secret(value.encode())})


def values(file: SealedFile) -> dict[str, str]:
    return {entry.service: entry.fields["token"].reveal().decode() for entry in file.entries()}


@pytest.fixture
def file(tmp_path: Path) -> SealedFile:
    return SealedFile(tmp_path / "sealed" / "credentials.sealed", KEY)


def test_it_is_private_and_shows_nothing(file: SealedFile) -> None:
    file.put(entry("canary-value", "canary-service"))
    content = file.path.read_bytes()
    assert b"canary" not in content
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.path.parent.stat().st_mode) == 0o700
    assert values(SealedFile(file.path, KEY)) == {"canary-service": "canary-value"}


def test_the_same_content_is_sealed_differently_each_time(file: SealedFile) -> None:
    seen = set()
    for _ in range(5):
        file.put(entry("value"))
        seen.add(file.path.read_bytes())
    assert len(seen) == 5


def test_an_entry_is_replaced_and_removed(file: SealedFile) -> None:
    assert file.entries() == ()
    assert not file.remove("service", None)
    file.put(entry("first"))
    file.put(entry("second"))
    file.put(entry("other", "other"))
    assert values(file) == {"service": "second", "other": "other"}
    assert file.remove("service", None)
    assert values(file) == {"other": "other"}


def test_each_owner_has_their_own(file: SealedFile) -> None:
    people = (ANN, BOB, *ALIKE)
    for person in people:
        file.put(Entry("service", person.scope.owner, "bearer", {"token": Secret(person.name.encode())}))
    found = {entry.owner: entry.fields["token"].reveal().decode() for entry in SealedFile(file.path, KEY).entries()}
    assert found == {person.scope.owner: person.name for person in people}


def test_another_key_is_said_to_be_one_and_changes_nothing(file: SealedFile) -> None:
    file.put(entry("value"))
    before = file.path.read_bytes()
    other = SealedFile(file.path, OTHER)
    for use in (other.entries, lambda: other.put(entry("other")), lambda: other.remove("service", None)):
        with pytest.raises(SealRefused, match="sealed with another key"):
            use()
    assert file.path.read_bytes() == before


def test_damage_is_said_to_be_damage_and_nothing_is_written_over_it(file: SealedFile) -> None:
    file.put(entry("value"))
    good = file.path.read_bytes()
    bad = [good[:length] for length in range(len(good))]
    bad += [good[:place] + bytes((good[place] ^ 1,)) + good[place + 1 :] for place in range(len(good))]
    for content in [*bad, good + b"x", b"not sealed", bytes(100)]:
        file.path.write_bytes(content)
        with pytest.raises(SealRefused) as refused:
            SealedFile(file.path, KEY).put(entry("other"))
        assert any(word in str(refused.value) for word in ("damaged", "another key", "newer Pillion"))
        assert file.path.read_bytes() == content


def test_a_newer_version_is_said_to_be_one(file: SealedFile) -> None:
    file.put(entry("value"))
    content = bytearray(file.path.read_bytes())
    content[8] += 1
    file.path.write_bytes(content)
    with pytest.raises(SealRefused, match="newer Pillion"):
        SealedFile(file.path, KEY).entries()


def test_one_purpose_does_not_open_what_another_sealed() -> None:
    sealed = Sealer(KEY, "one").seal(b"content")
    with pytest.raises(SealRefused, match="another key"):
        Sealer(KEY, "two").open(sealed, "It")


def test_many_writers_lose_nothing(file: SealedFile) -> None:
    def write(number: int) -> None:
        SealedFile(file.path, KEY).put(entry(f"value{number}", f"service{number}"))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert values(file) == {f"service{number}": f"value{number}" for number in range(16)}


def test_a_writer_waits_for_another_process(file: SealedFile) -> None:
    file.put(entry("first"))
    with locked(file.path.with_name(file.path.name + ".lock")):
        writer = threading.Thread(target=file.put, args=(entry("second"),))
        writer.start()
        writer.join(0.05)
        assert values(SealedFile(file.path, KEY)) == {"service": "first"}
    writer.join()
    assert values(file) == {"service": "second"}


def test_what_a_crash_left_half_written_is_no_obstacle(file: SealedFile) -> None:
    file.put(entry("first"))
    (file.path.parent / f".{file.path.name}.new").write_bytes(b"half")
    assert values(SealedFile(file.path, KEY)) == {"service": "first"}
    file.put(entry("second"))
    assert values(file) == {"service": "second"}
    assert not list(file.path.parent.glob(".*"))


def test_a_link_where_the_new_file_is_written_is_not_followed(file: SealedFile, tmp_path: Path) -> None:
    file.put(entry("first"))
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (file.path.parent / f".{file.path.name}.new").symlink_to(victim)
    file.put(entry("second"))
    assert victim.read_text() == "mine"
    assert values(file) == {"service": "second"}


async def test_readers_see_whole_states_only(file: SealedFile) -> None:
    await asyncio.to_thread(file.put, entry("0"))
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            file.put(entry(str(number)))

    def read() -> list[int]:
        reader = SealedFile(file.path, KEY)
        return [int(values(reader)["service"]) for _ in range(200)]

    writing = asyncio.create_task(asyncio.to_thread(write))
    try:
        seen = await asyncio.to_thread(read)
    finally:
        stop.set()
        await writing
    assert seen == sorted(seen)


# --- keys


@pytest.mark.parametrize(
    "text",
    [
        base64.b64encode(b"\xfb" * 32).decode(),
        base64.b64encode(b"\xfb" * 32).decode().rstrip("=") + "\n",
        base64.urlsafe_b64encode(b"\xfb" * 32).decode(),
        "  " + (b"\xfb" * 32).hex() + "\r\n",
        (b"\xfb" * 32).hex().upper(),
    ],
)
def test_a_key_is_read_as_people_write_it(tmp_path: Path, text: str) -> None:
    path = tmp_path / "key"
    path.write_text(text)
    sealed = Sealer(Key(Secret(b"\xfb" * 32)), "test").seal(b"content")
    assert Sealer(Key.in_file(path), "test").open(sealed, "It") == b"content"


@pytest.mark.parametrize("content", [b"", b"canary", b"canary" * 20, b"\xff\xfe", base64.b64encode(b"k" * 31)])
def test_what_is_no_key_is_refused_without_showing_it(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    with pytest.raises(SealRefused, match="holds no key of 32 bytes") as refused:
        Key.in_file(path)
    assert "canary" not in str(refused.value)
    with pytest.raises(SealRefused, match="cannot be read"):
        Key.in_file(tmp_path / "none")


# --- logins, which are files of the same kind


def test_a_login_put_in_the_place_of_another_is_refused(tmp_path: Path) -> None:
    store = LoginFiles(tmp_path, KEY)
    need = Need("service", ("a",), Mode.USER)
    for person in (ANN, BOB):
        store.put(Login(LoginKey(person.scope.owner, need), Secret(person.name), None, None))
    first, second = sorted(tmp_path.glob("*.login"))
    os.replace(first, second)  # noqa: PTH105  # what an attacker would do
    keys = {store._path(LoginKey(person.scope.owner, need)): person for person in (ANN, BOB)}
    assert store.load(LoginKey(keys[first].scope.owner, need)) is None
    with pytest.raises(SealRefused, match="damaged"):
        store.load(LoginKey(keys[second].scope.owner, need))


def test_no_two_keys_of_logins_are_one(tmp_path: Path) -> None:
    store = LoginFiles(tmp_path, KEY)
    needs = [Need("a", (), Mode.USER), Need("a", ("b",), Mode.USER), Need("a", ("b", "c"), Mode.USER)]
    needs += [Need("a", ("b c",), Mode.USER), Need("a", ("b,c",), Mode.USER), Need("a", (), Mode.MACHINE), Need("A")]
    keys = [LoginKey(person.scope.owner, need) for person in (ANN, BOB, *ALIKE) for need in needs]
    for number, key in enumerate(keys):
        store.put(Login(key, Secret(f"token{number}"), None, None))
    found = [store.load(key) for key in keys]
    assert [login.access_token.reveal() for login in found if login is not None] == [
        f"token{number}" for number in range(len(keys))
    ]
    assert len(store.all()) == len(keys)
    names = " ".join(path.name for path in tmp_path.iterdir())
    assert "ann" not in names
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in tmp_path.iterdir())


def test_only_the_current_state_of_a_login_is_changed(tmp_path: Path) -> None:
    store = LoginFiles(tmp_path, KEY)
    key = LoginKey(ANN.scope.owner, Need("service", (), Mode.USER))
    first = store.put(Login(key, Secret("first"), None, None))
    second = store.change(first, Login(key, Secret("second"), None, None))
    assert second is not None
    assert store.change(first, Login(key, Secret("third"), None, None)) is None
    assert not store.remove(first)
    assert store.remove(second)
    assert store.load(key) is None
    assert not store.remove(second)
