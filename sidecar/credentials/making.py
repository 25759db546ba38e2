"""Providers made of the settings. What they need is imported only where one is configured."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from sidecar.credentials.facade import Resource
from sidecar.credentials.fields import Shape
from sidecar.credentials.grant import CredentialGrant
from sidecar.credentials.port import CredentialRefused, Provider
from sidecar.credentials.secret import Secret
from sidecar.credentials.settings import (
    AuthorizationCodeSection,
    ClientCredentialsSection,
    CredentialSection,
    CredentialSettings,
    EncryptedFileSection,
    EnvironmentSection,
    MountedSection,
    StaticSection,
    TokenExchangeSection,
    VaultSection,
    needs_key,
)

if TYPE_CHECKING:
    from sidecar.credentials.authorization_code import AuthorizationCodeProvider
    from sidecar.credentials.http import Http
    from sidecar.credentials.logins import LoginFiles
    from sidecar.credentials.sealed_file import SealedFile
    from sidecar.credentials.sealing import Key
    from sidecar.credentials.token_endpoint import TokenEndpoint

_FILE = "credentials.sealed"
_LOGINS = "logins"
_OTHERS = 0o077
_MOST_BYTES = 64 * 1024
_OAUTH = (AuthorizationCodeSection, ClientCredentialsSection, TokenExchangeSection)
_OVER_HTTP = (*_OAUTH, VaultSection)
_EXTRA = "pip install 'pillion-sidecar[credentials]'"


class CredentialsRefused(Exception):
    """The settings of credentials cannot be used. The text is a sentence that says what to change."""


@dataclass(frozen=True, slots=True)
class Made:
    """What the settings make."""

    providers: Mapping[str, Provider]
    """By service."""
    resources: tuple[Resource, ...]
    """To be closed when they are no longer needed."""


class Maker:
    """Makes providers, and what else holds credentials, of the settings of one sidecar."""

    def __init__(
        self,
        settings: CredentialSettings,
        state_dir: Path,
        environment: Mapping[str, str],
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._state_dir = state_dir
        self._environment = environment
        self._clock = clock
        self._key: Key | None = None
        self._sealed_file: SealedFile | None = None
        self._http: Http | None = None

    def made(self) -> Made:
        """All providers. Blocks for a moment: it reads the key.

        :raises CredentialsRefused: if a package or the key is not there.
        """
        for sentence in lacking(self._settings):
            raise CredentialsRefused(sentence)
        providers = {section.service: self.provider(section) for section in self._settings.credential}
        return Made(providers, () if self._http is None else (self._http,))

    def provider(self, section: CredentialSection) -> Provider:
        """The provider of a section.

        :raises CredentialsRefused: as `made` does.
        """
        if isinstance(section, EnvironmentSection):
            from sidecar.credentials.environment import EnvironmentProvider

            return EnvironmentProvider(_shape(section), section.by_field, self._environment)
        if isinstance(section, MountedSection):
            from sidecar.credentials.mounted import MountedProvider

            return MountedProvider(_shape(section), section.directory, section.files)
        if isinstance(section, StaticSection):
            from sidecar.credentials.static import StaticProvider

            return StaticProvider(_shape(section), section.values)
        if isinstance(section, EncryptedFileSection):
            from sidecar.credentials.sealed_file import SealedFileProvider

            return SealedFileProvider(section.service, self.sealed_file(), clock=self._clock)
        if isinstance(section, VaultSection):
            from sidecar.credentials.vault import VaultProvider, VaultSecret

            secret = VaultSecret(section.address, section.mount, section.path, section.namespace)
            token = self._reader(section.service, "token", section.token_file, section.token_variable)
            shape, fields, remember = _shape(section), section.fields, section.remember
            return VaultProvider(shape, secret, self.http(), token, fields=fields, keeps_for=remember)
        return self._oauth(section)

    def authorization_code(self, section: AuthorizationCodeSection) -> "AuthorizationCodeProvider":
        """The provider of a section that people authorise. Raises as `made` does."""
        from sidecar.credentials.authorization_code import AuthorizationCodeProvider, AuthorizationPage
        from sidecar.credentials.consent import Consents

        page = AuthorizationPage(
            section.authorization_url,
            section.client_id,
            section.redirect_url,
            section.issuer,
            section.scopes,
            section.parameters,
        )
        consents = Consents(self.key(), clock=self._clock)
        return AuthorizationCodeProvider(
            section.service, self._endpoint(section), self.logins(), consents, page, clock=self._clock
        )

    def key(self) -> "Key":
        """The key that all is sealed with. Raises as `made` does."""
        from sidecar.credentials.sealing import Key, SealRefused

        stores = self._settings.credentials
        if self._key is None:
            try:
                if stores.key_file is not None:
                    self._key = Key.in_file(stores.key_file)
                elif stores.key_variable is not None:
                    text = self._environment.get(stores.key_variable, "")
                    self._key = Key.of(Secret(text), f"The variable {stores.key_variable}")
                else:
                    raise CredentialsRefused(
                        "There is no key to seal with; name a key_file or a key_variable in [credentials]."
                    )
            except SealRefused as refused:
                raise CredentialsRefused(str(refused)) from None
        return self._key

    def sealed_file(self) -> "SealedFile":
        """The encrypted file. Raises as `made` does."""
        from sidecar.credentials.sealed_file import SealedFile

        if self._sealed_file is None:
            self._sealed_file = SealedFile(self._settings.credentials.file or self._state_dir / _FILE, self.key())
        return self._sealed_file

    def logins(self) -> "LoginFiles":
        """The stored logins. Raises as `made` does."""
        from sidecar.credentials.logins import LoginFiles

        return LoginFiles(self._state_dir / _LOGINS, self.key())

    def http(self) -> "Http":
        """The connections to providers, one pool for all."""
        from sidecar.credentials.http import Http

        if self._http is None:
            self._http = Http(ca_file=self._settings.credentials.ca_file)
        return self._http

    def mistakes(self) -> Iterator[str]:
        """What is wrong with settings that can be read: packages, keys, files and variables. It asks no provider."""
        settings = self._settings
        found = lacking(settings)
        yield from found
        if found:
            return
        if any(map(needs_key, settings.credential)) or settings.credentials.has_key:
            try:
                self.sealed_file().entries()
            except Exception as refused:  # noqa: BLE001  # whatever it is, it is told
                yield str(refused)
        ca_file = settings.credentials.ca_file
        if ca_file is not None and not ca_file.is_file():
            yield f"The file of authorities {ca_file} is not there; name another ca_file in [credentials]."
        for section in settings.credential:
            yield from self._mistakes_in(section)

    def warnings(self) -> Iterator[str]:
        """What works, and may not be meant."""
        path = self._settings.credentials.key_file
        if path is not None and path.is_file() and path.stat().st_mode & _OTHERS:
            yield f"the key {path} can be read by other users; close it with: chmod 600 {path}"
        for section in self._settings.credential:
            if isinstance(section, StaticSection):
                yield f"the credential for {section.service} is in the settings, which is for tests alone."

    def _mistakes_in(self, section: CredentialSection) -> Iterator[str]:
        if isinstance(section, EnvironmentSection):
            unset = [name for name in section.by_field.values() if not self._environment.get(name)]
            if unset:
                yield f"The credential for {section.service} is not set: start the sidecar with {' and '.join(unset)}."
        if isinstance(section, MountedSection) and not section.directory.is_dir():
            yield f"The directory of the credential for {section.service}, {section.directory}, is not there; mount it."
        readers = []
        if isinstance(section, _OAUTH) and not section.is_public:
            readers.append(self._client_secret(section))
        if isinstance(section, VaultSection):
            readers.append(self._reader(section.service, "token", section.token_file, section.token_variable))
        if isinstance(section, TokenExchangeSection) and section.subject_token_file is not None:
            readers.append(self._reader(section.service, "subject token", section.subject_token_file, None))
        for read in readers:
            try:
                read()
            except CredentialRefused as refused:
                yield str(refused)

    def _oauth(self, section: CredentialSection) -> Provider:
        if isinstance(section, AuthorizationCodeSection):
            return self.authorization_code(section)
        if isinstance(section, ClientCredentialsSection):
            from sidecar.credentials.client_credentials import ClientCredentialsProvider

            return ClientCredentialsProvider(
                self._endpoint(section), scopes=section.scopes, parameters=section.parameters, clock=self._clock
            )
        if isinstance(section, TokenExchangeSection):
            from sidecar.credentials.token_exchange import TokenExchangeProvider

            path = section.subject_token_file
            return TokenExchangeProvider(
                section.service,
                self._endpoint(section),
                subject_token=None if path is None else self._reader(section.service, "subject token", path, None),
                subject_token_type=section.subject_token_type,
                scopes=section.scopes,
                parameters=section.parameters,
                clock=self._clock,
            )
        raise TypeError(f"There is no provider for {type(section).__name__}.")

    def _endpoint(
        self, section: AuthorizationCodeSection | ClientCredentialsSection | TokenExchangeSection
    ) -> "TokenEndpoint":
        from sidecar.credentials.token_endpoint import Client, TokenEndpoint

        secret = None if section.is_public else self._client_secret(section)
        client = Client(section.client_id, secret, section.client_auth)
        return TokenEndpoint(section.service, section.token_url, client, self.http())

    def _client_secret(
        self, section: AuthorizationCodeSection | ClientCredentialsSection | TokenExchangeSection
    ) -> Callable[[], Secret[str]]:
        return self._reader(
            section.service, "client secret", section.client_secret_file, section.client_secret_variable
        )

    def _reader(self, service: str, what: str, path: Path | None, variable: str | None) -> Callable[[], Secret[str]]:
        """Reads a secret of the sidecar's own, each time: it may be rotated."""

        def read() -> Secret[str]:
            if path is None:
                text = self._environment.get(variable or "", "")
                place = f"the variable {variable}"
            else:
                text, place = _line_in(path), str(path)
            if not text:
                raise CredentialRefused(
                    f"The {what} for {service} is not in {place}; put it there as one line of text."
                )
            return Secret(text)

        return read


def lacking(settings: CredentialSettings) -> list[str]:
    """A sentence for each package that the settings need and that is not installed."""
    sections = settings.credential
    needed = {
        "cryptography": any(map(needs_key, sections)),
        "httpx2": any(isinstance(section, _OVER_HTTP) for section in sections),
    }
    return [
        f"[[credential]] needs {package}, which is not installed: {_EXTRA}."
        for package, is_needed in needed.items()
        if is_needed and find_spec(package) is None
    ]


def unknown_grants(settings: CredentialSettings, grants: Iterable[CredentialGrant]) -> list[str]:
    """A sentence for each worker that is granted what no section is for."""
    services = {section.service for section in settings.credential}
    return [
        f"Worker {grant.worker} is granted credentials for {', '.join(sorted(unknown))}, for which there is no "
        "[[credential]]; add one, or take the grant away."
        for grant in grants
        if (unknown := grant.services - services)
    ]


def _shape(section: EnvironmentSection | MountedSection | StaticSection | VaultSection) -> Shape:
    return Shape(section.service, section.kind, section.header, section.username)


def _line_in(path: Path) -> str:
    """The one line of text that a file holds; nothing where it holds none."""
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES).decode().strip()
    except (OSError, UnicodeDecodeError):
        return ""
    return text if text.isprintable() else ""
