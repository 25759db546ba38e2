"""The person's line, the share of a bar, and arguments as a person writes them."""

import json
from typing import Any

import pytest

from sidecar.cli.arguments import BadArguments, arguments_of
from sidecar.line import line_of, share_of


@pytest.mark.parametrize(
    ("payload", "line"),
    [
        ({"message": "  half\n way "}, "half way"),
        ({"message": "x" * 120}, "x" * 120),
        ({"message": "é" * 123}, "é" * 120 + "… (+3 more)"),
        ({"message": ""}, "send reported progress (3 so far)…"),
        ({"message": 7}, "send reported progress (3 so far)…"),
        ({"nested": {"message": "no"}}, "send reported progress (3 so far)…"),
        ("message", "send reported progress (3 so far)…"),
        (None, "send reported progress (3 so far)…"),
    ],
)
def test_the_persons_line(payload: Any, line: str) -> None:
    assert line_of("send", payload, 3) == line


@pytest.mark.parametrize(
    ("payload", "share"),
    [
        ({"done": 1, "total": 4}, 0.25),
        ({"done": 9, "total": 4}, 1.0),
        ({"done": -1, "total": 4}, 0.0),
        ({"done": 1, "total": 0}, None),
        ({"done": True, "total": 4}, None),
        ({"done": "1", "total": 4}, None),
        ({"done": 1, "total": 10**400}, 0.0),
        ({"done": 10**400, "total": 1}, None),
        ({"done": 0.5, "total": 10**400}, None),
        ([1, 4], None),
    ],
)
def test_the_share_of_the_bar(payload: Any, share: float | None) -> None:
    assert share_of(payload) == share


SCHEMA = {
    "properties": {
        "text": {"type": "string"},
        "number": {"type": "number"},
        "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "list": {"type": "array"},
        "either": {"type": ["integer", "string"]},
        "word": {"enum": ["a", "b"]},
    }
}


@pytest.mark.parametrize(
    ("pair", "value"),
    [
        ("text=7", "7"),
        ("text=", ""),
        ("text=a=b", "a=b"),
        ("number=1.5", 1.5),
        ("maybe=null", "null"),
        ("list=[1]", [1]),
        ("either=7", 7),
        ("either=x", "x"),
        ("word=a", "a"),
        ("other=7", 7),
        ("other=x", "x"),
    ],
)
def test_an_argument_has_the_type_that_the_schema_says(pair: str, value: Any) -> None:
    assert json.loads(arguments_of([pair], None, SCHEMA)) == {pair.partition("=")[0]: value}


@pytest.mark.parametrize(
    "value",
    ["0.1000000000000000055511151231257827", "1e999", "9" * 5_000, '{"a":1,"a":2}', "[" * 100_000],
    ids=["digits", "large", "long", "twice", "deep"],
)
def test_an_argument_that_is_json_is_passed_on_as_it_is_written(value: str) -> None:
    assert arguments_of([f"other={value}"], None, SCHEMA) == f'{{"other":{value}}}'.encode()


def test_what_is_no_number_of_json_is_a_text_or_refused() -> None:
    assert arguments_of(["other=NaN", "a=-Infinity"], None, SCHEMA) == b'{"other":"NaN","a":"-Infinity"}'
    with pytest.raises(BadArguments, match="number is number by the tool's schema"):
        arguments_of(["number=NaN"], None, SCHEMA)


@pytest.mark.parametrize(
    ("pairs", "text"),
    [(["number=x"], None), (["=x"], None), (["x"], None), (["text=x"], "{}"), (["text=x", "text=y"], None)],
)
def test_arguments_that_cannot_be_read_are_refused(pairs: list[str], text: str | None) -> None:
    with pytest.raises(BadArguments):
        arguments_of(pairs, text, SCHEMA)
