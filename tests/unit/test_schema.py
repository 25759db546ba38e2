"""Schemas: what is refused, what fits, and how what does not is told."""

import importlib
import json
import socket
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.calls.schema import ANY_OBJECT, Schema, SchemaRefused
from tests.support.growth import assert_grows_in_proportion

CANARY = "canary-value"
Draft202012Validator = importlib.import_module("jsonschema").Draft202012Validator  # which has no types


def compiled(schema: object, *, of_arguments: bool = False) -> Schema:
    return Schema(json.dumps(schema).encode(), of_arguments=of_arguments)


def told(schema: object, value: object, *, of_arguments: bool = False) -> list[tuple[str, str]]:
    return [(issue.path, issue.rule) for issue in compiled(schema, of_arguments=of_arguments).issues(value)]


def nested(depth: int, leaf: object) -> object:
    value: object = leaf
    for _ in range(depth):
        value = {"c": value}
    return value


def doubling(steps: int, link: Any) -> dict[str, Any]:
    """A schema whose every definition applies the next one twice."""
    shelves: dict[str, Any] = {f"a{step}": {"allOf": [link(step + 1), link(step + 1)]} for step in range(steps)}
    return {"$defs": shelves | {f"a{steps}": {"type": "object"}}, "$ref": "#/$defs/a0"}


def chain(steps: int) -> dict[str, Any]:
    shelves: dict[str, Any] = {f"a{step}": {"$ref": f"#/$defs/a{step + 1}"} for step in range(steps)}
    return {"$defs": shelves | {f"a{steps}": {"type": "object"}}, "$ref": "#/$defs/a0"}


REFUSED = {
    "not JSON": (b"{", "not strict JSON"),
    "no text": (b"", "not strict JSON"),
    "a duplicate key": (b'{"type": "object", "type": "object"}', "same key twice"),
    "too large": (b'{"title": "' + b"x" * 256 * 1024 + b'"}', "256 KiB"),
    "a number": (b"1", "object"),
    "an unknown type": (b'{"type": "strin"}', "2020-12 at #/type"),
    "a text as limit": (b'{"minimum": "1"}', "2020-12 at #/minimum"),
    "items of an older standard": (b'{"items": [{"type": "string"}]}', "2020-12 at #/items"),
    "another dialect": (b'{"$schema": "http://json-schema.org/draft-07/schema#"}', r"\$schema"),
    "a remote reference": (b'{"$ref": "http://127.0.0.1:9/x.json"}', "leads out"),
    "a reference to a file": (b'{"properties": {"a": {"$ref": "file:///etc/passwd"}}}', "leads out"),
    "a relative reference": (b'{"$defs": {"a": {"$ref": "other.json"}}}', "leads out"),
    "a reference to nothing": (b'{"$ref": "#/$defs/a"}', "names nothing"),
    "a reference beyond a list": (b'{"allOf": [{"$ref": "#/allOf/1"}]}', "names nothing"),
    "a reference to no anchor": (b'{"$ref": "#a"}', "names nothing"),
    "a reference to itself": (b'{"$ref": "#"}', "because it applies it to that value"),
    "itself in a combination": (b'{"anyOf": [{"type": "null"}, {"$ref": "#"}]}', "because it applies"),
    "itself denied": (b'{"not": {"$ref": "#"}}', "because it applies"),
    "itself depending": (b'{"dependentSchemas": {"a": {"$ref": "#"}}}', "because it applies"),
    "itself depending as of old": (b'{"dependencies": {"a": {"$ref": "#"}}}', "because it applies"),
    "itself by an anchor": (b'{"$anchor": "a", "if": {"$ref": "#a"}}', "because it applies"),
    "two that refer to one another": (
        b'{"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"allOf": [{"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"}',
        "because it applies",
    ),
    "a cycle among values": (b'{"enum": [{"$ref": "#/enum/0"}], "not": {"$ref": "#/enum/0"}}', "because it applies"),
    "a dynamic reference": (b'{"$dynamicAnchor": "a", "items": {"$dynamicRef": "#a"}}', r"\$dynamicRef"),
    "a schema in the schema": (b'{"$defs": {"a": {"$id": "urn:a"}}}', r"\$id"),
    "lookahead": (b'{"properties": {"a": {"pattern": "(?=a)b"}}}', "regular expression at #/properties/a/pattern"),
    "lookbehind in a name": (b'{"patternProperties": {"(?<=a)b": {}}}', "regular expression"),
    "a back-reference": (b'{"pattern": "(a)\\\\1"}', "regular expression"),
    "an open group": (b'{"pattern": "("}', "regular expression"),
    "a regular expression that grows": (b'{"pattern": "((a{1000}){1000}){100}"}', "regular expression"),
    "a chain of references": (json.dumps(chain(7_000)).encode(), "steps"),
    "combinations that double": (
        json.dumps(doubling(20, lambda step: {"$ref": f"#/$defs/a{step}"})).encode(),
        "more than 10,000 times",
    ),
    "properties that double": (
        json.dumps(doubling(40, lambda step: {"properties": {"c": {"$ref": f"#/$defs/a{step}"}}})).encode(),
        "more than 10,000 times",
    ),
}


@pytest.mark.parametrize(("text", "sentence"), REFUSED.values(), ids=REFUSED.keys())
def test_refuses_with_a_sentence_for_the_author(text: bytes, sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "socket", None)  # a fetch would fail otherwise than so

    with pytest.raises(SchemaRefused, match=sentence):
        Schema(text, of_arguments=False)


@pytest.mark.parametrize(
    "schema", [True, False, [], {"type": "array"}, {"type": ["object", "null"]}, {"type": "string"}]
)
def test_arguments_are_objects(schema: object) -> None:
    with pytest.raises(SchemaRefused):
        compiled(schema, of_arguments=True)


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "https://example.org/a"},
        {"$defs": {"a": {"type": "integer"}}, "properties": {"b": {"$ref": "#/$defs/a"}}},
        {"$ref": "#/$defs/a", "$defs": {"a": {"required": []}}},
    ],
    ids=["empty", "with its address", "with definitions", "by reference"],
)
def test_arguments_are_objects_even_where_no_type_is_given(schema: object) -> None:
    schema = compiled(schema, of_arguments=True)

    others: list[object] = [[], None, 1, CANARY]
    assert schema.issues({}) == []
    for value in others:
        (issue,) = schema.issues(value)
        assert (issue.path, issue.rule, issue.message) == ("", "type", "This must be an object.")


def test_a_tool_without_a_schema_takes_any_object() -> None:
    assert ANY_OBJECT.issues({"a": [1]}) == []
    assert [issue.rule for issue in ANY_OBJECT.issues([])] == ["type"]


def test_results_may_be_anything_or_nothing() -> None:
    assert told(True, [1]) == []
    assert told(False, [1]) == [("", "schema")]
    assert told({"type": ["array", "null"]}, None) == []


TOLD: dict[str, tuple[object, object, list[tuple[str, str]]]] = {
    "type": ({"properties": {"a": {"type": "string"}}}, {"a": 1}, [("/a", "type")]),
    "types": ({"type": ["string", "null"]}, 1, [("", "type")]),
    "enum": ({"enum": ["x", 1]}, "y", [("", "enum")]),
    "const": ({"items": {"const": 1}}, [1, 2], [("/1", "const")]),
    "minimum": ({"minimum": 1}, 0, [("", "minimum")]),
    "maximum": ({"maximum": 1}, 2, [("", "maximum")]),
    "exclusiveMinimum": ({"exclusiveMinimum": 1}, 1, [("", "exclusiveMinimum")]),
    "exclusiveMaximum": ({"exclusiveMaximum": 1}, 1, [("", "exclusiveMaximum")]),
    "multipleOf": ({"multipleOf": 0.01}, 0.075, [("", "multipleOf")]),
    "minLength": ({"minLength": 3}, "ab", [("", "minLength")]),
    "maxLength": ({"maxLength": 1}, "ab", [("", "maxLength")]),
    "pattern": ({"pattern": "^a+$"}, "b", [("", "pattern")]),
    "minItems": ({"minItems": 1}, [], [("", "minItems")]),
    "maxItems": ({"maxItems": 1}, [1, 2], [("", "maxItems")]),
    "uniqueItems": ({"uniqueItems": True}, [1, 1.0], [("", "uniqueItems")]),
    "minProperties": ({"minProperties": 1}, {}, [("", "minProperties")]),
    "maxProperties": ({"maxProperties": 0}, {"a": 1}, [("", "maxProperties")]),
    "required": ({"required": ["a", "b"]}, {"a": 1}, [("", "required")]),
    "dependentRequired": ({"dependentRequired": {"a": ["b"]}}, {"a": 1}, [("", "dependentRequired")]),
    "dependentSchemas": ({"dependentSchemas": {"a": {"required": ["b"]}}}, {"a": 1}, [("", "required")]),
    "dependencies": ({"dependencies": {"a": ["b"]}}, {"a": 1}, [("", "dependencies")]),
    "not": ({"not": {"type": "string"}}, "a", [("", "not")]),
    "then": ({"if": {"required": ["a"]}, "then": {"required": ["b"]}}, {"a": 1}, [("", "required")]),
    "else": ({"if": {"required": ["a"]}, "else": {"required": ["b"]}}, {}, [("", "required")]),
    "allOf": ({"allOf": [{"type": "object"}, {"required": ["a"]}]}, {}, [("", "required")]),
    "anyOf": ({"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, {}, [("", "anyOf")]),
    "oneOf": ({"oneOf": [{"required": ["a"]}, {"type": "object"}]}, {"a": 1}, [("", "oneOf")]),
    "anyOf with null": ({"anyOf": [{"type": "null"}, {"type": "integer", "minimum": 3}]}, 2, [("", "minimum")]),
    "a tagged union": (
        {
            "oneOf": [
                {"type": "object", "properties": {"kind": {"const": "a"}, "n": {"type": "integer"}}},
                {"type": "object", "properties": {"kind": {"const": "b"}, "n": {"type": "null"}}},
            ]
        },
        {"kind": "a", "n": "x"},
        [("/n", "type")],
    ),
    "prefixItems": ({"prefixItems": [{"type": "integer"}, {"type": "string"}]}, [1, 2], [("/1", "type")]),
    "no further items": ({"prefixItems": [{}], "items": False}, [1, 2], [("/1", "items")]),
    "contains": ({"contains": {"type": "string"}}, [1], [("", "contains")]),
    "maxContains": ({"contains": {"type": "string"}, "maxContains": 1}, ["a", "b"], [("", "contains")]),
    "propertyNames": ({"propertyNames": {"pattern": "^a"}}, {"b": 1}, [("", "propertyNames")]),
    "a closed object": (
        {"properties": {"a": {}}, "additionalProperties": False},
        {"b": 1},
        [("", "additionalProperties")],
    ),
    "a closed property": ({"properties": {"a": False}}, {"a": 1}, [("/a", "properties")]),
    "a typed dictionary": ({"additionalProperties": {"type": "string"}}, {"b": 1}, [("", "type")]),
    "names by pattern": ({"patternProperties": {"^x/": {"type": "string"}}}, {"x/y": 1, "z": 1}, [("", "type")]),
    "names by no pattern": (
        {"patternProperties": {"^x": {}}, "additionalProperties": False},
        {"x": 1, "y": 1},
        [("", "additionalProperties")],
    ),
    "unevaluatedProperties": (
        {"allOf": [{"properties": {"a": {}}}], "unevaluatedProperties": False},
        {"a": 1, "b": 1},
        [("", "unevaluatedProperties")],
    ),
    "unevaluatedItems": ({"prefixItems": [{}], "unevaluatedItems": False}, [1, 2], [("", "unevaluatedItems")]),
    "a reference": ({"$defs": {"a b": {"minimum": 1}}, "items": {"$ref": "#/$defs/a%20b"}}, [0], [("/0", "minimum")]),
    "an anchor": ({"$defs": {"a": {"$anchor": "n", "minimum": 1}}, "items": {"$ref": "#n"}}, [0], [("/0", "minimum")]),
    "an odd name": ({"properties": {"a/b~c %": {"type": "string"}}}, {"a/b~c %": 1}, [("/a~1b~0c %", "type")]),
    "recursion": (
        {"type": "object", "properties": {"c": {"$ref": "#"}}},
        {"c": {"c": {"c": 1}}},
        [("/c/c/c", "type")],
    ),
}


@pytest.mark.parametrize(("schema", "value", "expected"), TOLD.values(), ids=TOLD.keys())
def test_tells_where_and_by_which_keyword(schema: object, value: object, expected: list[tuple[str, str]]) -> None:
    assert told(schema, value) == expected


def test_quotes_neither_values_nor_names_that_the_schema_does_not_have() -> None:
    schema = {
        "type": "object",
        "properties": {
            "a": {"enum": ["x"]},
            "b": {"pattern": "^b+$"},
            "c": {"additionalProperties": {"type": "object", "properties": {"d": {"type": "integer"}}}},
            "e": {"type": "integer"},
            "f": {"propertyNames": {"maxLength": 1}},
        },
        "additionalProperties": False,
    }
    value = {
        "a": CANARY,
        "b": CANARY,
        "c": {CANARY: {"d": CANARY}},
        "e": CANARY,
        "f": {CANARY: 1},
        CANARY: CANARY,
    }

    issues = compiled(schema).issues(value)

    assert len(issues) == 6
    assert CANARY not in str(issues)


def test_tells_at_most_10_issues_of_at_most_256_bytes() -> None:
    name = "ä" * 300
    schema = {"properties": {name: {"items": {"type": "string"}}}, "required": [name[:250]]}

    issues = compiled(schema).issues({name: list(range(100))})

    assert len(issues) <= 10
    assert all(len(issue.path.encode()) <= 256 and 0 < len(issue.message.encode()) <= 256 for issue in issues)
    assert len(compiled({"items": {"type": "string"}}).issues(list(range(100)))) == 10


HUGE = int("9" * 4_300)


@pytest.mark.parametrize(
    ("schema", "value", "fits"),
    [
        ({"type": "integer"}, 2**63, True),
        ({"type": "integer"}, 2**70, True),
        ({"type": "integer"}, -HUGE, True),
        ({"type": "integer"}, 1.0, True),
        ({"type": "integer"}, 1.5, False),
        ({"maximum": 2**53}, 2**53 + 1, False),
        ({"maximum": 2**63 - 1}, 2**63, False),
        ({"maximum": 2**63}, 2**63, True),
        ({"maximum": 2**63}, 2**63 + 1, False),
        ({"maximum": 2**64}, 2**64 + 1, False),
        ({"maximum": 2**70}, 2**70 + 1, False),
        ({"maximum": 2**70}, HUGE, False),
        ({"maximum": HUGE}, HUGE, True),
        ({"maximum": HUGE - 1}, HUGE, False),
        ({"maximum": 9007199254740992.0}, 2**53 + 1, False),
        ({"minimum": -(2**70)}, -(2**70) - 1, False),
        ({"exclusiveMaximum": 2**70}, 2**70 - 1, True),
        ({"const": 2**70}, 2**70 + 1, False),
        ({"const": 2**53 + 1}, float(2**53), False),
        ({"enum": [2**70]}, 2**70 + 1, False),
        ({"multipleOf": 3}, 3 * 10**400, True),
        ({"multipleOf": 3}, 10**400, False),
        ({"multipleOf": 1}, 1e300, True),
        ({"uniqueItems": True}, [2**70, 2**70 + 1], True),
        ({"uniqueItems": True}, [2**70, 2**70], False),
    ],
)
def test_large_numbers_are_judged_exactly(schema: object, value: object, fits: bool) -> None:
    issues = compiled(schema).issues(value)

    assert (issues == []) is fits
    assert all(len(issue.message.encode()) <= 256 for issue in issues)


EXPRESSION = {
    "$defs": {
        "any": {"oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]},
        "a": {
            "type": "object",
            "required": ["k", "c"],
            "properties": {"k": {"const": "a"}, "c": {"$ref": "#/$defs/any"}},
        },
        "b": {
            "type": "object",
            "required": ["k", "c"],
            "properties": {"k": {"const": "b"}, "c": {"$ref": "#/$defs/any"}},
        },
    },
    "$ref": "#/$defs/any",
}
WIDE = {"items": {"anyOf": [{"type": "string"}, {"items": {"items": {"type": "string"}}}]}}
DEEPEST = doubling(1, lambda step: {"$ref": f"#/$defs/a{step}"}) | {
    "$defs": {f"a{step}": {"allOf": [{"$ref": f"#/$defs/a{step + 1}"}]} for step in range(29)}
    | {"a29": {"type": "object", "properties": {"c": {"$ref": "#"}}}}
}


def shelved(many: int) -> dict[str, Any]:
    """A schema of so many definitions, each of which refers to two others, and a union of some of them."""
    shelves = {
        f"T{number}": {
            "properties": {f"p{step}": {"$ref": f"#/$defs/T{(number * 7 + step) % many}"} for step in range(2)}
        }
        for number in range(many)
    }
    unions = [{"$ref": f"#/$defs/T{number}", "type": "object", "required": ["x"]} for number in range(40)]
    return {"$defs": shelves, "anyOf": unions}


UNFIT: dict[str, tuple[Callable[[int], tuple[object, object]], int]] = {
    "a slow pattern": (lambda size: ({"pattern": "^(a+)+$"}, "a" * size + "!"), 1_000_000),
    "a pattern with a count": (lambda size: ({"pattern": "(.*a){20}"}, "b" * size), 1_000_000),
    "recursive alternatives": (lambda depth: (EXPRESSION, nested(depth, 1)), 126),
    "recursive combinations": (
        lambda depth: (
            {"type": "object", "properties": {"c": {"allOf": [{"$ref": "#"}, {"$ref": "#"}]}}},
            nested(depth, 1),
        ),
        126,
    ),
    "the deepest": (lambda depth: (DEEPEST, nested(depth, 1)), 127),
    "many items": (lambda many: ({"items": {"type": "string"}}, list(range(many))), 300_000),
    "many properties": (
        lambda many: ({"additionalProperties": {"type": "string"}}, {f"k{number}": number for number in range(many)}),
        60_000,
    ),
    "many names": (
        lambda many: ({"additionalProperties": False}, {f"k{number}": number for number in range(many)}),
        60_000,
    ),
    "wide alternatives": (lambda many: (WIDE, [[[1] * 300] * (many // 300)] * 3), 90_000),
    "the last item": (lambda many: ({"items": {"type": "integer"}}, [1] * many + ["x"]), 300_000),
    "many equal items": (lambda many: ({"uniqueItems": True}, [[number] for number in range(many)] * 2), 100_000),
    "many definitions": (lambda many: (shelved(many), {}), 2_500),
    "many alternatives": (
        lambda many: ({"anyOf": [{"required": [f"k{number}"]} for number in range(many)]}, {}),
        4_000,
    ),
}
"""A schema and a value of a size that does not fit it, and the largest size that is looked at."""


@pytest.mark.parametrize(("made", "largest"), UNFIT.values(), ids=UNFIT.keys())
def test_what_does_not_fit_is_told_in_proportion(made: Callable[[int], tuple[object, object]], largest: int) -> None:
    def work(size: int) -> Callable[[], object]:
        schema, value = made(size)
        text = json.dumps(schema).encode()

        def tell() -> None:
            assert 1 <= len(Schema(text, of_arguments=False).issues(value)) <= 10

        return tell

    assert_grows_in_proportion(work, largest)


REFUSED_AT_LENGTH: dict[str, tuple[Callable[[int], object], int]] = {
    "a chain of references": (chain, 7_000),
    "combinations that double": (lambda steps: doubling(steps, lambda step: {"$ref": f"#/$defs/a{step}"}), 2_000),
    "properties that double": (
        lambda steps: doubling(steps, lambda step: {"properties": {"c": {"$ref": f"#/$defs/a{step}"}}}),
        1_600,
    ),
    "a reference out at the end": (
        lambda many: {"allOf": [*({"$ref": "#/$defs/a"} for _ in range(many)), {"$ref": "b"}], "$defs": {"a": {}}},
        8_000,
    ),
}


@pytest.mark.parametrize(("made", "largest"), REFUSED_AT_LENGTH.values(), ids=REFUSED_AT_LENGTH.keys())
def test_what_is_refused_is_refused_in_proportion(made: Callable[[int], object], largest: int) -> None:
    def work(size: int) -> Callable[[], object]:
        text = json.dumps(made(size)).encode()
        assert len(text) < 256 * 1024, "it is to be read, and not refused for its size"

        def refuse() -> None:
            with pytest.raises(SchemaRefused):
                Schema(text, of_arguments=False)

        return refuse

    assert_grows_in_proportion(work, largest)


SIMPLE = st.sampled_from(
    [
        True,
        False,
        {},
        {"type": "integer"},
        {"type": ["object", "array"]},
        {"enum": [1, "a", None]},
        {"const": {}},
        {"minimum": 1},
        {"required": ["a"]},
        {"minItems": 2},
        {"maxProperties": 1},
        {"$ref": "#/$defs/tree"},
    ]
)


def _larger(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    lists = st.lists(inner, min_size=1, max_size=3)
    maps = st.dictionaries(st.sampled_from(["a", "b", "c/d"]), inner, max_size=3)
    return st.dictionaries(st.sampled_from(["x-note"]), st.just(1)) | st.fixed_dictionaries(
        {},
        optional={
            "allOf": lists,
            "anyOf": lists,
            "oneOf": lists,
            "not": inner,
            "if": inner,
            "then": inner,
            "else": inner,
            "properties": maps,
            "patternProperties": maps,
            "additionalProperties": inner,
            "propertyNames": inner,
            "items": inner,
            "prefixItems": lists,
            "contains": inner,
            "dependentSchemas": maps,
            "unevaluatedProperties": inner,
            "unevaluatedItems": inner,
        },
    )


schemas = st.recursive(SIMPLE, _larger, max_leaves=12)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 3) | st.sampled_from(["a", "zz"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "c/d", "q"]), inner, max_size=3)
    ),
    max_leaves=12,
)
TREE = {"type": "object", "properties": {"a": {"$ref": "#/$defs/tree"}, "b": {"type": "integer"}}, "required": ["b"]}


@given(schemas, values)
def test_agrees_with_another_validator_and_always_tells_why(part: Any, value: object) -> None:
    schema = {"allOf": [part], "$defs": {"tree": TREE}}

    issues = compiled(schema).issues(value)

    assert (issues == []) is Draft202012Validator(schema).is_valid(value)
    assert all(issue.rule and issue.rule != "schema" and issue.message.endswith((".", "…")) for issue in issues)
