"""Where a value departs from its schema, in the schema's own words."""

import json
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Any, Final, NamedTuple, Protocol

from sidecar._gen.pillion.v1.outcome_pb2 import ArgumentIssue
from sidecar.calls.subschemas import MAPS_IN_PLACE, Subschemas, cut, escaped, pointer_to

_MOST_ISSUES = 10
_MOST_PATH = 256
# What an explanation may cost: one unit is about a microsecond.
_MOST_WORK = 20_000

_KINDS = {
    "object": "an object",
    "array": "an array",
    "string": "a text",
    "number": "a number",
    "integer": "a whole number",
    "boolean": "true or false",
    "null": "null",
}


def _types(types: Any) -> str:
    return " or ".join(_KINDS[name] for name in ([types] if isinstance(types, str) else types))


def _size(value: object) -> int:
    """What it takes to walk over the members of a value, in units of work."""
    return len(value) // 64 if isinstance(value, dict | list) else 0


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


_AS_A_WHOLE = "This must fit the schema of the tool as a whole."

# What would fit, for each keyword that is judged by itself; all of it in the schema's own words.
_SENTENCES: Final[dict[str, Callable[[Any], str]]] = {
    "type": lambda types: f"This must be {_types(types)}.",
    "enum": lambda options: f"This must be one of {', '.join(map(_text, options))}.",
    "const": lambda value: f"This must be {_text(value)}.",
    "minimum": lambda limit: f"This must be at least {_text(limit)}.",
    "maximum": lambda limit: f"This must be at most {_text(limit)}.",
    "exclusiveMinimum": lambda limit: f"This must be more than {_text(limit)}.",
    "exclusiveMaximum": lambda limit: f"This must be less than {_text(limit)}.",
    "multipleOf": lambda step: f"This must be a multiple of {_text(step)}.",
    "minLength": lambda limit: f"This must have at least {_text(limit)} characters.",
    "maxLength": lambda limit: f"This must have at most {_text(limit)} characters.",
    "pattern": lambda pattern: f"This must match the regular expression {pattern}",
    "minItems": lambda limit: f"This must have at least {_text(limit)} items.",
    "maxItems": lambda limit: f"This must have at most {_text(limit)} items.",
    "uniqueItems": lambda _: "This must have no two equal items.",
    "minProperties": lambda limit: f"This must have at least {_text(limit)} properties.",
    "maxProperties": lambda limit: f"This must have at most {_text(limit)} properties.",
}


class Judge(Protocol):
    """What fits which part of a schema. Each answer comes with what it took to know, in units of work."""

    @property
    def subschemas(self) -> Subschemas:
        """The parts."""
        ...

    def fits(self, pointer: str, value: object) -> tuple[bool, int]:
        """Whether the value fits the subschema at the pointer."""
        ...

    def meets(self, keyword: str, argument: Any, value: object, pointer: str) -> tuple[bool, int]:
        """Whether it fits one keyword alone, which applies no subschema and stands in the subschema at the pointer."""
        ...


class _Place(NamedTuple):
    """A value, and a subschema that it must fit."""

    pointer: str
    keyword: str
    """By which keyword the subschema is applied."""
    value: Any
    path: str
    is_exact: bool
    """Whether the path leads to the value itself, and not only to the last place with a name in the schema."""


_Judgement = Callable[[_Place, dict[str, Any], Any], None]


class Explanation:
    """Finds where a value that does not fit its schema departs from it, at a cost bounded for every value and schema.

    The validator's own errors are not used: it makes them all before it gives the first, one for each way through the
    alternatives of a recursive schema, which for a few hundred bytes of arguments may take hours.
    """

    def __init__(self, judge: Judge, value: object) -> None:
        self.issues: list[ArgumentIssue] = []
        self._for_all: dict[str, _Judgement] = {
            "$ref": self._judge_reference,
            "allOf": self._judge_all_of,
            "anyOf": self._judge_any_of,
            "oneOf": self._judge_one_of,
            "not": self._judge_not,
            "if": self._judge_if,
        }
        self._for_objects: dict[str, _Judgement] = {
            "required": self._judge_required,
            "dependentRequired": self._judge_dependents,
            "dependentSchemas": self._judge_dependent_schemas,
            "dependencies": self._judge_dependent_schemas,
            "properties": self._judge_properties,
            "patternProperties": self._judge_patterns,
            "additionalProperties": self._judge_additional,
            "propertyNames": self._judge_names,
            "unevaluatedProperties": self._suspect,
        }
        self._for_arrays: dict[str, _Judgement] = {
            "prefixItems": self._judge_prefix,
            "items": self._judge_items,
            "contains": self._judge_contains,
            "unevaluatedItems": self._suspect,
        }
        self._judge_of = judge
        self._nodes = judge.subschemas.nodes
        self._work = _MOST_WORK
        self._told: set[tuple[str, str, str]] = set()
        self._suspects: list[tuple[_Place, str, str]] = []
        whole = _Place(pointer="#", keyword="schema", value=value, path="", is_exact=True)
        self._waiting = deque([whole])
        while self._waiting and self._may_go_on():
            place = self._waiting.popleft()
            self._work -= 1 + _size(place.value)
            node = self._nodes[place.pointer]
            if node is False:
                self._tell(place, place.keyword, "This must be left out.")
            elif isinstance(node, dict):
                for keyword, argument in node.items():
                    self._judge(place, node, keyword, argument)
        if not self.issues:
            self._tell(*(self._suspects[0] if self._suspects else (whole, whole.keyword, _AS_A_WHOLE)))

    def _may_go_on(self) -> bool:
        return len(self.issues) < _MOST_ISSUES and self._work > 0

    def _tell(self, place: _Place, rule: str, sentence: str) -> None:
        issue = (place.path, rule, cut(sentence))
        if issue not in self._told and len(self.issues) < _MOST_ISSUES:
            self._told.add(issue)
            self.issues.append(ArgumentIssue(path=issue[0], rule=rule, message=issue[2]))

    def _visit(self, place: _Place, *tokens: str | int, value: Any, named: str | int | None = None) -> None:
        """Has the value looked at beside the subschema that the tokens lead to, one step further at `named`."""
        path, is_exact = place.path, place.is_exact
        if named is not None and is_exact:
            longer = f"{path}/{escaped(str(named))}"
            is_exact = len(longer.encode()) <= _MOST_PATH
            path = longer if is_exact else path
        self._waiting.append(_Place(pointer_to(place.pointer, *tokens), str(tokens[0]), value, path, is_exact))

    def _fits(self, pointer: str, value: object) -> bool:
        answer, work = self._judge_of.fits(pointer, value)
        self._work -= work
        return answer

    def _meets(self, keyword: str, argument: Any, value: object, pointer: str) -> bool:
        answer, work = self._judge_of.meets(keyword, argument, value, pointer)
        self._work -= work
        return answer

    def _judge(self, place: _Place, node: dict[str, Any], keyword: str, argument: Any) -> None:
        if keyword in _SENTENCES:
            if not self._meets(keyword, argument, place.value, place.pointer):
                self._tell(place, keyword, _SENTENCES[keyword](argument))
            return
        self._work -= _size(argument)
        value = place.value
        judges = self._for_objects if isinstance(value, dict) else self._for_arrays if isinstance(value, list) else {}
        judge = self._for_all.get(keyword) or judges.get(keyword)
        if judge is not None:
            judge(place, node, argument)

    def _judge_reference(self, place: _Place, _: dict[str, Any], reference: str) -> None:
        self._waiting.append(place._replace(pointer=self._judge_of.subschemas.target(reference), keyword="$ref"))

    def _judge_all_of(self, place: _Place, _: dict[str, Any], parts: list[Any]) -> None:
        for index in range(len(parts)):
            self._visit(place, "allOf", index, value=place.value)

    def _judge_any_of(self, place: _Place, _: dict[str, Any], alternatives: list[Any]) -> None:
        self._judge_alternatives(place, "anyOf", len(alternatives))

    def _judge_one_of(self, place: _Place, _: dict[str, Any], alternatives: list[Any]) -> None:
        self._judge_alternatives(place, "oneOf", len(alternatives))

    def _judge_alternatives(self, place: _Place, keyword: str, count: int) -> None:
        pointers = [pointer_to(place.pointer, keyword, index) for index in range(count)]
        fitting = 0
        for pointer in pointers:
            if not self._may_go_on():
                return
            fitting += self._fits(pointer, place.value)
        if fitting == 1 or (fitting and keyword == "anyOf"):
            return
        meant = [pointer for pointer in pointers if self._may_be_meant(pointer, place.value)]
        if len(meant) == 1 and not fitting:
            self._waiting.append(place._replace(pointer=meant[0], keyword=keyword))
        else:
            many = "exactly one" if keyword == "oneOf" else "at least one"
            self._tell(place, keyword, f"This must fit {many} of the {count} alternatives in the schema.")

    def _may_be_meant(self, pointer: str, value: object) -> bool:
        """Whether the value has the type of an alternative, and the constants by which its objects are told apart."""
        node = self._nodes[pointer]
        while isinstance(node, dict) and "$ref" in node and "type" not in node:
            pointer = self._judge_of.subschemas.target(node["$ref"])
            node = self._nodes[pointer]
        if not isinstance(node, dict):
            return node is not False
        if "type" in node and not self._meets("type", node["type"], value, pointer):
            return False
        if not isinstance(value, dict):
            return True
        return all(
            self._meets("const", child["const"], value[name], pointer_to(pointer, "properties", name))
            for name, child in node.get("properties", {}).items()
            if name in value and isinstance(child, dict) and "const" in child
        )

    def _judge_not(self, place: _Place, _: dict[str, Any], __: Any) -> None:
        if self._fits(pointer_to(place.pointer, "not"), place.value):
            self._tell(place, "not", "This must be something that the schema does not rule out.")

    def _judge_if(self, place: _Place, node: dict[str, Any], _: Any) -> None:
        branch = "then" if self._fits(pointer_to(place.pointer, "if"), place.value) else "else"
        if branch in node:
            self._visit(place, branch, value=place.value)

    def _judge_required(self, place: _Place, _: dict[str, Any], names: list[str]) -> None:
        self._require(place, "required", names)

    def _judge_dependents(self, place: _Place, _: dict[str, Any], argument: dict[str, Any]) -> None:
        for name, names in argument.items():
            if name in place.value:
                self._require(place, "dependentRequired", names)

    def _judge_dependent_schemas(self, place: _Place, node: dict[str, Any], _: dict[str, Any]) -> None:
        for keyword in MAPS_IN_PLACE:
            for name, child in node.get(keyword, {}).items():
                if name in place.value and isinstance(child, list):
                    self._require(place, keyword, child)
                elif name in place.value:
                    self._visit(place, keyword, name, value=place.value)

    def _require(self, place: _Place, rule: str, names: list[str]) -> None:
        for name in names:
            if name not in place.value:
                self._tell(place, rule, f"The property {_text(name)} is required.")

    def _judge_properties(self, place: _Place, _: dict[str, Any], argument: dict[str, Any]) -> None:
        for name in argument:
            if name in place.value:
                self._visit(place, "properties", name, value=place.value[name], named=name)

    def _judge_patterns(self, place: _Place, _: dict[str, Any], argument: dict[str, Any]) -> None:
        for pattern in argument:
            names = [name for name in place.value if self._matches(pattern, name)]
            self._judge_unnamed(place, ("patternProperties", pattern), names)

    def _judge_additional(self, place: _Place, node: dict[str, Any], argument: Any) -> None:
        patterns, known = node.get("patternProperties", ()), node.get("properties", ())
        rest = [name for name in place.value if name not in known]
        rest = [name for name in rest if not any(self._matches(pattern, name) for pattern in patterns)]
        if argument is not False:
            self._judge_unnamed(place, ("additionalProperties",), rest)
        elif rest:
            names = ", ".join(map(_text, known)) or "none"
            sentence = f"This must have no properties beyond those of the schema: {names}."
            self._tell(place, "additionalProperties", sentence)

    def _judge_names(self, place: _Place, _: dict[str, Any], __: Any) -> None:
        pointer = pointer_to(place.pointer, "propertyNames")
        if any(not self._fits(pointer, name) for name in place.value if self._may_go_on()):
            self._tell(place, "propertyNames", "Every property must have a name that fits the schema's rule for names.")

    def _matches(self, pattern: str, name: str) -> bool:
        return self._may_go_on() and self._meets("pattern", pattern, name, "pattern:" + pattern)

    def _judge_unnamed(self, place: _Place, tokens: tuple[str, ...], names: list[str]) -> None:
        pointer = pointer_to(place.pointer, *tokens)
        found = 0
        for name in names:
            if found == _MOST_ISSUES or not self._may_go_on():
                return
            if not self._fits(pointer, place.value[name]):
                found += 1
                self._visit(place._replace(is_exact=False), *tokens, value=place.value[name])

    def _judge_prefix(self, place: _Place, _: dict[str, Any], argument: list[Any]) -> None:
        for index, item in enumerate(place.value[: len(argument)]):
            self._visit(place, "prefixItems", index, value=item, named=index)

    def _judge_items(self, place: _Place, node: dict[str, Any], _: Any) -> None:
        pointer = pointer_to(place.pointer, "items")
        first, found = len(node.get("prefixItems", ())), 0
        for index, item in enumerate(islice(place.value, first, None), first):
            if found == _MOST_ISSUES or not self._may_go_on():
                return
            if not self._fits(pointer, item):
                found += 1
                self._visit(place, "items", value=item, named=index)

    def _judge_contains(self, place: _Place, node: dict[str, Any], _: Any) -> None:
        pointer = pointer_to(place.pointer, "contains")
        least, most = node.get("minContains", 1), node.get("maxContains", len(place.value))
        count = sum(self._fits(pointer, item) for item in place.value if self._may_go_on())
        if self._may_go_on() and not least <= count <= most:
            limit = f"at least {_text(least)}" if count < least else f"at most {_text(most)}"
            self._tell(place, "contains", f"This must hold {limit} of the items that the schema describes.")

    def _suspect(self, place: _Place, node: dict[str, Any], _: Any) -> None:
        keyword = next(name for name in ("unevaluatedProperties", "unevaluatedItems") if name in node)
        self._suspects.append((place, keyword, "This must hold nothing beyond what the schema describes."))
