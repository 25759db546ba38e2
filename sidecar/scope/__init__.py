"""Whom a call is for, and how long what it opened may live."""

from sidecar.scope.scope import Scope, scope_of

__all__ = ("Scope", "scope_of")
