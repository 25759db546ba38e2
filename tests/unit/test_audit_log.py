"""The audit log: what is written is found again, and whatever is done to it since is named."""

import asyncio
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sidecar.audit.chain import START, Key, Link, append
from sidecar.audit.head import read_head, write_head
from sidecar.audit.log import AuditLog, AuditRefused, Places
from sidecar.audit.segments import segments_in
from sidecar.audit.verification import Verification, verify

KEY = Key(b"k" * 32)
OTHER_KEY = Key(b"o" * 32)
MIB = 1024 * 1024


def places_in(directory: Path) -> Places:
    return Places(directory / "audit", directory / "audit.head")


@contextmanager
def opened(places: Places, key: Key = KEY, *, segment_bytes: int = MIB, kept: int = 4) -> Iterator[AuditLog]:
    """A log that is written in the block."""
    log = AuditLog(places, key, segment_bytes=segment_bytes, segments_kept=kept)
    log.open()
    try:
        yield log
    finally:
        log.close()


def written(directory: Path, entries: int = 20) -> Places:
    """A log that was closed, with so many entries between `started` and `stopped`."""
    places = places_in(directory)
    with opened(places) as log:
        for number in range(entries):
            log.add("call", {"number": number})
            log.flush()
    return places


def lines_of(places: Places) -> list[bytes]:
    (segment,) = segments_in(places.directory)
    return segment.path.read_bytes().splitlines(keepends=True)


def rewrite(places: Places, lines: list[bytes]) -> None:
    (segment,) = segments_in(places.directory)
    segment.path.write_bytes(b"".join(lines))


def judged(places: Places, key: Key = KEY) -> Verification:
    return verify(places, key)


def test_a_log_that_nobody_touched_is_whole(tmp_path: Path) -> None:
    places = written(tmp_path)
    with opened(places) as log:
        log.add("call", {"number": 99})
    found = judged(places)
    assert (found.found, found.notes) == ([], [])
    assert (found.first, found.last, found.entries) == (1, 25, 25)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_change_of_any_entry_is_found_and_named(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    places = written(tmp_path_factory.mktemp("audit"), 8)
    lines = lines_of(places)
    number = data.draw(st.integers(0, len(lines) - 1))
    place = data.draw(st.integers(0, len(lines[number]) - 2))
    byte = data.draw(st.integers(0, 255).filter(lambda byte: byte not in (lines[number][place], 10)))
    lines[number] = lines[number][:place] + bytes([byte]) + lines[number][place + 1 :]
    rewrite(places, lines)
    found = judged(places).found
    assert any(f"line {number + 1} of" in sentence for sentence in found)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_entries_that_were_taken_out_moved_or_repeated_are_named(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    places = written(tmp_path_factory.mktemp("audit"), 8)
    lines = lines_of(places)
    first = data.draw(st.integers(1, len(lines) - 3))
    what = data.draw(st.sampled_from(["taken out", "swapped", "repeated"]))
    if what == "taken out":
        del lines[first]
        expected = f"Entry {first + 1} is not where it should be"
    elif what == "swapped":
        lines[first], lines[first + 1] = lines[first + 1], lines[first]
        expected = f"is entry {first + 1}, which was moved behind entry {first + 2}"
    else:
        lines.insert(first + 1, lines[first])
        expected = f"is entry {first + 1}, which stands there a second time"
    rewrite(places, lines)
    assert any(expected in sentence for sentence in judged(places).found)


@pytest.mark.parametrize("kept", [0, 1, 5])
def test_an_end_that_was_cut_off_is_found_by_the_head(tmp_path: Path, kept: int) -> None:
    places = written(tmp_path)
    rewrite(places, lines_of(places)[:kept])
    (sentence,) = judged(places).found
    assert sentence == f"The log ends with entry {kept}, and the head says that there were 22: it was cut."
    with pytest.raises(AuditRefused, match=r"says that there were 22.*evidence"), opened(places):
        pass


def test_a_forged_entry_is_found_though_it_is_in_its_place(tmp_path: Path) -> None:
    places = written(tmp_path)
    lines = lines_of(places)
    line, _ = append(OTHER_KEY, START, '"event":"call"')
    rewrite(places, [line.encode(), *lines[1:]])
    assert "line 1 of audit-000000000001.log, which says that it is entry 1, was changed." in judged(places).found


def test_a_missing_head_and_one_of_another_key_are_told(tmp_path: Path) -> None:
    places = written(tmp_path)
    assert any("was not sealed with this key" in sentence for sentence in judged(places, OTHER_KEY).found)
    with pytest.raises(AuditRefused, match="not sealed with this audit key"), opened(places, OTHER_KEY):
        pass
    places.head.unlink()
    (sentence,) = judged(places).found
    assert "is missing" in sentence


def test_a_log_that_is_gone_is_not_begun_again_in_silence(tmp_path: Path) -> None:
    places = written(tmp_path)
    (segment,) = segments_in(places.directory)
    segment.path.unlink()
    with pytest.raises(AuditRefused, match="22 entries"), opened(places):
        pass


@pytest.mark.parametrize("torn", [1, 30, 100])
def test_what_a_crash_tore_is_cut_and_an_entry_says_so(tmp_path: Path, torn: int) -> None:
    places = written(tmp_path)
    (segment,) = segments_in(places.directory)
    line, _ = append(KEY, START, '"event":"call","filler":"' + "x" * 200 + '"')
    with segment.path.open("ab") as file:
        file.write(line[:torn].encode())
    before = judged(places)
    assert before.found == []
    assert before.notes == [f"The last line is torn after {torn} bytes, as a crash leaves it."]
    with opened(places):
        pass
    after = judged(places)
    assert (after.found, after.notes, after.entries) == ([], [], 25)
    assert b'"event":"recovered","cut_bytes":%d}' % torn in lines_of(places)[22]


def test_an_end_that_was_changed_is_not_gone_on_with(tmp_path: Path) -> None:
    places = written(tmp_path)
    lines = lines_of(places)
    rewrite(places, [*lines[:-1], lines[-1].replace(b"stopped", b"stopper")])
    with pytest.raises(AuditRefused, match=r"not as this audit key wrote it.*pillion audit verify"), opened(places):
        pass


def test_files_are_closed_at_their_size_and_the_oldest_go(tmp_path: Path) -> None:
    places = places_in(tmp_path)
    with opened(places, segment_bytes=2_000, kept=3) as log:
        for number in range(100):
            log.add("call", {"number": number, "filler": "x" * 50})
            log.flush()
    segments = segments_in(places.directory)
    assert len(segments) == 3
    assert all(segment.path.stat().st_size <= 2_000 for segment in segments)
    found = judged(places)
    assert found.found == []
    assert found.notes == [f"The log begins with entry {segments[0].first}; the ones before are not kept."]
    assert found.last == 102
    with opened(places, segment_bytes=2_000, kept=3):
        pass
    assert judged(places).last == 104


def test_a_file_that_was_taken_out_is_found(tmp_path: Path) -> None:
    places = places_in(tmp_path)
    with opened(places, segment_bytes=2_000, kept=9) as log:
        for number in range(40):
            log.add("call", {"number": number, "filler": "x" * 50})
            log.flush()
    _, second, third, *_ = segments_in(places.directory)
    second.path.unlink()
    (sentence,) = judged(places).found
    assert sentence.startswith(f"Entries {second.first} to {third.first - 1} are not where they should be")


@contextmanager
def full_at(size: int) -> Iterator[None]:
    """Within the block no file of this process can grow over a size, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_entries_that_could_not_be_written_are_counted_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1_000.0
    monkeypatch.setattr("sidecar.audit.log.time.monotonic", lambda: now)
    places = places_in(tmp_path)
    with opened(places) as log:
        log.add("call", {"number": 1})
        log.flush()
        (segment,) = segments_in(places.directory)
        with full_at(segment.path.stat().st_size + 20):
            log.add("call", {"number": 2})
            log.add("call", {"number": 3})
            log.flush()
            assert log.failing
            log.add("call", {"number": 4})
            now += 5
            log.flush()
            assert log.failing
        log.flush()
        assert log.failing
        now += 5
        log.flush()
        assert (log.failing, log.lost) == (False, 3)
        log.add("call", {"number": 5})
    found = judged(places)
    assert (found.found, found.notes) == ([], [])
    text = b"".join(lines_of(places))
    assert b'"event":"lost","entries":3}' in text
    assert b'"number":5' in text
    assert b'"number":2' not in text


async def test_a_sync_that_still_runs_does_not_disturb_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("sidecar.audit.log._SYNC_SECONDS", 0)
    begun, go_on = threading.Event(), threading.Event()

    def write_late(path: Path, key: Key, link: Link) -> None:
        if link.sequence == 2:
            begun.set()
            assert go_on.wait(20)
        write_head(path, key, link)

    monkeypatch.setattr("sidecar.audit.log.write_head", write_late)
    places = places_in(tmp_path)
    log = AuditLog(places, KEY, segment_bytes=MIB, segments_kept=4)
    await asyncio.to_thread(log.open)
    running = asyncio.ensure_future(log.run())
    log.add("call", {"number": 1})
    log.flush()
    assert await asyncio.to_thread(begun.wait, 20)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    closing = asyncio.ensure_future(asyncio.to_thread(log.close))
    await asyncio.sleep(0)
    go_on.set()
    await closing
    assert caplog.records == []
    found = await asyncio.to_thread(judged, places)
    assert (found.found, found.last) == ([], 3)
    head = await asyncio.to_thread(read_head, places.head, KEY)
    assert head is not None
    assert head.sequence == 3


async def test_what_was_written_is_sealed_within_seconds(tmp_path: Path) -> None:
    places = places_in(tmp_path)
    log = AuditLog(places, KEY, segment_bytes=MIB, segments_kept=4)
    await asyncio.to_thread(log.open)
    try:
        running = asyncio.ensure_future(log.run())
        log.add("call", {"number": 1})
        log.flush()
        async with asyncio.timeout(20):
            while b'"sequence": 2' not in places.head.read_bytes():  # noqa: ASYNC110  # nothing tells of it
                await asyncio.sleep(0.05)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    finally:
        await asyncio.to_thread(log.close)
    assert (await asyncio.to_thread(judged, places)).found == []


def test_what_nobody_has_written_is_not_kept_without_a_bound(tmp_path: Path) -> None:
    told: list[int] = []

    def tell(number: int) -> str:
        told.append(number)
        return f'"time_unix_nano":1,"event":"call","number":{number}'

    with opened(places_in(tmp_path)) as log:
        for number in range(1_000):
            log.defer(tell, number)
        # Nothing was sent, so nobody has asked that it be written.
        assert len(told) > 700
        assert len(lines_of(places_in(tmp_path))) > 700
    assert told == list(range(1_000))
