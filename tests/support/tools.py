"""Tools as workers declare them, and JSON as peers send it."""

import json
from typing import Any

from google.protobuf.duration_pb2 import Duration

from sidecar._gen.pillion.v1.tool_pb2 import Effects, ToolDescriptor

READ = Effects.EFFECTS_READ
IDEMPOTENT = Effects.EFFECTS_IDEMPOTENT
UNSAFE = Effects.EFFECTS_UNSAFE


def tool(
    name: str = "echo",
    *,
    effects: "Effects.ValueType" = Effects.EFFECTS_UNSPECIFIED,
    input_schema: Any = None,
    output_schema: Any = None,
    default_timeout: float | None = None,
    max_timeout: float | None = None,
    **fields: Any,
) -> ToolDescriptor:
    """A descriptor. Schemas are values, timeouts are seconds; other fields are as in the proto."""
    descriptor = ToolDescriptor(name=name, description="A tool of the tests.", effects=effects, **fields)
    if input_schema is not None:
        descriptor.input_schema = text(input_schema)
    if output_schema is not None:
        descriptor.output_schema = text(output_schema)
    if default_timeout is not None:
        descriptor.default_timeout.CopyFrom(seconds(default_timeout))
    if max_timeout is not None:
        descriptor.max_timeout.CopyFrom(seconds(max_timeout))
    return descriptor


def seconds(number: float) -> Duration:
    """A duration."""
    duration = Duration()
    duration.FromNanoseconds(round(number * 1e9))
    return duration


def text(value: Any) -> bytes:
    """A JSON text: bytes as they are, anything else encoded."""
    return value if isinstance(value, bytes) else json.dumps(value).encode()
