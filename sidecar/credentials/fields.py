"""Credentials made of the named texts that files, variables and stores hold."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class Shape:
    """What kind of credential the texts for a service make."""

    service: str
    kind: Kind
    header: str | None = None
    """Of an API key."""
    username: str | None = None
    """Where it is not a secret among the others."""

    @property
    def wanted(self) -> tuple[str, ...]:
        """The fields that must be there; none where there may be any."""
        return tuple(name for name in FIELDS[self.kind] if name != "username" or self.username is None)

    def credential(self, fields: Mapping[str, bytes]) -> Credential:
        """The credential that these make.

        :raises CredentialRefused: if one is missing, empty or not fit for its place. It names fields, not values.
        """
        if self.kind == "custom":
            self._some(fields)
            return Custom({name: Secret(value) for name, value in fields.items()})
        if self.kind == "headers":
            self._some(fields)
            for name in fields:
                if not is_header_name(name):
                    raise CredentialRefused(
                        f"The credential for {self.service} holds a name that no header has; use letters, digits and "
                        "hyphens."
                    )
            return Headers({name: Secret(self._text(name, value)) for name, value in fields.items()})
        missing = [name for name in self.wanted if name not in fields]
        if missing:
            raise CredentialRefused(
                f"The credential for {self.service} lacks {' and '.join(missing)}, which one of kind {self.kind} has; "
                "add it."
            )
        texts = {name: self._text(name, fields[name]) for name in self.wanted}
        if self.kind == "bearer":
            return Bearer(Secret(texts["token"]))
        if self.kind == "api_key":
            return ApiKey(Secret(texts["key"]), self.header)
        return Basic(texts["username"] if self.username is None else self.username, Secret(texts["password"]))

    def _some(self, fields: Mapping[str, bytes]) -> None:
        if not fields:
            raise CredentialRefused(
                f"The credential for {self.service} is empty; give it at least one {self.kind} value."
            )

    def _text(self, name: str, value: bytes) -> str:
        try:
            text = value.decode()
        except UnicodeDecodeError:
            text = ""
        if not _HEADER_VALUE.fullmatch(text):
            raise CredentialRefused(
                f"The {name} of the credential for {self.service} is empty, or has a line break or control character "
                "in it; store it again as one line of text."
            )
        return text


def is_header_name(name: str) -> bool:
    """Whether a header can have this name."""
    return _HEADER_NAME.fullmatch(name) is not None
