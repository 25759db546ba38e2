"""The subschemas of a JSON Schema: where they are, which applies which, and what is refused before it can run away."""

from collections import defaultdict
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

DIALECT = "https://json-schema.org/draft/2020-12/schema"
MAPS_IN_PLACE = ("dependentSchemas", "dependencies")
"""Keywords whose subschemas depend on a name. The second is of an older standard; the validator still applies it."""

_MOST_BYTES = 256
# The validator recurses on the machine's stack, once for each step within one value, at each of at most 128 levels of
# the value. It overflows beyond some 60,000 steps in all.
_MOST_STEPS = 64
# How often one subschema may look at one value. The validator remembers what it has found only within recursion.
_MOST_VISITS = 10_000

_IN_PLACE = ("not", "if", "then", "else")
_BELOW = ("items", "contains", "additionalProperties", "propertyNames", "unevaluatedItems", "unevaluatedProperties")
_SHELVES = ("$defs", "definitions")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_MAPS = ("properties", "patternProperties", *MAPS_IN_PLACE, *_SHELVES)
_ANYWHERE = ""


class Unusable(ValueError):
    """The subschemas would run away, or lead elsewhere. Its own text is a sentence for the author of the schema."""


class _Edge(NamedTuple):
    """One subschema that another applies: at the same value where `place` is `None`, else to what is at that place."""

    place: str | None
    keyword: str
    target: str


def pointer_to(pointer: str, *tokens: str | int) -> str:
    """The pointer, as a fragment of a URI, of what the tokens lead to from `pointer`."""
    for token in tokens:
        name = str(token)
        pointer += "/" + (name if name.isascii() and name.isalnum() else quote(escaped(name), safe="$"))
    return pointer


def escaped(name: str) -> str:
    """The name as a token of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def _plain(token: str) -> str:
    return token.replace("~1", "/").replace("~0", "~")


def _has_text(node: object, keyword: str) -> bool:
    return isinstance(node, dict) and isinstance(node.get(keyword), str)


def cut(text: str) -> str:
    """The text in at most 256 bytes of UTF-8."""
    encoded = text.encode()
    return text if len(encoded) <= _MOST_BYTES else encoded[: _MOST_BYTES - 3].decode(errors="ignore") + "…"


def _written(pointer: str, node: dict[str, Any]) -> Iterator[tuple[str, str | None, str, Any]]:
    """The subschemas written directly inside one: keyword, place as in `_Edge`, pointer and subschema."""
    for keyword, value in node.items():
        if keyword in _IN_PLACE:
            yield keyword, None, pointer_to(pointer, keyword), value
        elif keyword in _BELOW:
            yield keyword, _ANYWHERE, pointer_to(pointer, keyword), value
        elif keyword in _LISTS and isinstance(value, list):
            for index, child in enumerate(value):
                yield (
                    keyword,
                    str(index) if keyword == "prefixItems" else None,
                    pointer_to(pointer, keyword, index),
                    child,
                )
        elif keyword in _MAPS and isinstance(value, dict):
            for name, child in value.items():
                place = name if keyword == "properties" else None if keyword in MAPS_IN_PLACE else _ANYWHERE
                yield keyword, place, pointer_to(pointer, keyword, name), child


class Subschemas:
    """The subschemas of one document by their pointers, and which applies which. Refuses what would run away."""

    def __init__(self, root: object) -> None:
        self.nodes: dict[str, Any] = {}
        self.edges: dict[str, list[_Edge]] = {}
        self.patterns = 0
        self._root = root
        self._anchors: dict[str, str] = {}
        self._add("#", root)
        references = {pointer: node["$ref"] for pointer, node in self.nodes.items() if _has_text(node, "$ref")}
        while references:
            pointer, reference = references.popitem()
            target = self.target(reference)
            self.edges[pointer].append(_Edge(None, "$ref", target))
            if target not in self.nodes:  # it names a place where no subschema is expected
                self._add(target, self._at(target), references)
        self._refuse_runaways()

    def target(self, reference: str) -> str:
        """The pointer of what a `$ref` names, spelt as `nodes` has it."""
        if not reference.startswith("#"):
            raise Unusable(f"$ref {cut(reference)} leads out of the schema: copy what it names into $defs.")
        fragment = unquote(reference[1:])
        if not fragment:
            return "#"
        if fragment.startswith("/"):
            return pointer_to("#", *(_plain(token) for token in fragment[1:].split("/")))
        if fragment not in self._anchors:
            raise Unusable(f"$ref {cut(reference)} names nothing: give what it should name that $anchor.")
        return self._anchors[fragment]

    def _at(self, pointer: str) -> Any:
        node: Any = self._root
        for token in pointer.split("/")[1:]:
            name = _plain(unquote(token))
            try:
                node = node[int(name) if isinstance(node, list) else name]
            except (LookupError, TypeError, ValueError):
                raise Unusable(f"$ref {cut(pointer)} names nothing: point it at a part of the schema.") from None
        return node

    def _add(self, pointer: str, node: Any, references: dict[str, str] | None = None) -> None:
        waiting = [(pointer, node)]
        while waiting:
            pointer, node = waiting.pop()
            if pointer in self.nodes:
                continue
            self.nodes[pointer] = node
            self.edges[pointer] = []
            if not isinstance(node, dict):
                continue
            self._read(pointer, node)
            if references is not None and _has_text(node, "$ref"):
                references[pointer] = node["$ref"]
            for keyword, place, below, child in _written(pointer, node):
                waiting.append((below, child))
                if keyword not in _SHELVES:
                    self.edges[pointer].append(_Edge(place, keyword, below))

    def _read(self, pointer: str, node: dict[str, Any]) -> None:
        """Notes anchors and patterns, and refuses what would change what the rest of the schema means."""
        if node.get("$schema", DIALECT) not in (DIALECT, DIALECT + "#"):
            raise Unusable(f"$schema must be {DIALECT} or be left out: other dialects are not read.")
        if pointer != "#" and "$id" in node:
            raise Unusable(f"$id at {cut(pointer)} begins a schema inside the schema: use $defs and $anchor.")
        if "$dynamicRef" in node:
            raise Unusable(f"$dynamicRef at {cut(pointer)} is not read: use $ref.")
        for word in ("$anchor", "$dynamicAnchor"):
            if _has_text(node, word):
                self._anchors[node[word]] = pointer
        patterns = node.get("patternProperties")
        self.patterns += ("pattern" in node) + (len(patterns) if isinstance(patterns, dict) else 0)

    def _refuse_runaways(self) -> None:
        applied: dict[str, list[str]] = {p: [e.target for e in edges] for p, edges in self.edges.items()}
        in_place = {p: [e.target for e in edges if e.place is None] for p, edges in self.edges.items()}
        steps: dict[str, int] = {}
        try:
            for pointer in TopologicalSorter(in_place).static_order():
                steps[pointer] = 1 + max((steps[target] for target in in_place[pointer]), default=0)
        except CycleError as error:
            raise Unusable(
                f"The schema applies {cut(error.args[1][0])} to a value because it applies it to that value: "
                "let a $ref to itself pass through properties or items."
            ) from None
        if max(steps.values()) > _MOST_STEPS:
            raise Unusable(f"References and combinations lead on more than {_MOST_STEPS} steps: nest fewer of them.")
        self._refuse_floods(_components(applied))

    def _refuse_floods(self, component: dict[str, int]) -> None:
        """Counts by how many ways each subschema may come to one and the same value, recursion left aside."""
        arriving: dict[str, list[tuple[str | None, str]]] = defaultdict(list)
        before: dict[str, set[str]] = {pointer: set() for pointer in self.edges}
        for pointer, edges in self.edges.items():
            for edge in edges:
                if component[pointer] != component[edge.target]:
                    arriving[edge.target].append((edge.place, pointer))
                    before[edge.target].add(pointer)
        visits: dict[str, int] = {}
        for pointer in TopologicalSorter(before).static_order():
            places: dict[str | None, int] = defaultdict(int)
            for place, origin in arriving[pointer]:
                places[place] += visits[origin]
            same, anywhere = places.pop(None, 0), places.pop(_ANYWHERE, 0)
            visits[pointer] = max(1, same + anywhere + max(places.values(), default=0))
            if visits[pointer] > _MOST_VISITS:
                raise Unusable(
                    f"The schema would apply {cut(pointer)} to one value more than {_MOST_VISITS:,} times: "
                    "refer to it from fewer combinations."
                )


def _components(edges: dict[str, list[str]]) -> dict[str, int]:
    """For each subschema a number that it shares with exactly those it is in a recursion with."""
    order: list[str] = []
    seen: set[str] = set()
    for start in edges:
        stack = [(start, False)]
        while stack:
            pointer, is_left = stack.pop()
            if is_left:
                order.append(pointer)
            elif pointer not in seen:
                seen.add(pointer)
                stack.append((pointer, True))
                stack.extend((target, False) for target in edges[pointer])
    back: dict[str, list[str]] = defaultdict(list)
    for pointer, targets in edges.items():
        for target in targets:
            back[target].append(pointer)
    component: dict[str, int] = {}
    for number, start in enumerate(reversed(order)):
        reached = [start]
        while reached:
            pointer = reached.pop()
            if pointer not in component:
                component[pointer] = number
                reached.extend(back[pointer])
    return component
