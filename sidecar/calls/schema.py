"""The JSON Schemas of tools: what is compiled at all, and what fits."""

from collections.abc import Callable
from typing import Any, Final

from jsonschema_rs import Draft202012Validator, ReferencingError, RegexOptions, Registry, ValidationError

from sidecar._gen.pillion.v1.outcome_pb2 import ArgumentIssue
from sidecar.calls.explanation import Explanation
from sidecar.calls.strict_json import JsonRefused, parse
from sidecar.calls.subschemas import Subschemas, Unusable, cut, pointer_to

_MOST_TEXT = 256 * 1024
_DOCUMENT = "urn:pillion:schema"
_REGEX_BYTES = 1024 * 1024
_ALL_REGEX_BYTES = 16 * _REGEX_BYTES
_LEAST_REGEX_BYTES = 64 * 1024
_MOST_KEPT = 256


class SchemaRefused(ValueError):
    """The schema cannot be used. Its own text is a sentence for the author of the worker, and may quote the schema."""


def _compile_sentence(rule: str, place: str, message: str) -> str:
    if rule == "format":
        return (
            f"The regular expression at {place} cannot be used: use one of linear time, without lookaround and "
            "back-references, that is not larger than it need be."
        )
    return f"The schema is not one of JSON Schema 2020-12 at {place}: {cut(message)}"


class Schema:
    """A compiled JSON Schema 2020-12. Immutable to its users; for use by one thread at a time."""

    def __init__(self, text: bytes, *, of_arguments: bool) -> None:
        """Compiles the schema `text`, which costs milliseconds where it is large, and fetches nothing.

        A schema of arguments admits objects alone, and so may leave out `type`. `format` is a note, as it is in the
        standard by default. Regular expressions are those of a linear-time engine.

        :raises SchemaRefused: if the text is over 256 KiB, is not strict JSON or not of that standard; if it is of
            arguments and not an object whose `type`, where given, is `object`; if a `$ref` leads out of it, to nothing,
            or back to itself at the same value; if it uses `$dynamicRef`, an `$id` below the top, another `$schema`, or
            a regular expression with lookaround or back-references; if checking a value might take more stack or time
            than its size accounts for.
        """
        if len(text) > _MOST_TEXT:
            raise SchemaRefused("The schema is over 256 KiB: make it smaller.")
        try:
            root: Any = parse(text)
        except JsonRefused as error:
            raise SchemaRefused(f"The schema is not strict JSON. {error}") from None
        if of_arguments:
            if not isinstance(root, dict) or root.get("type", "object") != "object":
                raise SchemaRefused('Arguments are an object: make the schema an object with "type": "object".')
            root = {"type": "object", **root}
        if not isinstance(root, dict | bool):
            raise SchemaRefused("A schema is an object, true or false.")
        try:
            self.subschemas = Subschemas(root)
            """The subschemas, for explanations."""
        except Unusable as error:
            raise SchemaRefused(str(error)) from None
        share = _ALL_REGEX_BYTES // max(1, self.subschemas.patterns)
        self._regex = RegexOptions(size_limit=min(_REGEX_BYTES, max(_LEAST_REGEX_BYTES, share)))
        try:
            self._validator = self._compiled(root)
        except ValidationError as error:
            place = cut(pointer_to("#", *error.instance_path))
            raise SchemaRefused(_compile_sentence(error.kind.name, place, error.message)) from None
        except (ReferencingError, ValueError) as error:
            raise SchemaRefused(f"The schema cannot be compiled: {cut(str(error))}") from None
        self.accepts: Callable[[object], bool] = self._validator.is_valid
        """Whether a value that `strict_json.parse` made fits; takes a fraction of a microsecond, if it is small."""
        self._registry: Registry | None = None
        self._parts: dict[tuple[str, str], Draft202012Validator] = {}

    def issues(self, value: object) -> list[ArgumentIssue]:
        """Where the value does not fit, at most 10 places; empty exactly when it fits.

        The value is one that `strict_json.parse` made.
        The issues say in the words of the schema what would fit. They quote no value, and a path ends before the first
        property that the schema does not name. The rule `schema` stands for one that would have cost too much to find.
        """
        return [] if self.accepts(value) else Explanation(self, value).issues

    def _compiled(self, schema: Any, registry: Registry | None = None) -> Draft202012Validator:
        return Draft202012Validator(
            schema, validate_formats=False, registry=registry, pattern_options=self._regex, offline=True
        )

    def fits(self, pointer: str, value: object) -> tuple[bool, int]:
        """Whether the value fits a subschema, and what it took to know, in units of work. For explanations."""
        key = (pointer, "")
        work = 1
        if key not in self._parts:
            self._registry = self._registry or Registry([(_DOCUMENT, self.subschemas.nodes["#"])])
            self._keep(key, self._compiled({"$ref": _DOCUMENT + pointer}, self._registry))
            work = 100 + len(self.subschemas.nodes)
        return self._parts[key].is_valid(value), work

    def meets(self, keyword: str, argument: Any, value: object, pointer: str) -> tuple[bool, int]:
        """The same of one keyword alone, which must apply no subschema, and stands in the subschema at the pointer."""
        key = (pointer, keyword)
        work = 1
        if key not in self._parts:
            self._keep(key, self._compiled({keyword: argument}))
            work = 20
        return self._parts[key].is_valid(value), work

    def _keep(self, key: tuple[str, str], part: Draft202012Validator) -> None:
        if len(self._parts) >= _MOST_KEPT:
            self._parts.clear()
        self._parts[key] = part


ANY_OBJECT: Final = Schema(b'{"type":"object"}', of_arguments=True)
"""The schema of the arguments of a tool that declares none: any object."""
