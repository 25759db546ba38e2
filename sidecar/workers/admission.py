"""Which of a worker's tools are admitted to the catalogue."""

import hashlib
import re
from collections.abc import Iterable

from sidecar._gen.pillion.v1.context_pb2 import TeardownScope
from sidecar._gen.pillion.v1.tool_pb2 import Effects, ToolDescriptor
from sidecar._gen.pillion.v1.worker_pb2 import RefusedTool
from sidecar.calls.context import LONGEST
from sidecar.calls.schema import ANY_OBJECT, Schema, SchemaRefused
from sidecar.calls.tool import Tool
from sidecar.credentials.message import NeedRefused, needs_of
from sidecar.workers.limits import WorkerLimits
from sidecar.workers.worker_set import WorkerSet

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NAME_SHOWN = 64
_DESCRIPTION_BYTES = 16_384
_TEXT_BYTES = 256
_DECLARATIONS = 16
_SERVICE_BYTES = 128
_HOLDABLE = (TeardownScope.TEARDOWN_SCOPE_RUN, TeardownScope.TEARDOWN_SCOPE_SESSION)


class ToolRefused(ValueError):
    """A tool cannot be admitted. The text is a sentence for the worker's author."""


def admit(
    descriptors: Iterable[ToolDescriptor],
    workers: WorkerSet,
    owner_of: dict[str, WorkerSet],
    limits: WorkerLimits,
) -> tuple[dict[str, Tool], list[RefusedTool]]:
    """Those that are admitted, by name, and those that are not, with the reason. One bad tool harms no other.

    `owner_of` tells which set's a listed tool is. A version that the set has already is used again.
    """
    admitted: dict[str, Tool] = {}
    refused: list[RefusedTool] = []
    for descriptor in descriptors:
        name = descriptor.name
        try:
            _check_room(name, admitted, limits)
            _check_name(name, workers, owner_of)
            admitted[name] = _version(descriptor, workers)
        except (ToolRefused, SchemaRefused) as reason:
            refused.append(RefusedTool(name=name[:_NAME_SHOWN], reason=str(reason)))
    return admitted, refused


def _check_room(name: str, admitted: dict[str, Tool], limits: WorkerLimits) -> None:
    if len(admitted) >= limits.most_tools:
        raise ToolRefused(f"A worker brings at most {limits.most_tools:,} tools.")
    if name in admitted:
        raise ToolRefused("The worker named it twice; each tool has one name.")


def _check_name(name: str, workers: WorkerSet, owner_of: dict[str, WorkerSet]) -> None:
    if not _NAME.fullmatch(name):
        raise ToolRefused("A tool's name has 1 to 64 letters, digits, underscores and hyphens.")
    if not workers.grant.permits(name):
        raise ToolRefused(f"The grant of worker {workers.name} does not hold it; add it to the worker's tools.")
    owner = owner_of.get(name)
    if owner is not None and owner is not workers:
        raise ToolRefused(f"Worker {owner.name} has a tool of this name already; rename one of them.")


def _version(descriptor: ToolDescriptor, workers: WorkerSet) -> Tool:
    digest = hashlib.sha256(descriptor.SerializeToString(deterministic=True)).digest()
    current = workers.tools.get(descriptor.name)
    if current is not None and current.digest == digest:
        return current
    _check_texts(descriptor)
    kept = ToolDescriptor()
    kept.CopyFrom(descriptor)
    if kept.effects not in (Effects.EFFECTS_READ, Effects.EFFECTS_IDEMPOTENT):
        kept.effects = Effects.EFFECTS_UNSAFE
    return Tool(
        name=kept.name,
        descriptor=kept,
        digest=digest,
        workers=workers,
        arguments=(Schema(kept.input_schema, of_arguments=True) if kept.HasField("input_schema") else ANY_OBJECT),
        result=Schema(kept.output_schema, of_arguments=False) if kept.HasField("output_schema") else None,
        effects=kept.effects,
        default_timeout=_timeout(kept, "default_timeout"),
        max_timeout=_timeout(kept, "max_timeout"),
        concurrency=_concurrency(kept),
        ceiling=kept.result_ceiling_bytes if kept.HasField("result_ceiling_bytes") else None,
        declares=tuple(name for name in ("wants", "needs") if getattr(kept, name)),
        places=kept.HasField("placement"),
        holds=kept.holds,
    )


def _check_texts(descriptor: ToolDescriptor) -> None:
    if len(descriptor.description.encode()) > _DESCRIPTION_BYTES:
        raise ToolRefused(f"Its description is over {_DESCRIPTION_BYTES:,} bytes.")
    for field in ("original_name", "title"):
        if len(getattr(descriptor, field).encode()) > _TEXT_BYTES:
            raise ToolRefused(f"Its {field} is over {_TEXT_BYTES} bytes.")
    if len(descriptor.needs) > _DECLARATIONS or len(descriptor.wants) > _DECLARATIONS:
        raise ToolRefused(f"It declares over {_DECLARATIONS} needs or wants.")
    if any(len(need.service.encode()) > _SERVICE_BYTES for need in descriptor.needs):
        raise ToolRefused(f"It needs a service whose name is over {_SERVICE_BYTES} bytes.")
    if len({need.service for need in descriptor.needs}) < len(descriptor.needs):
        raise ToolRefused("It needs two credentials of one service.")
    try:
        needs_of(descriptor.needs)
    except NeedRefused as reason:
        raise ToolRefused(f"It declares needs that cannot be met: {reason}") from None
    if descriptor.HasField("placement") and not descriptor.placement.over_bytes:
        raise ToolRefused("Its placement must start at a positive number of bytes.")
    if descriptor.holds and descriptor.holds not in _HOLDABLE:
        raise ToolRefused("A tool holds RUN, SESSION or nothing.")


def _timeout(descriptor: ToolDescriptor, field: str) -> float | None:
    if not descriptor.HasField(field):  # type: ignore[arg-type]  # one of two literal names
        return None
    duration = getattr(descriptor, field)
    seconds: float = duration.seconds + duration.nanos / 1e9
    if seconds <= 0:
        raise ToolRefused(f"Its {field} must be positive.")
    return min(seconds, LONGEST)


def _concurrency(descriptor: ToolDescriptor) -> int | None:
    if not descriptor.HasField("concurrency"):
        return None
    if not descriptor.concurrency:
        raise ToolRefused("Its concurrency must be positive.")
    return descriptor.concurrency
