"""Artifacts as messages of the protocol, and back."""

import time

from google.protobuf.duration_pb2 import Duration

from sidecar._gen.pillion.v1 import artifacts_pb2 as messages
from sidecar.artifacts.port import ArtifactInput, ArtifactMeta, ArtifactShape, Eviction, InvalidArtifact, Origin


def input_from(message: messages.ArtifactInput) -> ArtifactInput:
    """What is stated about a payload. Nothing of it is checked."""
    return ArtifactInput(
        message.kind,
        message.media_type,
        message.label if message.HasField("label") else None,
        message.digest,
        message.expected_digest if message.HasField("expected_digest") else None,
        _seconds(message.expires_in) if message.HasField("expires_in") else None,
        tuple(message.parents),
    )


def shape_from(shape: "messages.ArtifactShape.ValueType") -> ArtifactShape:
    """A shape.

    :raises InvalidArtifact: if there is none of this number.
    """
    if shape == messages.ARTIFACT_SHAPE_UNSPECIFIED:
        return ArtifactShape.BYTES
    try:
        return ArtifactShape(shape)
    except ValueError:
        raise InvalidArtifact("There is no such shape; it is BYTES, TEXT or JSON.") from None


def meta_message(meta: ArtifactMeta) -> messages.ArtifactMeta:
    """What is known of an artifact."""
    message = messages.ArtifactMeta(
        reference=meta.reference,
        kind=meta.kind,
        media_type=meta.media_type,
        size=meta.size,
        shape=messages.ArtifactShape.ValueType(meta.shape),
        label=meta.label,
        digest=meta.digest,
        created_unix_nano=meta.created_at,
        parents=meta.parents,
    )
    message.expires_in.FromNanoseconds(max(meta.expires_at - time.time_ns(), 0))
    if meta.origin is not None:
        message.origin.CopyFrom(_origin_message(meta.origin))
    return message


def data_message(meta: ArtifactMeta, content: bytes) -> messages.ArtifactData:
    """The whole payload of an artifact."""
    return messages.ArtifactData(shape=messages.ArtifactShape.ValueType(meta.shape), content=content)


def eviction_message(eviction: Eviction) -> messages.Eviction:
    """An artifact that gave way."""
    return messages.Eviction(
        reference=eviction.reference,
        reason=messages.EvictionReason.ValueType(eviction.reason),
        kind=eviction.kind,
        size=eviction.size,
    )


def _origin_message(origin: Origin) -> messages.ArtifactOrigin:
    return messages.ArtifactOrigin(
        run_id=origin.run_id, tool_call_id=origin.tool_call_id, tool=origin.tool, execution_id=origin.execution_id
    )


def _seconds(duration: Duration) -> float:
    return duration.seconds + duration.nanos / 1e9
