"""OAuth 2 authorization code with PKCE: a person authorises once, and the login is refreshed from then on."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar
from urllib.parse import urlencode

from sidecar.credentials.client_credentials import UNKNOWN_LIFE, scope_of
from sidecar.credentials.consent import Consents
from sidecar.credentials.logins import Login, LoginKey, LoginStore
from sidecar.credentials.port import (
    Answer,
    AuthorizationRequired,
    Bearer,
    CredentialRefused,
    Issued,
    Mode,
    Need,
    ProviderDown,
    Request,
)
from sidecar.credentials.sealing import SealRefused
from sidecar.credentials.secret import Secret
from sidecar.credentials.token_endpoint import GrantDead, TokenEndpoint, Tokens
from sidecar.scope import Principal, Scope

T = TypeVar("T")

_MOST_TRIES = 2
_MARGIN = 10.0


@dataclass(frozen=True, slots=True)
class AuthorizationPage:
    """Where a person authorises the sidecar, as one client."""

    url: str
    client_id: str
    redirect_url: str
    """Where the person is sent back to."""
    issuer: str | None = None
    """Who has to have answered, where the answer says so."""
    scopes: tuple[str, ...] = ()
    """Where a need names none."""
    parameters: Mapping[str, str] = field(default_factory=dict)
    """Further ones of the address."""


class AuthorizationCodeProvider:
    """Issues the access tokens of stored logins, each of one tenant's subject and one set of scopes.

    A refresh is stored as begun before the provider hears of it, and its token is synced before anyone sees it. So
    after a crash in between it is known that the old refresh token may be used up: it is tried once more, and then a
    person has to authorise again. A provider that fails, hangs, or answers nonsense changes no stored login.
    """

    modes = frozenset((Mode.USER,))
    keeps_for = UNKNOWN_LIFE
    takes_user_token = False

    def __init__(
        self,
        service: str,
        endpoint: TokenEndpoint,
        store: LoginStore,
        consents: Consents,
        page: AuthorizationPage,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._service = service
        self._endpoint = endpoint
        self._store = store
        self._consents = consents
        self._page = page
        self._clock = clock
        self._unsynced: dict[LoginKey, tuple[Login, Login]] = {}
        """Logins that were refreshed and could not be stored, with the state they are to replace."""

    async def issue(self, request: Request) -> Answer:
        """The stored login's access token, refreshed where it has to be; else where to authorise."""
        key = LoginKey(request.scope.owner, request.need)
        await self._sync(key)
        login = await self._stored(self._store.load, key)
        if login is None:
            return self.begin(request, self._page.redirect_url)
        expires_at = login.expires_at
        if not request.force_refresh and (expires_at is None or expires_at - _MARGIN > self._clock()):
            return _issued(login)
        if login.refresh_token is None or login.tries >= _MOST_TRIES:
            return self.begin(request, self._page.redirect_url)
        return await self._refreshed(request, login, login.refresh_token)

    def begin(self, request: Request, redirect_url: str) -> AuthorizationRequired:
        """A new authorisation, whose answer comes to this address."""
        state, challenge = self._consents.begin(request, redirect_url)
        query = {
            **self._page.parameters,
            "response_type": "code",
            "client_id": self._page.client_id,
            "redirect_uri": redirect_url,
            "state": state,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
            **scope_of(request.need.scopes or self._page.scopes),
        }
        joint = "&" if "?" in self._page.url else "?"
        return AuthorizationRequired(self._service, Secret(self._page.url + joint + urlencode(query)))

    async def complete(self, scope: Scope, principal: Principal, callback: Mapping[str, str]) -> Need:
        """Redeems the code that a person was sent back with, and stores the login, synced on return."""
        begun = self._consents.take(callback.get("state", ""), self._service, scope.owner, principal)
        if self._page.issuer is not None and callback.get("iss", self._page.issuer) != self._page.issuer:
            raise CredentialRefused(f"Another provider than that of {self._service} answered; authorise again.")
        code = callback.get("code")
        if not code or "error" in callback:
            raise CredentialRefused(f"The provider of {self._service} was not authorised; authorise it to go on.")
        tokens = await self._endpoint.ask(
            {
                "grant_type": "authorization_code",
                "code": code,
                "redirect_uri": begun.redirect,
                "code_verifier": begun.verifier.reveal(),
            }
        )
        key = LoginKey(scope.owner, begun.need)
        login = Login(key, tokens.access_token, tokens.refresh_token, self._expiry(tokens))
        await self._stored(self._store.put, login)
        self._unsynced.pop(key, None)
        return begun.need

    async def _refreshed(self, request: Request, login: Login, refresh_token: Secret[str]) -> Answer:
        begun = await self._stored(self._store.change, login, replace(login, tries=login.tries + 1))
        if begun is None:
            return await self._current(request)
        try:
            tokens = await self._endpoint.ask({"grant_type": "refresh_token", "refresh_token": refresh_token.reveal()})
        except GrantDead:
            if not await self._stored(self._store.remove, begun):
                return await self._current(request)
            return self.begin(request, self._page.redirect_url)
        except Exception:
            # It is as good as it was, whatever came.
            await self._stored(self._store.change, begun, login)
            raise
        # One that comes without a new refresh token leaves the old one good.
        refreshed = Login(login.key, tokens.access_token, tokens.refresh_token or refresh_token, self._expiry(tokens))
        self._unsynced[login.key] = (begun, refreshed)
        await self._sync(login.key)
        return await self._current(request)

    async def _sync(self, key: LoginKey) -> None:
        """Stores what was refreshed, before anyone sees it; what cannot be stored now is next time."""
        unsynced = self._unsynced.get(key)
        if unsynced is not None:
            await self._stored(self._store.change, *unsynced)
            self._unsynced.pop(key, None)

    async def _current(self, request: Request) -> Answer:
        """What is stored now: by this refresh, or by a person who authorised anew meanwhile."""
        login = await self._stored(self._store.load, LoginKey(request.scope.owner, request.need))
        return self.begin(request, self._page.redirect_url) if login is None else _issued(login)

    async def _stored(self, operation: Callable[..., T], *arguments: object) -> T:
        try:
            return await asyncio.to_thread(operation, *arguments)
        except SealRefused as refused:
            raise CredentialRefused(str(refused)) from None
        except OSError as error:
            raise ProviderDown(
                f"The logins for {self._service} cannot be read or written, {error.strerror}; look after the disk of "
                "state_dir."
            ) from None

    def _expiry(self, tokens: Tokens) -> float | None:
        return None if tokens.expires_in is None else self._clock() + tokens.expires_in


def _issued(login: Login) -> Issued:
    return Issued(Bearer(login.access_token), login.expires_at)
