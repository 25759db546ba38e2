"""Tenants and subjects as they are stored: no tenant is another text than every tenant."""

from sidecar.scope import Owner

_NONE = "none"
_TENANT = "tenant:"


def stored(owner: Owner) -> tuple[str, str]:
    """The two texts of a tenant's subject."""
    return _NONE if owner.tenant is None else _TENANT + owner.tenant, owner.subject


def owner_of(tenant: str, subject: str) -> Owner:
    """The tenant's subject that was stored as these."""
    return Owner(None if tenant == _NONE else tenant.removeprefix(_TENANT), subject)
