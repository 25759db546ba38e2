"""What a tool gets of credentials: the kinds of them, and the secrets in them."""

from pillion._facts import Secret
from pillion._worker.credentials import (
    ApiKey,
    AuthorizationRequired,
    Basic,
    Bearer,
    Credential,
    CredentialMode,
    Credentials,
    Custom,
    Headers,
    SecretBytes,
)

__all__ = (
    "ApiKey",
    "AuthorizationRequired",
    "Basic",
    "Bearer",
    "Credential",
    "CredentialMode",
    "Credentials",
    "Custom",
    "Headers",
    "Secret",
    "SecretBytes",
)
