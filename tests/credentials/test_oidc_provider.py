"""OAuth 2 against a real provider: what it says, and not what a stand-in takes it to say."""

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest

from sidecar.credentials.authorization_code import AuthorizationCodeProvider, AuthorizationPage
from sidecar.credentials.client_credentials import ClientCredentialsProvider
from sidecar.credentials.consent import Consents
from sidecar.credentials.facade import Credentials
from sidecar.credentials.http import Http
from sidecar.credentials.logins import LoginFiles, LoginKey
from sidecar.credentials.port import Answer, AuthorizationRequired, CredentialRefused, Issued, Mode, Need
from sidecar.credentials.secret import Secret
from sidecar.credentials.token_endpoint import Client, TokenEndpoint
from tests.conformance.credentials.case import GRANT, value_of
from tests.conformance.credentials.harnesses import KEY
from tests.support import oidc
from tests.support.people import ANN, BOB, Clock, Person
from tests.support.programs import Program

REDIRECT = "http://127.0.0.1:8123/callback"
USER = Need("user", ("read", "write"), Mode.USER)
MACHINE = Need("machine", ("read",))


@pytest.fixture(scope="module")
def issuer() -> Iterator[str]:
    yield from oidc.running()


class Stage:
    """The door to credentials of a real provider, and people with browsers."""

    def __init__(self, issuer: str, directory: Path, client: Client) -> None:
        self.issuer = issuer
        self.clock = Clock()
        self.http = Http()
        self.store = LoginFiles(directory / "logins", KEY)
        self._client = client
        endpoint = TokenEndpoint("the provider", f"{issuer}/token", client, self.http)
        page = AuthorizationPage(
            f"{issuer}/auth",
            client.identifier,
            REDIRECT,
            issuer,
            ("openid",),
            {"prompt": "consent"},
        )
        self.door = Credentials(
            {
                "user": AuthorizationCodeProvider(
                    "user", endpoint, self.store, Consents(KEY, clock=self.clock), page, clock=self.clock
                ),
                "machine": ClientCredentialsProvider(endpoint, clock=self.clock),
            },
            resources=(self.http,),
            clock=self.clock,
        )

    async def ask(self, person: Person, need: Need, *, force_refresh: bool = False) -> Answer:
        return await self.door.resolve(person.scope, person.principal, need, grant=GRANT, force_refresh=force_refresh)

    async def authorize(self, person: Person, need: Need, *, declines: bool = False) -> None:
        answer = await self.ask(person, need)
        assert isinstance(answer, AuthorizationRequired)
        back = await oidc.authorize(answer.url.reveal(), person.name, redirect=REDIRECT, declines=declines)
        await self.door.complete(person.scope, person.principal, need.service, Secret(urlsplit(back).query))

    async def works(self, token: str) -> dict[str, object]:
        """What the provider knows of a token."""
        assert self._client.secret is not None
        name, secret = self._client.identifier, self._client.secret().reveal()
        basic = self._client.shown == "basic"
        form = {} if basic else {"client_id": name, "client_secret": secret}
        async with httpx2.AsyncClient(trust_env=False, auth=(name, secret) if basic else None) as http:
            reply = await http.post(f"{self.issuer}/token/introspection", data={"token": token, **form})
            facts: dict[str, object] = reply.json()
            return facts


@pytest.fixture(params=["basic", "post"])
async def stage(request: pytest.FixtureRequest, issuer: str, tmp_path: Path) -> AsyncIterator[Stage]:
    identifier = {"basic": "by-header", "post": "by-form"}[request.param]
    stage = Stage(issuer, tmp_path, Client(identifier, lambda: Secret(oidc.CLIENT_SECRET), request.param))
    yield stage
    await stage.door.aclose()


async def test_client_credentials(stage: Stage) -> None:
    answer = await stage.ask(ANN, MACHINE)
    assert isinstance(answer, Issued)
    facts = await stage.works(value_of(answer))
    assert facts["active"] is True
    assert facts["scope"] == "read"
    assert answer.expires_at == stage.clock.now + 600
    assert await stage.ask(ANN, MACHINE) == answer
    again = await stage.ask(ANN, MACHINE, force_refresh=True)
    assert isinstance(again, Issued)
    assert value_of(again) != value_of(answer)


async def test_two_people_authorise_and_refresh(stage: Stage) -> None:
    need = USER._replace(scopes=("offline_access", "openid", "read"))
    await asyncio.gather(*(stage.authorize(person, need) for person in (ANN, BOB)))
    seen: set[str] = set()
    refresh_tokens: set[str] = set()
    for _ in range(3):
        for person in (ANN, BOB):
            answer = await stage.ask(person, need)
            assert isinstance(answer, Issued)
            token = value_of(answer)
            facts = await stage.works(token)
            assert (facts["active"], facts["sub"]) == (True, person.name)
            seen.add(token)
            login = await asyncio.to_thread(stage.store.load, LoginKey(person.scope.owner, need))
            assert login is not None
            assert login.refresh_token is not None
            refresh_tokens.add(login.refresh_token.reveal())
        stage.clock.now += 601
    assert len(seen) == 6
    assert len(refresh_tokens) == 6, "the provider rotates them"


async def test_a_used_refresh_token_ends_the_login_and_it_is_authorised_again(stage: Stage) -> None:
    need = USER._replace(scopes=("offline_access", "openid"))
    await stage.authorize(ANN, need)
    key = LoginKey(ANN.scope.owner, need)
    old = await asyncio.to_thread(stage.store.load, key)
    assert old is not None
    assert isinstance(await stage.ask(ANN, need, force_refresh=True), Issued)
    await asyncio.to_thread(stage.store.put, old)
    assert isinstance(await stage.ask(ANN, need, force_refresh=True), AuthorizationRequired)
    assert await asyncio.to_thread(stage.store.load, key) is None
    stage.clock.now += 601
    await stage.authorize(ANN, need)
    assert isinstance(await stage.ask(ANN, need), Issued)


async def test_a_person_may_decline(stage: Stage) -> None:
    need = USER._replace(scopes=("openid",))
    with pytest.raises(CredentialRefused, match="was not authorised"):
        await stage.authorize(ANN, need, declines=True)
    assert isinstance(await stage.ask(ANN, need), AuthorizationRequired)


async def test_a_wrong_secret_is_refused_without_a_word_of_it(issuer: str, tmp_path: Path) -> None:
    stage = Stage(issuer, tmp_path, Client("by-header", lambda: Secret("canary-wrong")))
    with pytest.raises(CredentialRefused, match="invalid_client") as refused:
        await stage.ask(ANN, MACHINE)
    assert "canary" not in str(refused.value)
    await stage.door.aclose()


async def test_the_command_logs_in_over_loopback(issuer: str, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("00" * 32)
    (tmp_path / "secret").write_text(oidc.CLIENT_SECRET + "\n")
    (tmp_path / "pillion.toml").write_text(
        f"""
        state_dir = "state"
        [credentials]
        key_file = "key"
        [[credential]]
        service = "mail"
        provider = "authorization_code"
        client_id = "by-header"
        client_secret_file = "secret"
        authorization_url = "{issuer}/auth"
        token_url = "{issuer}/token"
        redirect_url = "{REDIRECT}"
        issuer = "{issuer}"
        parameters = {{ prompt = "consent" }}
        """
    )
    pillion = (sys.executable, "-m", "sidecar", "credentials")
    config = ("--config", str(tmp_path / "pillion.toml"))
    scopes = ("--scope", "openid", "--scope", "offline_access")
    login = Program(*pillion, "login", "mail", *config, *scopes, "--no-browser", "--principal", "ann")
    try:
        assert await login.line() == "Authorise mail at this address:"
        url = await login.line()
        redirect = httpx2.URL(url).params["redirect_uri"]
        back = await oidc.authorize(url, "ann", redirect=redirect)
        async with httpx2.AsyncClient(trust_env=False) as browser:
            assert (await browser.get(redirect)).status_code == 404
            assert (await browser.get(redirect + "?code=forged&state=forged")).status_code == 404
            page = await browser.get(back)
        assert page.status_code == 200
        assert "close this page" in page.text
        code, printed, _ = await login.finish()
    finally:
        login.close()
    assert code == 0
    assert printed.startswith(b"logged in to mail; the token expires ")
    shown = Program(*pillion, "list", *config)
    code, printed, _ = await shown.finish()
    assert (code, printed.split()[:3]) == (0, [b"mail", b"ann", b"login"])
