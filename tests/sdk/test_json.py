import datetime as dt
import enum
import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from pillion import _json
from pillion.errors import JsonRefused

NUMBERS = st.one_of(
    st.integers(),
    st.integers(min_value=-(10**400), max_value=10**400),
    st.floats(allow_nan=False, allow_infinity=False),
    st.decimals(allow_nan=False, allow_infinity=False, min_value=Decimal("-1e300"), max_value=Decimal("1e300")),
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, st.text()),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner)),
    max_leaves=20,
)


def same(left: Any, right: Any) -> bool:
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, bool) or isinstance(right, bool) or left is None:
        return left is right
    if isinstance(left, str):
        return bool(left == right)
    # A float stands for its shortest text.
    exact = [Decimal(repr(number)) if isinstance(number, float) else Decimal(number) for number in (left, right)]
    return exact[0] == exact[1]


@given(VALUES)
def test_every_value_survives_the_round_trip_exactly(value: Any) -> None:
    assert same(value, _json.decode(_json.encode(value)))


@given(st.from_regex(r"\A-?(0|[1-9][0-9]{0,25})\.[0-9]{1,25}([eE][+-]?[0-9]{1,3})?\Z"))
def test_a_number_is_its_text_or_a_decimal(text: str) -> None:
    number = _json.decode(text.encode())
    assert Decimal(repr(number) if isinstance(number, float) else number) == Decimal(text)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("0.1", float),
        ("1.10", float),
        ("100.0", float),
        ("1e23", float),
        ("0.1000000000000000055511151231257827", Decimal),
        ("123456789.12345679", float),
        ("123456789.123456789", Decimal),
        ("1e400", Decimal),
        ("1e-400", Decimal),
        ("9007199254740993.0", Decimal),
    ],
)
def test_a_decimal_is_a_float_only_where_that_is_exact(text: str, kind: type) -> None:
    assert type(_json.decode(text.encode())) is kind


def test_integers_are_of_any_size() -> None:
    assert _json.decode(_json.encode(10**4_000)) == 10**4_000
    for value in (10**4_300, {"a": 10**5_000}):
        with pytest.raises(JsonRefused, match=r"4,300"):
            _json.encode(value)
    with pytest.raises(JsonRefused, match=r"4,300"):
        _json.decode(b"1" * 4_301)


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("inf"),
        {"a": [float("-inf")]},
        Decimal("NaN"),
        Decimal("Infinity"),
        Decimal("1e400"),
        {1: "a", "1": "b"},
        {None: 1},
        {"a": {True: 1}},
        {"a": Decimal(1), 2: 1},
        "\ud800",
        {"\udfff": 1},
        object(),
        {"a": object()},
        b"\xff\xfe",
        lambda: 1,
    ],
    ids=repr,
)
def test_what_has_no_text_of_the_same_meaning_is_refused(value: Any) -> None:
    with pytest.raises(JsonRefused) as refused:
        _json.encode(value)
    assert isinstance(refused.value, ValueError)


def test_a_value_that_contains_itself_is_refused() -> None:
    ring: list[Any] = []
    ring.append(ring)
    with pytest.raises(JsonRefused):
        _json.encode(ring)
    loop: dict[str, Any] = {"a": Decimal(1)}
    loop["b"] = loop
    with pytest.raises(JsonRefused):
        _json.encode(loop)


@pytest.mark.parametrize(
    "text", [b"", b"{", b"1 2", b"NaN", b"[Infinity]", b"\xff", b"{'a':1}", b"[" * 100_000, b"1e9999999999999999999"]
)
def test_what_is_not_json_is_refused(text: bytes) -> None:
    with pytest.raises(JsonRefused):
        _json.decode(text)


class Colour(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Point(BaseModel):
    x: int
    when: dt.date


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"c": Colour.RED, "l": Level.HIGH}, {"c": "red", "l": 3}),
        (Point(x=1, when=dt.date(2026, 1, 2)), {"x": 1, "when": "2026-01-02"}),
        ({"p": [Point(x=1, when=dt.date(2026, 1, 2))]}, {"p": [{"x": 1, "when": "2026-01-02"}]}),
        ((1, (2,)), [1, [2]]),
        ({"d": Decimal("1.10")}, {"d": 1.1}),
        ({}, {}),
        ({"a": [], "b": {}, "d": Decimal(0)}, {"a": [], "b": {}, "d": 0}),
        ("é\u2028\U0001f600", "é\u2028\U0001f600"),
    ],
    ids=repr,
)
def test_other_values_are_made_plain(value: Any, text: Any) -> None:
    assert json.loads(_json.encode(value)) == text


def test_a_decimal_keeps_its_digits() -> None:
    assert _json.encode({"a": Decimal("1.10"), "b": "é"}) == '{"a":1.10,"b":"é"}'.encode()
    assert _json.encode([Decimal("1E+5")]) == b"[1E+5]"


def test_arguments_are_a_mapping_or_bytes() -> None:
    assert _json.encode_arguments({"a": 1}) == b'{"a":1}'
    assert _json.encode_arguments(b"anything") == b"anything"
    assert _json.encode_arguments(Point(x=1, when=dt.date(2026, 1, 2))) == b'{"x":1,"when":"2026-01-02"}'
    for wrong in ("text", 1, [1], None):
        with pytest.raises(JsonRefused):
            _json.encode_arguments(wrong)
