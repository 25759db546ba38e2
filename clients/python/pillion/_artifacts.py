"""What is known of an artifact."""

import enum
from dataclasses import dataclass

from pillion._facts import seconds_of
from pillion._gen.pillion.v1 import artifacts_pb2


class ArtifactShape(enum.IntEnum):
    """In which shape an artifact was put, and is got back."""

    BYTES = 1
    TEXT = 2
    JSON = 3


@dataclass(frozen=True, slots=True)
class ArtifactOrigin:
    """Which call made an artifact. Stamped by the sidecar."""

    run_id: str | None
    tool_call_id: str | None
    tool: str | None
    execution_id: str | None


@dataclass(frozen=True, slots=True)
class ArtifactMeta:
    """What the store knows of an artifact. What is `None` is not there."""

    reference: str
    """`art_` and 22 characters. It opens nothing outside its scope."""
    kind: str
    media_type: str
    size: int
    """Bytes."""
    shape: ArtifactShape
    label: str | None
    digest: str | None
    expires_in: float | None
    """Seconds until it expires, when this was read."""
    created_unix_nano: int
    origin: ArtifactOrigin | None
    parents: tuple[str, ...]


def read_meta(meta: artifacts_pb2.ArtifactMeta) -> ArtifactMeta:
    """The same from a message."""
    origin = None
    if meta.HasField("origin"):
        origin = ArtifactOrigin(
            meta.origin.run_id if meta.origin.HasField("run_id") else None,
            meta.origin.tool_call_id if meta.origin.HasField("tool_call_id") else None,
            meta.origin.tool if meta.origin.HasField("tool") else None,
            meta.origin.execution_id if meta.origin.HasField("execution_id") else None,
        )
    return ArtifactMeta(
        meta.reference,
        meta.kind,
        meta.media_type,
        meta.size,
        ArtifactShape(meta.shape) if meta.shape in (1, 2, 3) else ArtifactShape.BYTES,
        meta.label if meta.HasField("label") else None,
        meta.digest if meta.HasField("digest") else None,
        seconds_of(meta.expires_in) if meta.HasField("expires_in") else None,
        meta.created_unix_nano,
        origin,
        tuple(meta.parents),
    )
