"""Owners as they are stored."""

from sidecar.scope import Owner

_NONE = "none"
_TENANT = "tenant:"


def stored(owner: Owner) -> tuple[str, str]:
    """Tenant and subject as they are stored: no tenant is another text than every tenant."""
    return (_NONE if owner.tenant is None else _TENANT + owner.tenant, owner.subject)


def read(tenant: str, subject: str) -> Owner:
    """The owner that is stored so."""
    return Owner(None if tenant == _NONE else tenant.removeprefix(_TENANT), subject)
