"""`parse` refuses what law 8 refuses, agrees with the standard library on the rest, and takes time in proportion."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.calls.strict_json import JsonRefused, parse
from tests.support.growth import assert_grows_in_proportion

CANARY = "canary-value"

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**40), 10**40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner)
    ),
    max_leaves=30,
)


def nested(depth: int, opening: str = "[", closing: str = "]") -> bytes:
    return (opening * depth + closing * depth).encode()


BAD = {
    "nothing": b"",
    "only space": b" \n",
    "a word": CANARY.encode(),
    "malformed": b'{"a": canary-value}',
    "an open object": b'{"a": 1',
    "an open text": b'"canary-value',
    "a comma too many": b"[1, ]",
    "single quotes": b"{'a': 1}",
    "a control character": b'"\n"',
    "a bad escape": b'"\\x41"',
    "a leading zero": b"01",
    "a plus sign": b"+1",
    "a bare point": b"1.",
    "a hexadecimal number": b"0x1",
    "full-width digits": "\uff11\uff12".encode(),
    "something behind": b'{} "canary-value"',
    "two values": b"1 2",
    "a null byte behind": b"1\0",
    "a form feed around": b"\x0c1",
    "a byte order mark": b"\xef\xbb\xbf{}",
    "UTF-16": "{}".encode("utf-16"),
    "Latin-1": b'"\xe9"',
    "a raw surrogate": b'"\xed\xa0\x80"',
    "an overlong slash": b'"\xc0\xaf"',
    "a duplicate key": b'{"canary-value": 1, "canary-value": 2}',
    "a duplicate key below": b'[{"x": {"a": 1, "b": 2, "a": 3}}]',
    "a duplicate key in disguise": b'{"a": 1, "\\u0061": 2}',
    "a lone high surrogate": b'"\\ud800"',
    "a lone low surrogate": b'"\\uDC00"',
    "a pair the wrong way round": b'"\\udc00\\ud800"',
    "two high surrogates": b'"\\ud83d\\ud83d\\ude00"',
    "a high surrogate before a character": b'"\\ud83d\\u0041"',
    "a surrogate behind a backslash": b'"\\\\\\ud800"',
    "a surrogate in a key": b'{"\\ud800": 1}',
    "NaN": b"NaN",
    "Infinity": b"[Infinity]",
    "minus Infinity": b"-Infinity",
    "1e400": b"1e400",
    "-1e400": b'{"a": -1e400}',
    "a long infinite number": b"9" * 400 + b".0",
    "5,000 digits": b"9" * 5_000,
    "4,301 digits": b"-" + b"9" * 4_301,
    "129 arrays": nested(129),
    "129 objects": b'{"a":' * 129 + b"1" + b"}" * 129,
    "100,000 open brackets": b"[" * 100_000,
    "100,000 nested brackets": nested(100_000),
    "100,000 open objects": b'{"a":' * 100_000,
    "100,000 arrays of objects": b'[{"a":' * 100_000,
    "100,000 closing brackets": b"]" * 100_000,
}

GOOD = {
    "an object": b'{"city": "Paris", "days": 3}',
    "spaces around": b" \t\r\n[1]\n",
    "a pair of surrogates": b'"\\ud83d\\ude00"',
    "what only looks like a surrogate": b'"\\\\ud800"',
    "the largest double": b"1.7976931348623157e308",
    "what rounds to zero": b"1e-400",
    "2^63": b"9223372036854775808",
    "4,300 digits": b"-" + b"9" * 4_300,
    "128 arrays": nested(128),
    "128 of both": (b'[{"a":' * 64) + b"1" + (b"}]" * 64),
    "many brackets in a text": b'"' + b"[" * 1_000 + b'"',
    "many brackets behind an escaped quote": b'"\\"' + b"[{" * 1_000 + b'"',
    "many brackets behind an escaped backslash": b'["\\\\", "' + b"[" * 1_000 + b'"]',
    "many texts of one bracket": b"[" + b", ".join([b'"["'] * 1_000) + b"]",
    "many shallow arrays": b"[" + b", ".join([b"[[]]"] * 1_000) + b"]",
    "an empty key": b'{"": {"": 1}}',
}


@pytest.mark.parametrize("text", BAD.values(), ids=BAD.keys())
def test_refuses_with_a_sentence_that_quotes_nothing(text: bytes) -> None:
    with pytest.raises(JsonRefused) as refused:
        parse(text)

    sentence = str(refused.value)
    assert sentence.endswith(".")
    assert len(sentence) < 256
    assert CANARY not in sentence


@pytest.mark.parametrize("text", GOOD.values(), ids=GOOD.keys())
def test_reads_what_the_standard_library_reads(text: bytes) -> None:
    assert parse(text) == json.loads(text)


@given(values, st.booleans())
def test_agrees_with_the_standard_library_on_valid_documents(value: object, is_ascii: bool) -> None:
    text = json.dumps(value, ensure_ascii=is_ascii)

    assert parse(text.encode()) == value
    assert repr(parse(text.encode())) == repr(json.loads(text))


@given(st.binary(max_size=64) | st.text(st.sampled_from('[]{}",:\\ud8019eE.-+ntrfas')).map(str.encode))
def test_never_fails_otherwise_and_never_reads_what_the_standard_library_does_not(text: bytes) -> None:
    try:
        value = parse(text)
    except JsonRefused:
        return
    assert value == json.loads(text.decode())
    assert json.dumps(value, allow_nan=False, ensure_ascii=False).encode()


@given(values, st.data())
def test_refuses_a_valid_document_cut_short_or_run_on(value: object, data: st.DataObject) -> None:
    text = json.dumps([value]).encode()
    cut = data.draw(st.integers(0, len(text) - 1))

    for mutant in (text[:cut], text + b"]", text + text, b"," + text, b"[" + text):
        with pytest.raises(JsonRefused):
            parse(mutant)


@given(st.text(st.characters(exclude_categories=["Cs"])), values, values)
def test_refuses_a_key_that_comes_again(key: str, first: object, second: object) -> None:
    name, other = json.dumps(key), json.dumps("-" + key)

    with pytest.raises(JsonRefused, match="same key twice"):
        parse(f"[{{{name}: {json.dumps(first)}, {other}: 0, {name}: {json.dumps(second)}}}]".encode())


@given(
    st.lists(st.sampled_from(["\\ud83d", "\\ude00", "\\u0041", "\\\\", "\\n", "x", "ud83d", '\\"', "\\/"]), max_size=12)
)
def test_refuses_exactly_the_texts_with_half_a_pair(parts: list[str]) -> None:
    text = f'"{"".join(parts)}"'
    is_whole = not any("\ud800" <= character <= "\udfff" for character in json.loads(text))

    try:
        parse(text.encode())
    except JsonRefused:
        assert not is_whole
    else:
        assert is_whole


@given(st.integers(1, 200), st.text(st.sampled_from('[]{}\\"x')), st.lists(st.sampled_from([0, 1, 2]), max_size=300))
def test_the_limit_of_nesting_is_exact(depth: int, noise: str, shape: list[int]) -> None:
    value: object = noise
    for step in range(depth):
        kind = shape[step % len(shape)] if shape else 0
        value = [noise, value, [], {}] if kind == 0 else {noise: value, noise + "x": [noise]} if kind == 1 else [value]
    # The innermost level of a value that holds an empty list beside it is one deeper than the chain.
    kinds = [shape[step % len(shape)] if shape else 0 for step in range(depth)]
    deepest = max([depth, *(depth - step + 1 for step, kind in enumerate(kinds) if kind != 2)])

    try:
        parse(json.dumps(value).encode())
    except JsonRefused:
        assert deepest > 128
    else:
        assert deepest <= 128


MIB = 1 << 20

COSTLY: dict[str, Callable[[int], bytes]] = {
    "text": lambda size: b'"' + b"x" * size + b'"',
    "escapes": lambda size: b'"' + b'\\"' * (size // 2) + b'"',
    "backslashes": lambda size: b'"' + b"\\\\" * (size // 2) + b'"',
    "surrogates": lambda size: b'"' + b"\\ud83d\\ude00" * (size // 12) + b'"',
    "half a pair": lambda size: b'"' + b"\\ud83d\\ude00" * (size // 12) + b'\\ud800"',
    "quotes": lambda size: b'"[[' * (size // 3),
    "open": lambda size: b"[" * size,
    "nested": lambda size: nested(size // 2),
    "nested in a text": lambda size: b'"' + nested(size // 2) + b'"',
    "wide": lambda size: b"[" + b",".join([b"[[[[]]]]"] * (size // 9)) + b"]",
    "keys": lambda size: b"{" + b",".join(b'"%d":1' % key for key in range(size // 10)) + b"}",
    "decimal": lambda size: b"1." + b"1" * size,
    "integer": lambda size: b"1" * size,
    "exponent": lambda size: b"1e" + b"9" * size,
}


@pytest.mark.parametrize("made", COSTLY.values(), ids=COSTLY.keys())
def test_takes_time_in_proportion_to_the_text(made: Callable[[int], bytes]) -> None:
    assert_grows_in_proportion(lambda size: partial(parse, made(size)), MIB)


def test_the_limit_of_digits_does_not_depend_on_how_python_was_started() -> None:
    program = (
        "from sidecar.calls.strict_json import parse\nparse(b'9' * 4300)\nparse(b'-' + b'9' * 4300)\nparse(b'9' * 4301)"
    )

    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONINTMAXSTRDIGITS": "0"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert "JsonRefused: An integer has more than 4,300 digits" in ended.stderr
    assert "line 4" in ended.stderr
