"""Who gives way to a new artifact, the same for every store."""

from collections.abc import Iterable
from typing import NamedTuple

from sidecar.artifacts.limits import ArtifactLimits
from sidecar.artifacts.port import ArtifactsFull, Eviction, EvictionReason


class Totals(NamedTuple):
    """What is stored, in bytes and, of the scope, in number."""

    scope_count: int = 0
    scope_bytes: int = 0
    subject_bytes: int = 0
    tenant_bytes: int = 0


class Held(NamedTuple):
    """An artifact that may have to give way."""

    reference: str
    kind: str
    size: int


def make_room(size: int, totals: Totals, coldest: Iterable[Held], limits: ArtifactLimits) -> list[Eviction]:
    """What gives way to a payload of this size: first for the number of artifacts in the scope, then for their bytes.

    `totals` are those without expired ones; `coldest` are the scope's artifacts, the one that was longest not looked at
    first. Nothing outside the scope ever gives way.

    :raises ArtifactsFull: if the subject or its tenant would have too much all the same.
    """
    evicted = []
    count, held = totals.scope_count, totals.scope_bytes
    for reference, kind, freed in coldest:
        if count >= limits.count_per_scope:
            reason = EvictionReason.COUNT
        elif held + size > limits.bytes_per_scope:
            reason = EvictionReason.BYTES
        else:
            break
        evicted.append(Eviction(reference, reason, kind, freed))
        count -= 1
        held -= freed
    check_totals(size - (totals.scope_bytes - held), totals, limits)
    return evicted


def check_totals(growth: int, totals: Totals, limits: ArtifactLimits) -> None:
    """Checks that subject and tenant may have so many bytes more.

    :raises ArtifactsFull: if not.
    """
    if totals.subject_bytes + growth > limits.bytes_per_subject:
        raise ArtifactsFull(
            f"The subject's artifacts would be over the {limits.bytes_per_subject:,} bytes that it may have; "
            "delete some, or let some expire."
        )
    if totals.tenant_bytes + growth > limits.bytes_per_tenant:
        raise ArtifactsFull(
            f"The tenant's artifacts would be over the {limits.bytes_per_tenant:,} bytes that it may have; "
            "delete some, or let some expire."
        )
