"""Credentials made of the named texts that files, variables and stores hold."""

import re
from collections.abc import Mapping

from sidecar.credentials.port import (
    ApiKey,
    Basic,
    Bearer,
    Credential,
    CredentialRefused,
    Custom,
    Headers,
    Kind,
)
from sidecar.credentials.secret import Secret

FIELDS: Mapping[Kind, tuple[str, ...]] = {
    "bearer": ("token",),
    "api_key": ("key",),
    "basic": ("username", "password"),
    "headers": (),
    "custom": (),
}
"""By kind: what must be there. Headers and custom values have whatever names there are."""
SECRET_FIELD: Mapping[Kind, str] = {"bearer": "token", "api_key": "key", "basic": "password"}
"""By kind: its one secret, where it has one."""

# What may stand in a header: no line break, which would begin another one, and no other control character.
_HEADER_VALUE = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f]+")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}")


def credential_of(service: str, kind: Kind, fields: Mapping[str, bytes], *, header: str | None = None) -> Credential:
    """The credential that these make. `header`: of an API key.

    :raises CredentialRefused: if one is missing, empty or not fit for its place. The text names fields, not values.
    """
    if kind == "custom":
        if not fields:
            raise CredentialRefused(f"The credential for {service} holds no values; give it at least one.")
        return Custom({name: Secret(value) for name, value in fields.items()})
    if kind == "headers":
        if not fields:
            raise CredentialRefused(f"The credential for {service} holds no headers; give it at least one.")
        for name in fields:
            if not is_header_name(name):
                raise CredentialRefused(
                    f"The credential for {service} holds a name that no header has; use letters, digits and hyphens."
                )
        return Headers({name: Secret(_text(service, name, value)) for name, value in fields.items()})
    missing = [name for name in FIELDS[kind] if name not in fields]
    if missing:
        raise CredentialRefused(
            f"The credential for {service} lacks {' and '.join(missing)}, which one of kind {kind} has; add it."
        )
    texts = {name: _text(service, name, fields[name]) for name in FIELDS[kind]}
    if kind == "bearer":
        return Bearer(Secret(texts["token"]))
    if kind == "api_key":
        return ApiKey(Secret(texts["key"]), header)
    return Basic(texts["username"], Secret(texts["password"]))


def is_header_name(name: str) -> bool:
    """Whether a header can have this name."""
    return _HEADER_NAME.fullmatch(name) is not None


def _text(service: str, name: str, value: bytes) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = ""
    if not _HEADER_VALUE.fullmatch(text):
        raise CredentialRefused(
            f"The {name} of the credential for {service} is empty, or has a line break or control character in it; "
            "store it again as one line of text."
        )
    return text
