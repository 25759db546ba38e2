"""The tools' descriptors, as a worker without an SDK presents them."""

from __future__ import annotations

import json
from typing import Any

from bench import tools
from bench.bare.stubs import TEARDOWN_SCOPE_SESSION, ToolDescriptor

_GREETING = {"name": {"type": "string"}, "count": {"type": "integer"}}
_PROPERTIES: dict[str, dict[str, Any]] = {
    tools.REPORT: _GREETING,
    tools.ECHO: _GREETING,
    tools.HELD: _GREETING,
    tools.SIGNED: _GREETING,
    tools.SINK: {"text": {"type": "string"}},
    tools.FLOOD: {"per_second": {"type": "integer"}},
    tools.BURST: {"count": {"type": "integer"}},
    tools.HOLD: {},
    tools.NEST: {"width": {"type": "integer"}, "seconds": {"type": "number"}, "watch": {"type": "integer"}},
    tools.ASK: {"count": {"type": "integer"}},
    tools.KEEP: {"count": {"type": "integer"}},
}


def descriptors(names: list[str]) -> list[ToolDescriptor]:
    """The descriptors of `names`, each with a schema that its arguments are checked against."""
    return [_descriptor(name, _PROPERTIES[name]) for name in names]


def _descriptor(name: str, properties: dict[str, Any]) -> ToolDescriptor:
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    descriptor = ToolDescriptor(
        name=name, description=f"The benchmark's {name}.", input_schema=json.dumps(schema).encode()
    )
    if name == tools.SIGNED:
        descriptor.needs.add(service=tools.SERVICE)
    if name == tools.HELD:
        descriptor.holds = TEARDOWN_SCOPE_SESSION
    return descriptor
