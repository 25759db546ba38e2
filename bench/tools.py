"""The tools of the benchmark's worker: what they take and what they promise to the figures."""

from __future__ import annotations

import json
from typing import Any, Final

from bench.stubs import ToolDescriptor

REPORT: Final = "report"
ECHO: Final = "echo"
SINK: Final = "sink"
FLOOD: Final = "flood"
BURST: Final = "burst"
HOLD: Final = "hold"

ARGUMENTS: Final = {"name": "Ada", "count": 3}
"""What `report` and `echo` are called with, here and on the baselines."""

PROGRESS: Final = tuple({"progress": step, "total": 3, "message": "working"} for step in (1, 2, 3))
"""What `report` reports before its result."""

_GREETING = {"name": {"type": "string"}, "count": {"type": "integer"}}
_PROPERTIES: dict[str, tuple[str, dict[str, Any]]] = {
    REPORT: ("Reports progress three times, then returns its arguments.", _GREETING),
    ECHO: ("Returns its arguments.", _GREETING),
    SINK: ("Takes a large text and returns nothing of it.", {"text": {"type": "string"}}),
    FLOOD: ("Reports progress at a steady rate until it is cancelled.", {"per_second": {"type": "integer"}}),
    BURST: ("Reports progress as fast as it is taken, a number of times.", {"count": {"type": "integer"}}),
    HOLD: ("Reports progress once, then waits for a cancel.", {}),
}


def descriptors(names: list[str]) -> list[ToolDescriptor]:
    """The descriptors of `names`, each with a schema that its arguments are checked against."""
    return [_descriptor(name, *_PROPERTIES[name]) for name in names]


def _descriptor(name: str, description: str, properties: dict[str, Any]) -> ToolDescriptor:
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return ToolDescriptor(name=name, description=description, input_schema=json.dumps(schema).encode())
