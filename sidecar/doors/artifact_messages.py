"""What requests about artifacts address, and how they are refused."""

from sidecar._gen.pillion.v1 import artifacts_pb2 as messages
from sidecar._gen.pillion.v1.context_pb2 import Identity
from sidecar._gen.pillion.v1.outcome_pb2 import Failure, FailureKind
from sidecar.artifacts import (
    ArtifactError,
    ArtifactNotFound,
    ArtifactsFull,
    ArtifactTooLarge,
    InvalidArtifact,
    UploadNotFound,
)
from sidecar.artifacts.transfers import TransferRefused
from sidecar.calls.outcome import NONE, Refusal, failure
from sidecar.calls.stores import StoreUnavailable
from sidecar.scope import Principal, Scope, scope_of

_FACT_BYTES = 256
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
    """The scope that a request addresses; with no place named, one of the subject's own.

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
    return scope_of(principal, identity, facts.session_id, facts.run_id, facts.execution_id)
