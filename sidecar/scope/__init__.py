"""Whom a call is for, and how long what it opened may live."""

from sidecar.scope.kept import Kept, KeptInstance, KeptPin, KeptRegistration, digest_of_secret
from sidecar.scope.keys import LASTING, UNTIL_THE_STOP, ScopeKey, call_scope, lasting_scopes
from sidecar.scope.limits import ScopeLimits
from sidecar.scope.principal import Principal, local_principal
from sidecar.scope.registrations import Address, CleanupCall, Registration
from sidecar.scope.registry import Registry, ScopeEnding
from sidecar.scope.scope import Owner, Scope, scope_of

__all__ = (
    "LASTING",
    "UNTIL_THE_STOP",
    "Address",
    "CleanupCall",
    "Kept",
    "KeptInstance",
    "KeptPin",
    "KeptRegistration",
    "Owner",
    "Principal",
    "Registration",
    "Registry",
    "Scope",
    "ScopeEnding",
    "ScopeKey",
    "ScopeLimits",
    "call_scope",
    "digest_of_secret",
    "lasting_scopes",
    "local_principal",
    "scope_of",
)
