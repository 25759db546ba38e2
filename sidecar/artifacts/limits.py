"""The bounds of artifacts."""

from dataclasses import dataclass

GIB = 1024 * 1024 * 1024
_DAY = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class ArtifactLimits:
    """Bounds of artifacts. Sizes are in bytes, times in seconds."""

    max_bytes: int = 4 * GIB
    """The largest artifact."""
    retention: float = 30 * _DAY
    """How long an artifact is kept at most; its maker may say less. Without it those of calls that named neither
    conversation, session nor run would stay for ever, though hardly anybody knows of them."""
    bytes_per_scope: int = 16 * GIB
    """What a scope may hold; beyond it the artifacts that were longest not looked at give way."""
    count_per_scope: int = 10_000
    """How many artifacts a scope may hold; beyond it they give way likewise."""
    bytes_per_subject: int = 64 * GIB
    """What a tenant's subject may have in all its scopes, open uploads with it; beyond it puts are refused."""
    bytes_per_tenant: int = 256 * GIB
    """What a tenant may have likewise. All who name no tenant are one."""
    upload_idle: float = 15 * 60.0
    """How long an upload that was left alone may be continued."""
    uploads_per_subject: int = 64
    """How many uploads a tenant's subject may have open."""
    transfers: int = 256
    """How many uploads and downloads run at once on a listener."""
