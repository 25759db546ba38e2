"""An artifact between its payload and its reference."""

from dataclasses import dataclass

from sidecar.artifacts.limits import ArtifactLimits
from sidecar.artifacts.port import ArtifactInput, ArtifactMeta, ArtifactShape, Origin

SECOND = 1_000_000_000
# What SQLite can keep: the year 2262.
_LAST = 2**63 - 1
_LONGEST = _LAST / SECOND


@dataclass(frozen=True, slots=True)
class Draft:
    """An artifact whose payload is declared, or whole and checked, but for what its store adds."""

    stated: ArtifactInput
    size: int
    shape: ArtifactShape
    digest: str | None
    origin: Origin | None

    def meta(self, reference: str, now: int, limits: ArtifactLimits) -> ArtifactMeta:
        """What is known of it once it has a reference. Its time is tightened to the store's, and never extended."""
        stated = self.stated
        lifetime = limits.retention if stated.expires_in is None else min(stated.expires_in, limits.retention)
        return ArtifactMeta(
            reference,
            stated.kind,
            stated.media_type,
            self.size,
            self.shape,
            now,
            min(now + int(min(lifetime, _LONGEST) * SECOND), _LAST),
            stated.label,
            self.digest,
            self.origin,
            stated.parents,
        )
