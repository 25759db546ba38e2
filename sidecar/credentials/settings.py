"""The sections of the settings that say where credentials come from."""

import ipaddress
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from sidecar.credentials.fields import FIELDS, SECRET_FIELD, is_header_name
from sidecar.credentials.grant import SERVICE, held_of
from sidecar.credentials.port import Kind
from sidecar.credentials.secret import Secret
from sidecar.mistakes import OF_KEYS, mistakes_of

_PATHS = ("key_file", "file", "ca_file", "directory", "client_secret_file", "subject_token_file", "token_file")
# As RFC 6749 has it.
_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")


def checked_url(text: str, danger: str) -> str:
    """An address by https, or by http on loopback. It is not quoted in refusals: there may be a password in it.

    :raises ValueError: if it is none; `danger` is what is said of one without encryption.
    """
    try:
        parts = urlsplit(text)
        host, scheme = parts.hostname or "", parts.scheme
        usable = parts.username is None and not parts.fragment and (parts.port is None or parts.port > 0)
    except ValueError:
        host, scheme, usable = "", "", False
    if not host or not usable or scheme not in ("http", "https"):
        raise ValueError("is no https address without user and fragment")
    if scheme == "http" and not _is_loopback(host):
        raise ValueError(danger)
    return text


def _url(text: str) -> str:
    """A URL that secrets may be sent to."""
    return checked_url(text, "would send secrets unencrypted; use https")


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _secret(value: Any) -> Secret[str]:
    if not isinstance(value, str):
        # Not quoted: it is one, if of a wrong type.
        raise ValueError("must be a text in quotes")  # noqa: TRY004  # pydantic takes a TypeError for a defect
    return Secret(value)


def _scope(text: str) -> str:
    if not _SCOPE.fullmatch(text):
        raise ValueError("must be scopes of OAuth, without spaces and quotes")
    return text


def _granted(word: str) -> str:
    held_of(word)
    return word


Url = Annotated[str, AfterValidator(_url)]
Scopes = tuple[Annotated[str, AfterValidator(_scope)], ...]
Granted = tuple[Annotated[str, AfterValidator(_granted)], ...]
"""What a worker may be issued, as `service`, `service:user`, or `*`."""


class CredentialSection(BaseModel):
    """Where the credentials of one service come from: a `[[credential]]`."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    service: str
    """What tools ask for."""
    provider: str

    @field_validator("service")
    @classmethod
    def _is_service(cls, name: str) -> str:
        if not SERVICE.fullmatch(name):
            raise ValueError("must be 1 to 128 letters, digits, dots, hyphens and underscores")
        return name


class _Shaped(CredentialSection):
    """A credential made of texts."""

    kind: Kind = "bearer"
    header: str | None = None
    """That carries an API key. None: `x-api-key`."""
    username: str | None = None
    """Of kind basic, where it is no secret."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.header is not None and self.kind != "api_key":
            raise ValueError("has a header, which only kind api_key has")
        if self.header is not None and not is_header_name(self.header):
            raise ValueError("has a header whose name no header has; use letters, digits and hyphens")
        if self.username is not None and self.kind != "basic":
            raise ValueError("has a username, which only kind basic has")
        return self

    def _check_fields(self, names: Mapping[str, object], what: str) -> None:
        wanted = [name for name in FIELDS[self.kind] if name != "username" or self.username is None]
        if not wanted:
            return
        if set(names) != set(wanted):
            raise ValueError(f"of kind {self.kind} takes {' and '.join(wanted)} in {what}")


class EnvironmentSection(_Shaped):
    """Variables of the sidecar."""

    provider: Literal["environment"]
    variable: str | None = None
    """The one that holds the secret."""
    variables: dict[str, str] = {}
    """By field, where there are several."""

    @property
    def by_field(self) -> Mapping[str, str]:
        """The variables, by field."""
        return {SECRET_FIELD[self.kind]: self.variable} if self.variable is not None else self.variables

    @model_validator(mode="after")
    def _named(self) -> Self:
        if (self.variable is None) == (not self.variables):
            raise ValueError("needs a variable, or variables by field, and not both")
        if self.variable is not None and self.kind not in SECRET_FIELD:
            raise ValueError(f"of kind {self.kind} takes variables by name")
        self._check_fields(self.by_field, "variables")
        return self


class MountedSection(_Shaped):
    """Files that something else mounts and rotates."""

    provider: Literal["mounted"]
    directory: Path
    files: dict[str, str] = {}
    """By field, the name of its file, where that is not the field's own."""

    @model_validator(mode="after")
    def _named(self) -> Self:
        if self.files:
            self._check_fields(self.files, "files")
        return self


class EncryptedFileSection(CredentialSection):
    """What `pillion credentials set` puts in."""

    provider: Literal["encrypted_file"]


class StaticSection(_Shaped):
    """Secrets in the settings themselves. For tests alone."""

    provider: Literal["static"]
    values: dict[str, Annotated[Secret[str], PlainValidator(_secret)]] = Field(repr=False)
    insecure: bool = False

    @model_validator(mode="after")
    def _meant(self) -> Self:
        if not self.insecure:
            raise ValueError(
                "has its secret in the settings, for whoever reads them; use another provider, or set "
                "insecure for a test"
            )
        self._check_fields(self.values, "values")
        return self


class _OAuthSection(CredentialSection):
    """A client of an OAuth 2 provider."""

    token_url: Url
    client_id: str = Field(min_length=1)
    client_secret_file: Path | None = None
    client_secret_variable: str | None = None
    client_auth: Literal["basic", "post"] = "basic"
    """How the secret is shown."""
    scopes: Scopes = ()
    """Where a tool names none."""
    parameters: dict[str, str] = {}
    """Further ones to send, such as an audience."""

    @property
    def is_public(self) -> bool:
        """Whether the client has no secret."""
        return self.client_secret_file is None and self.client_secret_variable is None

    @model_validator(mode="after")
    def _one_secret(self) -> Self:
        if self.client_secret_file is not None and self.client_secret_variable is not None:
            raise ValueError("needs a client_secret_file or a client_secret_variable, and not both")
        return self


class ClientCredentialsSection(_OAuthSection):
    """Tokens of the sidecar's own."""

    provider: Literal["client_credentials"]

    @model_validator(mode="after")
    def _has_secret(self) -> Self:
        if self.is_public:
            raise ValueError("needs a client_secret_file or a client_secret_variable")
        return self


class AuthorizationCodeSection(_OAuthSection):
    """Tokens that people authorise."""

    provider: Literal["authorization_code"]
    authorization_url: Url
    redirect_url: str = Field(min_length=1)
    """Where a person is sent back to, by the caller that sent them."""
    issuer: str | None = None
    """Who has to have answered."""

    @field_validator("redirect_url")
    @classmethod
    def _has_scheme(cls, text: str) -> str:
        try:
            usable = bool(urlsplit(text).scheme) and not urlsplit(text).fragment
        except ValueError:
            usable = False
        if not usable:
            raise ValueError("is no address; write that which the provider knows for this client")
        return text


class TokenExchangeSection(_OAuthSection):
    """Tokens for tokens."""

    provider: Literal["token_exchange"]
    subject_token_file: Path | None = None
    """That holds the sidecar's own. None: the user's, as the caller shows it."""
    subject_token_type: Literal["access_token", "jwt", "id_token"] = "jwt"  # noqa: S105  # a name of the standard


class VaultSection(_Shaped):
    """A secret in Vault or OpenBao."""

    provider: Literal["vault"]
    address: Url
    mount: str = Field(default="secret", min_length=1)
    path: str = Field(min_length=1)
    namespace: str | None = None
    token_file: Path | None = None
    token_variable: str | None = None
    fields: dict[str, str] = {}
    """By field, its name in the secret, where that is not the field's own."""
    remember: float = Field(default=60.0, gt=0, le=3600, allow_inf_nan=False)
    """How long a version is remembered, in seconds."""

    @model_validator(mode="after")
    def _one_token(self) -> Self:
        if (self.token_file is None) == (self.token_variable is None):
            raise ValueError("needs a token_file or a token_variable, and not both")
        if any(part in ("", ".", "..") for part in self.path.strip("/").split("/")):
            raise ValueError("has a path with an empty or dotted part in it")
        if self.fields:
            self._check_fields(self.fields, "fields")
        return self


_SECTIONS: Mapping[str, type[CredentialSection]] = {
    "authorization_code": AuthorizationCodeSection,
    "client_credentials": ClientCredentialsSection,
    "encrypted_file": EncryptedFileSection,
    "environment": EnvironmentSection,
    "mounted": MountedSection,
    "static": StaticSection,
    "token_exchange": TokenExchangeSection,
    "vault": VaultSection,
}


def _section_of(value: Any) -> Any:
    """The section of its provider, with every mistake told of its own key."""
    if not isinstance(value, Mapping):
        return value
    provider = value.get("provider")
    section = _SECTIONS.get(provider) if isinstance(provider, str) else None
    if section is None:
        said = f"must be one of {', '.join(_SECTIONS)}"
        raise PydanticCustomError(OF_KEYS, "{keys}", {"keys": {"provider": said}})
    try:
        return section.model_validate(dict(value))
    except ValidationError as error:
        keys: dict[str | None, str] = {}
        for mistake in mistakes_of(error, section, "", "", {}):
            first, *inner = mistake.place or (None,)
            about = "" if not inner else f"has a mistake at {inner[0]}: it " if isinstance(inner[0], str) else ""
            keys.setdefault(first if first is None else str(first), about + mistake.message)
        raise PydanticCustomError(OF_KEYS, "{keys}", {"keys": keys}) from None


class CredentialStores(BaseModel):
    """What credentials are kept with: `[credentials]`."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    key_file: Path | None = None
    """That holds the key which all is sealed with: 32 bytes in base64."""
    key_variable: str | None = None
    """The variable that does."""
    file: Path | None = None
    """The encrypted file. None: `credentials.sealed` in the state directory."""
    ca_file: Path | None = None
    """Certificates of the authorities that providers are known by. None: the system's."""

    @property
    def has_key(self) -> bool:
        """Whether there is a key."""
        return self.key_file is not None or self.key_variable is not None

    @model_validator(mode="after")
    def _one_key(self) -> Self:
        if self.key_file is not None and self.key_variable is not None:
            raise ValueError("needs a key_file or a key_variable, and not both")
        return self


class CredentialSettings(BaseModel):
    """All about credentials: a part of the settings."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    credentials: CredentialStores = CredentialStores()
    credential: tuple[Annotated[CredentialSection, BeforeValidator(_section_of)], ...] = ()

    @field_validator("credential")
    @classmethod
    def _together(cls, sections: tuple[CredentialSection, ...], info: ValidationInfo) -> tuple[CredentialSection, ...]:
        stores = info.data.get("credentials")
        wrong: dict[int, str] = {}
        for number, section in enumerate(sections):
            if section.service in [other.service for other in sections[:number]]:
                wrong[number] = f"is the second for {section.service}; leave one"
            elif needs_key(section) and isinstance(stores, CredentialStores) and not stores.has_key:
                wrong[number] = "needs a key to seal with; name a key_file or a key_variable in [credentials]"
        if wrong:
            raise PydanticCustomError(OF_KEYS, "{keys}", {"keys": wrong})
        return sections


def needs_key(section: CredentialSection) -> bool:
    """Whether it keeps something sealed."""
    return isinstance(section, EncryptedFileSection | AuthorizationCodeSection)


def anchor(values: Mapping[str, Any], directory: Path) -> None:
    """Makes the paths of a settings file those that are meant: from where the file is."""
    sections = values.get("credential")
    for table in (values.get("credentials"), *(sections if isinstance(sections, list) else ())):
        if isinstance(table, dict):
            for key in _PATHS:
                if isinstance(table.get(key), str):
                    table[key] = str(directory / table[key])
