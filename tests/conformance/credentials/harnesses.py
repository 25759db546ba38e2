"""Every provider with a source of its own, new for each case."""

import asyncio
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from sidecar.credentials.authorization_code import AuthorizationCodeProvider, AuthorizationPage
from sidecar.credentials.client_credentials import ClientCredentialsProvider
from sidecar.credentials.consent import Consents
from sidecar.credentials.environment import EnvironmentProvider
from sidecar.credentials.fields import Shape
from sidecar.credentials.http import Http
from sidecar.credentials.logins import LoginFiles
from sidecar.credentials.mounted import MountedProvider
from sidecar.credentials.port import AuthorizationRequired, Mode, Need, Provider, Request
from sidecar.credentials.sealed_file import Entry, SealedFile, SealedFileProvider
from sidecar.credentials.sealing import Key
from sidecar.credentials.secret import Secret
from sidecar.credentials.static import StaticProvider
from sidecar.credentials.token_endpoint import Client, TokenEndpoint
from sidecar.credentials.token_exchange import TokenExchangeProvider
from sidecar.credentials.vault import VaultProvider, VaultSecret
from tests.support.http_stand_in import Answered
from tests.support.oauth_stand_in import CLIENT, CLIENT_SECRET, OAuthStandIn
from tests.support.people import Clock, Person
from tests.support.vault_stand_in import TOKEN, VaultStandIn

SERVICE = "service"
BEARER = Shape(SERVICE, "bearer")
SCOPES = ("read", "write")
KEY = Key(Secret(b"k" * 32))

ASKED_EACH_TIME = "It is asked each time, and remembers nothing."
NO_EXPIRY = "What it holds says nothing of an expiry."
ALWAYS_THERE = "It cannot fail in a way that passes by itself."


class Harness:
    """One provider and its source. Its hooks act on the source, and not on the provider."""

    name: ClassVar[str]
    mode: ClassVar[Mode] = Mode.MACHINE
    shared: ClassVar[bool] = True
    """Whether everybody is issued the same."""
    declared: ClassVar[Mapping[str, str]] = {}
    """Laws that it does not keep, with why."""

    def __init__(self, directory: Path, clock: Clock) -> None:
        self.directory = directory
        self.clock = clock
        self.need = Need(SERVICE, (), self.mode)
        self.numbers = itertools.count(1)
        self.values: dict[str, list[str]] = {}
        """What was put in for each person, oldest first."""

    async def open(self) -> None:
        """Starts the source."""

    async def aclose(self) -> None:
        """Ends it."""

    def provider(self) -> Provider:
        """The provider, as a new process would make it."""
        raise NotImplementedError

    async def supply(self, person: Person) -> None:
        """Sees to it that there is a credential for the person; again: another one than before."""
        value = f"canary-{'all' if self.shared else person.name}-{next(self.numbers):04}"
        self.values.setdefault("all" if self.shared else person.name, []).append(value)
        await self.put(person, value)

    async def put(self, person: Person, value: str) -> None:
        """Puts a credential in."""

    async def take_away(self, person: Person) -> None:
        """Sees to it that there is none any more."""
        raise NotImplementedError

    async def fail(self) -> None:
        """Makes the source fail."""
        raise NotImplementedError

    async def mend(self) -> None:
        """Makes it work again."""
        raise NotImplementedError

    def asked(self) -> int:
        """How often the source was asked."""
        raise NotImplementedError

    def user_token(self, person: Person) -> Secret[str] | None:
        """What the caller proved the user by."""
        return None

    def belongs(self, value: str, person: Person) -> bool:
        """Whether the value is one that this person was to get."""
        return value in self.values.get("all" if self.shared else person.name, ())


class Environment(Harness):
    name = "environment"
    declared: ClassVar[Mapping[str, str]] = {
        "many at once make one question": ASKED_EACH_TIME,
        "a good credential is remembered": ASKED_EACH_TIME,
        "nothing remembered is shared": ASKED_EACH_TIME,
        "expiry is told in seconds of the wall clock": NO_EXPIRY,
        "an expired credential is not issued": NO_EXPIRY,
        "a source that fails says that it may pass": ALWAYS_THERE,
        "a source that fails for a while does no harm": ALWAYS_THERE,
    }

    def provider(self) -> Provider:
        return EnvironmentProvider(BEARER, {"token": "SERVICE_TOKEN"}, self._environment)

    async def open(self) -> None:
        self._environment: dict[str, str] = {}

    async def put(self, person: Person, value: str) -> None:
        self._environment["SERVICE_TOKEN"] = value

    async def take_away(self, person: Person) -> None:
        del self._environment["SERVICE_TOKEN"]


class Static(Harness):
    name = "static"
    declared: ClassVar[Mapping[str, str]] = {
        **Environment.declared,
        "a mode that it has not is refused before it is asked": "It issues the same in both.",
        "a new credential is issued where it is forced": "What the settings say stays until they are read again.",
        "what is taken away is refused": "What the settings say stays until they are read again.",
    }

    def provider(self) -> Provider:
        return StaticProvider(BEARER, {"token": Secret(self.values["all"][0])})


class Mounted(Harness):
    """As Kubernetes lays them: a link for each file, through a link to the version, which is swapped."""

    name = "mounted"
    declared: ClassVar[Mapping[str, str]] = {
        name: reason
        for name, reason in Environment.declared.items()
        if name not in ("a source that fails for a while does no harm", "a source that fails says that it may pass")
    }

    async def open(self) -> None:
        self._mount = self.directory / "mount"
        self._mount.mkdir()

    def provider(self) -> Provider:
        return MountedProvider(BEARER, self._mount)

    async def put(self, person: Person, value: str) -> None:
        version = self._mount / f"..version{next(self.numbers)}"
        version.mkdir()
        (version / "token").write_text(value + "\n")
        link = self._mount / "..new"
        link.symlink_to(version.name)
        link.replace(self._mount / "..data")
        token = self._mount / "token"
        if not token.is_symlink():
            token.symlink_to("..data/token")

    async def take_away(self, person: Person) -> None:
        (self._mount / "..data" / "token").unlink()

    async def fail(self) -> None:
        self._mount.rename(self.directory / "gone")

    async def mend(self) -> None:
        (self.directory / "gone").rename(self._mount)


class MachineFile(Harness):
    name = "encrypted file"
    declared: ClassVar[Mapping[str, str]] = {
        name: reason
        for name, reason in Environment.declared.items()
        if name
        not in (
            "a source that fails for a while does no harm",
            "expiry is told in seconds of the wall clock",
            "an expired credential is not issued",
        )
    }

    async def open(self) -> None:
        self._file = SealedFile(self.directory / "credentials.sealed", KEY)

    def provider(self) -> Provider:
        file = SealedFile(self.directory / "credentials.sealed", KEY)
        return SealedFileProvider(SERVICE, file, clock=self.clock)

    async def put(self, person: Person, value: str) -> None:
        owner = None if self.mode is Mode.MACHINE else person.scope.owner
        fields = {"token": Secret(value.encode())}
        entry = Entry(SERVICE, owner, "bearer", fields, expires_at=self.clock() + 3600)
        await asyncio.to_thread(self._file.put, entry)

    async def take_away(self, person: Person) -> None:
        owner = None if self.mode is Mode.MACHINE else person.scope.owner
        await asyncio.to_thread(self._file.remove, SERVICE, owner)

    async def fail(self) -> None:
        self._kept = self._file.path.read_bytes()
        self._file.path.write_bytes(self._kept[:-1] + b"?")

    async def mend(self) -> None:
        self._file.path.write_bytes(self._kept)


class UserFile(MachineFile):
    name = "encrypted file, of users"
    mode = Mode.USER
    shared = False


class _OAuth(Harness):
    async def open(self) -> None:
        self.http = Http()
        self.source = OAuthStandIn()
        await self.source.open()

    async def aclose(self) -> None:
        await self.http.aclose()
        await self.source.aclose()

    @property
    def url(self) -> str:
        """Of the provider."""
        return self.source.url

    def endpoint(self) -> TokenEndpoint:
        client = Client(CLIENT, lambda: Secret(CLIENT_SECRET))
        return TokenEndpoint(SERVICE, f"{self.url}/token", client, self.http)

    async def supply(self, person: Person) -> None:
        pass

    async def fail(self) -> None:
        self.source.fault = lambda _: Answered(503, b"canary-vendor-text")

    async def mend(self) -> None:
        self.source.fault = None

    async def take_away(self, person: Person) -> None:
        self.source.fault = lambda _: Answered(
            401, b'{"error": "invalid_client", "error_description": "canary-vendor"}'
        )

    def asked(self) -> int:
        return self.source.asked.total()


class ClientCredentials(_OAuth):
    name = "OAuth 2 client credentials"

    def provider(self) -> Provider:
        return ClientCredentialsProvider(self.endpoint(), scopes=SCOPES, clock=self.clock)

    def belongs(self, value: str, person: Person) -> bool:
        return value.startswith("access-machine-")


class MachineExchange(_OAuth):
    name = "OAuth 2 token exchange"

    def provider(self) -> Provider:
        return TokenExchangeProvider(
            SERVICE, self.endpoint(), subject_token=lambda: Secret("user-workload"), clock=self.clock
        )

    def belongs(self, value: str, person: Person) -> bool:
        return value.startswith("access-workload-")


class UserExchange(_OAuth):
    name = "OAuth 2 token exchange, of users"
    mode = Mode.USER
    shared = False

    def provider(self) -> Provider:
        return TokenExchangeProvider(SERVICE, self.endpoint(), subject_token=None, clock=self.clock)

    def user_token(self, person: Person) -> Secret[str] | None:
        return Secret(f"user-{person.name}")

    def belongs(self, value: str, person: Person) -> bool:
        return value.startswith(f"access-{person.name}-")


class AuthorizationCode(_OAuth):
    name = "OAuth 2 authorization code"
    mode = Mode.USER
    shared = False

    def store(self) -> LoginFiles:
        """The logins, as a new process would open them."""
        return LoginFiles(self.directory / "logins", KEY)

    def provider(self) -> AuthorizationCodeProvider:
        return AuthorizationCodeProvider(
            SERVICE,
            self.endpoint(),
            self.store(),
            Consents(KEY, clock=self.clock),
            AuthorizationPage(f"{self.url}/authorize", CLIENT, "http://127.0.0.1/callback", scopes=SCOPES),
            clock=self.clock,
        )

    async def supply(self, person: Person) -> None:
        provider = self.provider()
        begun = provider.begin(Request(person.scope, person.principal, self.need), "http://127.0.0.1/callback")
        assert isinstance(begun, AuthorizationRequired)
        query = self.source.authorize(begun.url.reveal(), person.name)
        callback = dict(pair.split("=", 1) for pair in query.split("&"))
        await provider.complete(person.scope, person.principal, callback)

    async def take_away(self, person: Person) -> None:
        self.source.revoke(person.name)

    def belongs(self, value: str, person: Person) -> bool:
        return value.startswith(f"access-{person.name}-")


class Vault(Harness):
    name = "Vault (a stand-in of its API)"
    declared: ClassVar[Mapping[str, str]] = {
        "an expired credential is not issued": "A version that is deleted is gone, and not expired."
    }

    async def open(self) -> None:
        self.http = Http()
        self.source = VaultStandIn()
        await self.source.open()

    async def aclose(self) -> None:
        await self.http.aclose()
        await self.source.aclose()

    def provider(self) -> Provider:
        secret = VaultSecret(self.source.url, "secret", "team/service")
        return VaultProvider(BEARER, secret, self.http, lambda: Secret(TOKEN))

    async def put(self, person: Person, value: str) -> None:
        self.source.write("secret/team/service", {"token": value}, deletion_time="2027-01-15T09:00:00.123456789Z")

    async def take_away(self, person: Person) -> None:
        self.source.write("secret/team/service", None)

    async def fail(self) -> None:
        self.source.fault = lambda _: Answered(503, b'{"errors": ["canary-vendor-text"]}')

    async def mend(self) -> None:
        self.source.fault = None

    def asked(self) -> int:
        return self.source.asked


HARNESSES: tuple[type[Harness], ...] = (
    Environment,
    Static,
    Mounted,
    MachineFile,
    UserFile,
    ClientCredentials,
    MachineExchange,
    UserExchange,
    AuthorizationCode,
    Vault,
)
