"""What a sidecar says of its tools and of itself."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pillion import _json
from pillion._facts import Effects, seconds_of
from pillion._gen.pillion.v1.execute_pb2 import GetInfoResponse
from pillion._gen.pillion.v1.tool_pb2 import ToolDescriptor


@dataclass(frozen=True, slots=True)
class ToolAnnotations:
    """Hints on a tool, as MCP has them. Never trusted; `None` is not stated."""

    read_only: bool | None = None
    destructive: bool | None = None
    idempotent: bool | None = None
    open_world: bool | None = None


@dataclass(frozen=True, slots=True)
class ToolInfo:
    """A tool that may be called. What is `None` is not declared."""

    name: str
    title: str | None
    description: str
    input_schema: Any
    """JSON Schema 2020-12 of the arguments; `None` is any object."""
    output_schema: Any
    """JSON Schema 2020-12 of the value; `None` is any."""
    effects: Effects
    annotations: ToolAnnotations | None
    original_name: str | None
    default_timeout: float | None
    max_timeout: float | None
    wants: Mapping[str, str]
    """Arguments that are references to artifacts, and the kind of each."""


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools that this caller may call, at one time."""

    generation: int
    """Grows with every change."""
    by_name: Mapping[str, ToolInfo]


@dataclass(frozen=True, slots=True)
class HostLimits:
    """What a caller may send."""

    max_frame_bytes: int
    max_inline_bytes: int
    max_message_bytes: int
    max_in_flight: int


@dataclass(frozen=True, slots=True)
class HostInfo:
    """What a sidecar is and can do."""

    version: str
    instance_id: str
    """The id of its process."""
    oldest_protocol: tuple[int, int]
    newest_protocol: tuple[int, int]
    limits: HostLimits
    features: frozenset[str]
    """What is not always there, and is here: `artifacts`."""
    caller_principal: str | None
    """Who the connection proves this caller to be; `None` if it proves nothing."""
    uptime: float
    """Seconds."""
    counters: Mapping[str, int]
    """What it has counted since its start; empty where it is not told."""


def read_tool(descriptor: ToolDescriptor) -> ToolInfo:
    """The same from a message."""
    annotations = None
    if descriptor.HasField("annotations"):
        hints = descriptor.annotations
        annotations = ToolAnnotations(
            hints.read_only if hints.HasField("read_only") else None,
            hints.destructive if hints.HasField("destructive") else None,
            hints.idempotent if hints.HasField("idempotent") else None,
            hints.open_world if hints.HasField("open_world") else None,
        )
    has = descriptor.HasField
    return ToolInfo(
        name=descriptor.name,
        title=descriptor.title if has("title") else None,
        description=descriptor.description,
        input_schema=_json.decode(descriptor.input_schema) if has("input_schema") else None,
        output_schema=_json.decode(descriptor.output_schema) if has("output_schema") else None,
        effects=Effects(descriptor.effects) if descriptor.effects in (1, 2) else Effects.UNSAFE,
        annotations=annotations,
        original_name=descriptor.original_name if has("original_name") else None,
        default_timeout=seconds_of(descriptor.default_timeout) if has("default_timeout") else None,
        max_timeout=seconds_of(descriptor.max_timeout) if has("max_timeout") else None,
        wants=dict(descriptor.wants),
    )


def read_info(info: GetInfoResponse) -> HostInfo:
    """The same from a message."""
    limits = info.limits
    return HostInfo(
        version=info.version,
        instance_id=info.instance_id,
        oldest_protocol=(info.minimum.major, info.minimum.minor),
        newest_protocol=(info.maximum.major, info.maximum.minor),
        limits=HostLimits(
            limits.max_frame_bytes, limits.max_inline_bytes, limits.max_message_bytes, limits.max_in_flight
        ),
        features=frozenset(info.features),
        caller_principal=info.caller_principal if info.HasField("caller_principal") else None,
        uptime=seconds_of(info.uptime),
        counters=dict(info.counters),
    )
