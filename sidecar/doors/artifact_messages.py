"""Artifacts as messages of the protocol, and back."""

import time

from google.protobuf.duration_pb2 import Duration

from sidecar._gen.pillion.v1 import artifacts_pb2 as messages
from sidecar._gen.pillion.v1.context_pb2 import Identity
from sidecar._gen.pillion.v1.outcome_pb2 import Failure, FailureKind
from sidecar.artifacts import (
    ArtifactError,
    ArtifactInput,
    ArtifactMeta,
    ArtifactNotFound,
    ArtifactsFull,
    ArtifactShape,
    ArtifactTooLarge,
    Eviction,
    InvalidArtifact,
    UploadNotFound,
)
from sidecar.artifacts.transfers import TransferRefused
from sidecar.calls.outcome import NONE, Refusal, failure
from sidecar.calls.ports import StoreUnavailable
from sidecar.scope import Principal, Scope, scope_of

_FACT_BYTES = 256
_NO_EXECUTION = ""
_INVALID = FailureKind.FAILURE_KIND_INVALID_ARGUMENTS
_KINDS: tuple[tuple[type[Exception], "FailureKind.ValueType"], ...] = (
    (ArtifactNotFound, FailureKind.FAILURE_KIND_ARTIFACT_UNAVAILABLE),
    (UploadNotFound, FailureKind.FAILURE_KIND_ARTIFACT_UNAVAILABLE),
    (InvalidArtifact, _INVALID),
    (ArtifactTooLarge, _INVALID),
    (ArtifactsFull, FailureKind.FAILURE_KIND_OVERLOADED),
    (TransferRefused, FailureKind.FAILURE_KIND_DENIED),
    (ArtifactError, FailureKind.FAILURE_KIND_INTERNAL),
)


def failure_of(error: ArtifactError | TransferRefused | StoreUnavailable | Refusal) -> Failure:
    """An error of artifacts as a failure. What it says is meant for whoever asked."""
    if isinstance(error, Refusal):
        return error.failure
    if isinstance(error, StoreUnavailable):
        return failure(FailureKind.FAILURE_KIND_UNAVAILABLE, str(error), NONE, retryable=True)
    kind = next(kind for each, kind in _KINDS if isinstance(error, each))
    return failure(kind, str(error), NONE)


def scope_from(facts: messages.ScopeFacts, principal: Principal) -> Scope:
    """The scope that a request addresses. Without a conversation, session or run it is one of the subject's own.

    :raises Refusal: if a fact is too long.
    """
    for field, value in facts.ListFields():
        if len(value.encode()) > _FACT_BYTES:
            raise Refusal(_INVALID, f"scope.{field.name} is over 256 bytes.")
    identity = Identity(conversation_id=facts.conversation_id)
    if facts.tenant:
        identity.tenant = facts.tenant
    if facts.principal:
        identity.principal = facts.principal
    return scope_of(principal, identity, facts.session_id, facts.run_id, _NO_EXECUTION)


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
        message.origin.tool_call_id = meta.origin.tool_call_id
        if meta.origin.run_id is not None:
            message.origin.run_id = meta.origin.run_id
    return message


def eviction_message(eviction: Eviction) -> messages.Eviction:
    """An artifact that gave way."""
    return messages.Eviction(
        reference=eviction.reference,
        reason=messages.EvictionReason.ValueType(eviction.reason),
        kind=eviction.kind,
        size=eviction.size,
    )


def _seconds(duration: Duration) -> float:
    return duration.seconds + duration.nanos / 1e9
