"""What is wrong with settings, said so that a person can mend it: where, what, and what would do."""

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError

Place = tuple[str | int, ...]
"""The way to a setting: keys, and positions in arrays of tables."""

OF_KEYS = "of_keys"
"""The type of an error about several keys of a table: its context has, as `keys`, what is wrong with each."""

_HEADER = re.compile(r"\s*(\[{1,2})\s*([^\[\]]+?)\s*\]{1,2}\s*(?:#.*)?$")
_KEY = re.compile(r"\s*([A-Za-z0-9_-]+|\"[^\"]+\")\s*(?:\.|=)")
_SAID = {
    "missing": "is required and not there",
    "string_type": "must be a text in quotes",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "tuple_type": 'must be a list, such as ["a", "b"]',
    "frozen_set_type": 'must be a list, such as ["a", "b"]',
    "path_type": "must be a path in quotes",
    "model_type": "must be a table",
    "model_attributes_type": "must be a table",
    "dataclass_type": "must be a table",
    "dict_type": "must be a table",
    "string_pattern_mismatch": "must be 1 to 64 letters, digits, hyphens and underscores",
    "too_short": "must not be empty",
}


class Mistake(NamedTuple):
    """One thing that is wrong."""

    source: str
    """The file, variable or flag it came by."""
    line: int | None
    """The line in the file, from 1, where that can be told."""
    place: Place
    message: str
    """What is wrong, and what would do."""

    def __str__(self) -> str:
        where = self.source if self.line is None else f"{self.source}:{self.line}"
        said = f"{dotted(self.place)} {self.message}" if self.place else self.message
        return f"{where}: {said}{'' if said.endswith('?') else '.'}"


def dotted(place: Place) -> str:
    """A place as people write it: `worker[2].name`."""
    text = ""
    for step in place:
        text += f"[{step + 1}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def mistakes_of(
    error: ValidationError, model: type[BaseModel], file: str, text: str, sources: Mapping[Place, str]
) -> list[Mistake]:
    """Every mistake that a check of the settings found, in order of lines. `sources`: of what is not of the file."""
    lines = Lines(text)
    found: dict[tuple[Place, str], Mistake] = {}
    for detail in error.errors():
        place = tuple(step for step in detail["loc"] if not _is_internal(step))
        several = detail["ctx"]["keys"] if detail["type"] == OF_KEYS else {None: _message(detail, model, place)}
        for key, message in several.items():
            where = (*place, key) if key is not None else place
            source = next((sources[part] for part in _around(where) if part in sources), None)
            line = lines.of(where) if source is None else None
            found.setdefault((where, message), Mistake(source or file, line, where, message))
    return sorted(found.values(), key=lambda mistake: (mistake.line is None, mistake.line or 0))


def _around(place: Place) -> Iterable[Place]:
    """A place, and what is around it, from the inside out."""
    return (place[:length] for length in range(len(place), 0, -1))


def _is_internal(step: str | int) -> bool:
    return isinstance(step, str) and step.startswith(("function-", "is-instance", "lax-or-strict", "tagged-union"))


def _message(detail: Mapping[str, Any], model: type[BaseModel], place: Place) -> str:
    kind = detail["type"]
    if kind == "extra_forbidden":
        known = _keys_beside(model, place)
        return not_a_setting(str(place[-1]), known)
    if kind == "value_error":
        return str(detail["ctx"]["error"]).rstrip(".")
    if kind in _SAID:
        return _SAID[kind]
    said = str(detail["msg"]).replace("Input should", "must")
    return said[0].lower() + said[1:]


def not_a_setting(name: str, known: Sequence[str]) -> str:
    """What is said of a key that is none of those that are known."""
    close = difflib.get_close_matches(name, known, n=1)
    return "is not a setting; " + (f"did you mean {close[0]}?" if close else f"here there are {', '.join(known)}")


def _keys_beside(model: type[BaseModel], place: Place) -> Sequence[str]:
    """The keys that the table of a place may have."""
    fields: Mapping[str, Any] = model.model_fields
    for step in place[:-1]:
        if isinstance(step, int):
            continue
        field = fields.get(step)
        inner = _model_in(field.annotation) if field is not None else None
        if inner is None:
            return ()
        fields = inner.model_fields
    return sorted(fields)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        found = _model_in(argument)
        if found is not None:
            return found
    return None


class Lines:
    """Where the settings of a TOML text are written."""

    def __init__(self, text: str) -> None:
        self._lines: dict[Place, int] = {}
        table: Place = ()
        counts: dict[Place, int] = {}
        for number, line in enumerate(text.splitlines(), 1):
            header = _HEADER.match(line)
            if header is not None:
                table = self._enter(header.group(1) == "[[", _names(header.group(2)), counts)
                self._lines.setdefault(table, number)
                continue
            key = _KEY.match(line)
            if key is not None:
                self._lines.setdefault((*table, key.group(1).strip('"')), number)

    def of(self, place: Place) -> int | None:
        """The line of a setting, else that of the nearest table around it."""
        return next((self._lines[part] for part in _around(place) if part in self._lines), None)

    @staticmethod
    def _enter(is_array: bool, names: Iterable[str], counts: dict[Place, int]) -> Place:  # noqa: FBT001  # of TOML itself
        place: Place = ()
        *outer, last = names
        for name in outer:
            place = (*place, name)
            if place in counts:
                place = (*place, counts[place])
        place = (*place, last)
        if is_array:
            counts[place] = counts.get(place, -1) + 1
            place = (*place, counts[place])
        return place


def _names(header: str) -> list[str]:
    return [name.strip().strip('"') for name in header.split(".")]
