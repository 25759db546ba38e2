"""Whom a call is for, and how long what it opened may live."""

from sidecar.scope.principal import Principal, local_principal
from sidecar.scope.scope import Owner, Scope, scope_of

__all__ = ("Owner", "Principal", "Scope", "local_principal", "scope_of")
