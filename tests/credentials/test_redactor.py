"""Secrets are taken out of texts by their values, however they are encoded or split there."""

import base64
import json
import string
import tracemalloc
from collections.abc import Callable
from itertools import pairwise
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sidecar.credentials.redactor import MASK, Redactor, RedactorFull
from sidecar.credentials.secret import Secret

# What providers mint, and what people choose. Not of the mask's own letters, which stand where a secret stood.
TOKENS = st.text(string.ascii_uppercase + string.digits + "._~+/-=", min_size=8, max_size=80)
PASSWORDS = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x2FFF, exclude_characters=MASK), min_size=8)
VALUES = TOKENS | PASSWORDS
AROUND = st.text(" \t:,;{}\n", max_size=20)


def b64(value: str) -> str:
    return base64.b64encode(value.encode()).decode()


def url64(value: str) -> str:
    return base64.urlsafe_b64encode(value.encode()).decode()


ENCODINGS: dict[str, Callable[[str], str]] = {
    "itself": str,
    "base64": b64,
    "base64 without padding": lambda value: b64(value).rstrip("="),
    "urlsafe base64": url64,
    "urlsafe base64 without padding": lambda value: url64(value).rstrip("="),
    "url-encoded": lambda value: quote(value, safe=""),
    "url-encoded but for slashes": quote,
    "form-encoded": quote_plus,
    "JSON": lambda value: json.dumps(value)[1:-1],
    "JSON with its own characters": lambda value: json.dumps(value, ensure_ascii=False)[1:-1],
    "JSON in JSON": lambda value: json.dumps(json.dumps(value))[3:-3],
    "JSON with escaped slashes": lambda value: json.dumps(value).replace("/", "\\/")[1:-1],
    "repr": lambda value: repr(value)[1:-1],
}


def redactor_of(*values: str | bytes) -> Redactor:
    redactor = Redactor()
    redactor.remember([Secret[Any](value) for value in values])
    return redactor


@pytest.mark.parametrize("encoding", ENCODINGS)
@given(value=VALUES, before=AROUND, after=AROUND)
@example(value="a/b+c d=e?é\"'\\", before="x", after="y")
@example(value="pass\\word", before="", after="")
def test_a_value_is_gone_in_every_encoding(encoding: str, value: str, before: str, after: str) -> None:
    encoded = ENCODINGS[encoding](value)
    redacted = redactor_of(value).redact(before + encoded + after)
    assert encoded not in redacted
    assert MASK in redacted


@given(
    value=TOKENS, user=st.text(string.ascii_lowercase, max_size=9), after=st.text(string.ascii_lowercase, max_size=9)
)
def test_a_value_is_gone_from_the_base64_of_what_it_is_in(value: str, user: str, after: str) -> None:
    redactor = redactor_of(value)
    for encode in (b64, url64):
        redacted = redactor.redact(f"authorization: Basic {encode(f'{user}:{value}{after}')}")
        assert MASK in redacted
        rest = redacted.removeprefix("authorization: Basic ")
        for piece in rest.split(MASK):
            # What is left is of the name, of what follows, and at most half a character of the value at each end.
            assert len(piece.rstrip("=")) * 6 <= 8 * (max(len(user) + 1, len(after)) + 2), redacted


@given(value=VALUES, data=st.data())
def test_a_value_split_over_two_writes_is_gone(value: str, data: st.DataObject) -> None:
    cut = data.draw(st.integers(1, len(value) - 1))
    stream = redactor_of(value).stream()
    written = stream.write("before " + value[:cut]) + stream.write(value[cut:] + " after")
    assert value not in written
    assert value[cut:] not in written.removeprefix("before ") or len(value[cut:]) < 4 or value[cut:] in value[:cut]
    shown = written.removeprefix("before ").removesuffix(" after").replace(MASK, "")
    assert len(shown) <= 3


@given(value=VALUES, cuts=st.sets(st.integers(1, 90), min_size=1, max_size=6))
def test_a_value_split_over_many_writes_is_gone(value: str, cuts: set[int]) -> None:
    stream = redactor_of(value).stream()
    places = [0, *sorted(cut for cut in cuts if cut < len(value)), len(value)]
    written = "".join(stream.write(value[start:end]) for start, end in pairwise(places))
    assert value not in written
    assert len(written.replace(MASK, "")) <= 3


@given(value=VALUES, texts=st.lists(st.text(string.ascii_letters + string.digits + " ", max_size=30), max_size=5))
def test_a_stream_changes_nothing_else(value: str, texts: list[str]) -> None:
    stream = redactor_of("\U0001f511" * 3 + value).stream()
    assert [stream.write(text) for text in texts] == texts


@given(values=st.lists(TOKENS, min_size=1, max_size=60), text=st.text(string.ascii_uppercase + " ", max_size=200))
def test_many_values_are_found_as_well_as_few(values: list[str], text: str) -> None:
    redactor = redactor_of(*values)
    redacted = redactor.redact(text.join(values))
    assert not any(value in redacted for value in values)
    assert redactor.redact("nothing of it") == "nothing of it"


def test_a_longer_value_goes_as_a_whole() -> None:
    redactor = redactor_of("SHORT-ONE", "SHORT-ONE-AND-MORE")
    assert redactor.redact("x SHORT-ONE-AND-MORE y SHORT-ONE z") == f"x {MASK} y {MASK} z"


def test_values_that_overlap_go_together() -> None:
    assert redactor_of("ABCDEFGH", "EFGHIJKL").redact("<ABCDEFGHIJKL>") == f"<{MASK}>"


def test_the_lines_of_a_long_value_are_looked_for_one_by_one() -> None:
    key = "-----BEGIN KEY-----\nMIIEvQIBADANBgkq\nhkiG9w0BAQEFAASC\n-----END KEY-----\n"
    redactor = redactor_of(key)
    for line in key.splitlines():
        assert redactor.redact(f"read {line}") == f"read {MASK}"


def test_bytes_are_found_as_text_and_in_hexadecimal() -> None:
    value = b"\x00\xff\x10 raw \xfe bytes"
    redactor = redactor_of(value)
    for form in (value.hex(), value.hex().upper(), base64.b64encode(value).decode(), repr(value)[2:-1]):
        assert redactor.redact(f"a {form} b") == f"a {MASK} b"
    assert redactor_of(b"plain-text").redact("plain-text") == MASK


def test_a_very_large_value_leaves_nothing() -> None:
    value = "".join(f"{number:x}g" for number in range(20_000))
    assert redactor_of(value).redact(f"[{value}]") == f"[{MASK}]"


def test_short_values_are_left() -> None:
    redactor = redactor_of("abc", "", b"xy")
    assert redactor.redact("abcdefxy") == "abcdefxy"


# --- bounds


def test_memory_is_bounded_and_the_latest_are_known() -> None:
    redactor = Redactor(most_values=100, most_characters=100_000)
    for number in range(10_000):
        redactor.remember([Secret(f"VALUE-NUMBER-{number:08}")])
    statistics = redactor.statistics()
    assert statistics.values <= 100
    assert statistics.characters <= 100_000
    assert redactor.redact("VALUE-NUMBER-00009999 VALUE-NUMBER-00000001") == f"{MASK} VALUE-NUMBER-00000001"


def test_a_held_value_stays_until_there_is_no_room_after_its_release() -> None:
    redactor = Redactor(most_values=10)
    hold = redactor.hold([Secret("HELD-BY-A-CALL")])
    again = redactor.hold([Secret("HELD-BY-A-CALL")])
    for number in range(100):
        redactor.remember([Secret(f"LATER-{number:04}")])
    assert redactor.redact("HELD-BY-A-CALL") == MASK
    hold.release()
    hold.release()
    for number in range(100):
        redactor.remember([Secret(f"AGAIN-{number:04}")])
    assert redactor.redact("HELD-BY-A-CALL") == MASK
    with again:
        pass
    assert redactor.redact("HELD-BY-A-CALL") == MASK
    for number in range(10):
        redactor.remember([Secret(f"FINAL-{number:04}")])
    assert redactor.redact("HELD-BY-A-CALL") == "HELD-BY-A-CALL"
    assert redactor.statistics().held == 0


def test_what_cannot_be_looked_for_is_refused() -> None:
    redactor = Redactor(most_values=2)
    holds = [redactor.hold([Secret(f"HELD-{number:04}")]) for number in range(2)]
    with pytest.raises(RedactorFull, match="try again"):
        redactor.hold([Secret("ONE-TOO-MANY")])
    holds[0].release()
    redactor.hold([Secret("ROOM-AGAIN")])
    assert redactor.redact("HELD-0001 ROOM-AGAIN") == f"{MASK} {MASK}"


def test_it_costs_nothing_where_nothing_is_registered() -> None:
    redactor = Redactor()
    stream = redactor.stream()
    text = "a line of a log " * 100
    redactor.redact(text)
    stream.write(text)
    tracemalloc.start()
    try:
        for _ in range(100):
            assert redactor.redact(text) is text
            assert stream.write(text) is text
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2_000
