"""Callers with tokens of a real provider, off loopback by TLS: whoever it says they are, and whatever it signs with."""

import asyncio
import base64
import hashlib
import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx2
import jwt
import pytest

import pillion
from pillion import errors
from sidecar.doors import issuer_keys
from tests.integration.issued import NO_KEY, NO_TOKEN, UNAUTHENTICATED, UNAVAILABLE, takes
from tests.integration.listening import Listening, Place, until
from tests.integration.test_reaching import pillion_does
from tests.support import attach, on_unix, tool
from tests.support.certificates import Shown
from tests.support.issuers import Issuer
from tests.support.oidc import CLIENT_SECRET, RESOURCE, Provider, authorize, needed, started

pytestmark = on_unix

REDIRECT = "http://127.0.0.1:8123/callback"


@pytest.fixture
def provider() -> Iterator[Provider]:
    needed()
    with started() as provider:
        yield provider


@pytest.fixture
async def host(place: Place, provider: Provider, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Listening]:
    """Off loopback, with a certificate of its own alone, for tokens of the provider."""
    monkeypatch.setattr(issuer_keys, "LEAST_SECONDS", 0.0)
    section = {"issuer": provider.issuer, "audience": RESOURCE, "jwks_url": provider.jwks_url, "leeway": 0}
    tls = {"certificate": place.server.certificate, "key": place.server.key}
    host = Listening(place.by_jwt("0.0.0.0:0", jwt=section, caller_tls=tls))
    await host.open()
    yield host
    await host.aclose()


@pytest.fixture
def believed(place: Place) -> Shown:
    """What its callers believe. They show no certificate."""
    return Shown(place.authority.ca, None)


async def token_of(provider: Provider, client: str = "by-form", scope: str = "read") -> str:
    return await asyncio.to_thread(provider.token, client, scope)


async def test_a_caller_is_the_client_that_its_token_is_of(
    host: Listening, provider: Provider, believed: Shown
) -> None:
    for scope, algorithm in (("read", "ES256"), ("write", "RS256")):
        token = await token_of(provider, scope=scope)
        assert jwt.get_unverified_header(token)["alg"] == algorithm
        assert await host.who_am_i(token, believed) == f"jwt:{provider.issuer}#by-form"
    refused = await host.refuses(None, believed)
    assert refused.code() is UNAUTHENTICATED
    assert refused.details() == (
        f"Show a token of {provider.issuer} for {RESOURCE}, as metadata: authorization: Bearer TOKEN."
    )


async def test_a_caller_is_the_person_who_authorised_it(host: Listening, provider: Provider, believed: Shown) -> None:
    verifier = secrets.token_urlsafe(48)
    challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
    asked = {"client_id": "by-form", "response_type": "code", "redirect_uri": REDIRECT, "scope": "openid read"}
    asked |= {"resource": RESOURCE, "code_challenge": challenge, "code_challenge_method": "S256", "prompt": "consent"}
    back = await authorize(f"{provider.issuer}/auth?{urlencode(asked)}", "ann", redirect=REDIRECT)
    (code,) = parse_qs(urlsplit(back).query)["code"]
    form = {"grant_type": "authorization_code", "code": code, "redirect_uri": REDIRECT, "code_verifier": verifier}
    form |= {"client_id": "by-form", "client_secret": CLIENT_SECRET}
    async with httpx2.AsyncClient(trust_env=False) as http:
        answer = (await http.post(f"{provider.issuer}/token", data=form)).json()
    assert await host.who_am_i(answer["access_token"], believed) == f"jwt:{provider.issuer}#ann"
    # What tells the client who has logged in is for the client, and lets nobody in here.
    refused = await host.refuses(answer["id_token"], believed)
    assert (refused.code(), refused.details()) == (
        UNAUTHENTICATED,
        f"The token is for another audience; here it is {RESOURCE}.",
    )


async def test_a_token_that_is_not_signed_is_none(host: Listening, provider: Provider, believed: Shown) -> None:
    form = {"grant_type": "client_credentials", "client_id": "by-form", "client_secret": CLIENT_SECRET}
    async with httpx2.AsyncClient(trust_env=False) as http:
        answer = (await http.post(f"{provider.issuer}/token", data=form)).json()
    refused = await host.refuses(answer["access_token"], believed)
    assert (refused.code(), refused.details()) == (UNAUTHENTICATED, NO_TOKEN)


async def test_the_providers_new_keys_are_taken_and_its_old_ones_until_it_withdraws_them(
    host: Listening, provider: Provider, believed: Shown
) -> None:
    old = await token_of(provider)
    assert await host.who_am_i(old, believed) == f"jwt:{provider.issuer}#by-form"
    await asyncio.to_thread(provider.rotate)
    new = await token_of(provider)
    assert jwt.get_unverified_header(new)["kid"] != jwt.get_unverified_header(old)["kid"]
    assert await host.who_am_i(new, believed) == f"jwt:{provider.issuer}#by-form"
    assert await host.who_am_i(old, believed) == f"jwt:{provider.issuer}#by-form"
    await asyncio.to_thread(provider.rotate)
    await asyncio.to_thread(provider.withdraw)
    newest = await token_of(provider)
    assert await host.who_am_i(newest, believed) == f"jwt:{provider.issuer}#by-form"
    refused = await host.refuses(old, believed)
    assert (refused.code(), refused.details()) == (UNAUTHENTICATED, NO_KEY)


async def test_tokens_are_taken_while_the_provider_is_away(
    host: Listening, provider: Provider, believed: Shown
) -> None:
    first, second = [await token_of(provider) for _ in range(2)]
    assert await host.who_am_i(first, believed) == f"jwt:{provider.issuer}#by-form"
    await asyncio.to_thread(provider.kill)
    assert await host.who_am_i(second, believed) == f"jwt:{provider.issuer}#by-form", "it was never shown before"
    other = Issuer(provider.issuer, RESOURCE)
    other.add("none")
    assert (await host.refuses(other.token(), believed)).code() is UNAVAILABLE, "nobody can say whether it is good"


async def test_the_sdk_and_commands_show_tokens_of_the_provider(
    host: Listening, place: Place, provider: Provider, believed: Shown, tmp_path: Path
) -> None:
    await attach(host, tool("echo"))
    tls = pillion.Tls(believed.ca)
    made: list[str] = []

    def source() -> str:
        """A token that lives for 4 s, newly made each time."""
        made.append(provider.token("brief"))
        return made[-1]

    async with pillion.connect(host.target, token=source, tls=tls) as connected:
        assert (await connected.info()).caller_principal == f"jwt:{provider.issuer}#brief"
        first = made[0]

        async def has_expired() -> bool:
            """Meanwhile and then the stream takes calls: there is no such tool for them, and that is all."""
            with pytest.raises(errors.UnknownTool):
                await connected.call("nothing")
            return not await takes(host, first, believed)

        await until(has_expired)
        with pytest.raises(errors.UnknownTool):
            await connected.call("nothing")
        assert connected.reconnects == 0
    with pytest.raises(errors.CannotConnect, match="in the clear"):
        async with pillion.connect("192.0.2.1:7443", token=source):
            pass

    file = place.secret("of-the-provider.token", await token_of(provider))
    shown = ("--address", host.target, "--tls-ca", str(believed.ca), "--token-file", str(file))
    done = await pillion_does("tools", *shown)
    assert (done.code, done.said.split()[:1]) == (0, ["echo"]), done
    expired = place.secret("expired.token", first)
    done = await pillion_does("tools", *shown[:-1], str(expired))
    assert done.code == 2
    assert "The token has expired; show a newer one." in done.told
