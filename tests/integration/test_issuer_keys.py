"""The keys of an issuer: new ones are taken, old ones are not, and an issuer that is away does no harm."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable

import jwt
import pytest

from sidecar.doors import issuer_keys
from sidecar.doors.issuer_keys import IssuerKeys
from sidecar.telemetry import Counters
from tests.integration.issued import (
    NO_KEY,
    OTHER_AUDIENCE,
    UNAUTHENTICATED,
    UNAVAILABLE,
    at,
    by_file,
    publish,
    refusal,
    takes,
)
from tests.integration.listening import Listening, Place, until
from tests.support import attach, on_unix
from tests.support.certificates import Authority
from tests.support.http_stand_in import Answered, HttpStandIn
from tests.support.issuers import AUDIENCE, ISSUER, Issuer


@pytest.fixture
async def serving(issuer: Issuer) -> AsyncIterator[HttpStandIn]:
    async with HttpStandIn(issuer.serve) as serving:
        yield serving


@pytest.fixture
async def by_url(
    place: Place, issuer: Issuer, serving: HttpStandIn, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Listening]:
    """Takes tokens of the issuer, whose keys it asks for, and again without having waited."""
    monkeypatch.setattr(issuer_keys, "LEAST_SECONDS", 0.0)
    host = Listening(place.by_jwt(jwt=at(serving, issuer)))
    await host.open()
    yield host
    await host.aclose()


@on_unix
async def test_new_keys_are_taken_and_withdrawn_ones_no_longer(by_url: Listening, issuer: Issuer) -> None:
    old = issuer.token("one")
    assert await by_url.who_am_i(old) == f"jwt:{ISSUER}#ann"
    assert issuer.asked == 1
    issuer.add("two")
    assert await by_url.who_am_i(issuer.token("two")) == f"jwt:{ISSUER}#ann"
    assert issuer.asked == 2
    assert await by_url.who_am_i(old) == f"jwt:{ISSUER}#ann", "it is still published"
    issuer.withdraw("one")
    assert await refusal(by_url, issuer.token("two", {"kid": "three"})) == (UNAUTHENTICATED, NO_KEY)
    assert await refusal(by_url, old) == (UNAUTHENTICATED, NO_KEY), "though it had been taken before"
    assert await by_url.who_am_i(issuer.token("two")) == f"jwt:{ISSUER}#ann"
    assert by_url.count("issuer_key_refreshes") == issuer.asked
    assert not by_url.count("issuer_key_failures")


@on_unix
async def test_many_tokens_of_an_unknown_key_make_one_request(by_url: Listening, issuer: Issuer) -> None:
    await by_url.who_am_i(issuer.token())
    issuer.add("two")
    issuer.answers.clear()
    token = issuer.token("two")
    asking = [asyncio.ensure_future(by_url.who_am_i(token)) for _ in range(50)]
    await until(lambda: asked(issuer, 2))
    # Nobody else waits for it.
    assert await by_url.who_am_i(issuer.token("one", sub="bob")) == f"jwt:{ISSUER}#bob"
    issuer.answers.set()
    assert set(await asyncio.gather(*asking)) == {f"jwt:{ISSUER}#ann"}
    assert issuer.asked <= 3, "those that came while it was asked wait for that answer"


async def asked(issuer: Issuer, times: int) -> bool:
    await asyncio.sleep(0)
    return issuer.asked >= times


@on_unix
async def test_an_issuer_is_not_asked_again_a_moment_later(
    by_url: Listening, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await by_url.who_am_i(issuer.token())
    monkeypatch.setattr(issuer_keys, "LEAST_SECONDS", 1_000.0)
    for number in range(20):
        code, said = await refusal(by_url, issuer.token(headers={"kid": f"none-{number}"}))
        assert code is UNAVAILABLE
        assert said.startswith("The key of the token is not known, and its issuer cannot be asked for newer ones just")
    assert issuer.asked == 1
    assert await by_url.who_am_i(issuer.token()) == f"jwt:{ISSUER}#ann"


@on_unix
async def test_keys_that_are_known_stay_so_while_the_issuer_is_away(
    by_url: Listening, issuer: Issuer, serving: HttpStandIn
) -> None:
    await by_url.who_am_i(issuer.token())
    await serving.aclose()
    issuer.add("two")
    code, _ = await refusal(by_url, issuer.token("two"))
    assert code is UNAVAILABLE
    assert by_url.count("issuer_key_failures")
    assert await by_url.who_am_i(issuer.token("one", sub="bob")) == f"jwt:{ISSUER}#bob"
    await serving.open()
    await until(lambda: takes(by_url, issuer.token("two")))


@on_unix
async def test_a_sidecar_starts_while_the_issuer_is_away(place: Place, issuer: Issuer, serving: HttpStandIn) -> None:
    await serving.aclose()
    host = Listening(place.by_jwt(jwt=at(serving, issuer)))
    await host.open()
    code, said = await refusal(host, issuer.token())
    assert (code, "try again" in said) == (UNAVAILABLE, True)
    await serving.open()
    # It is asked again by and by, without anybody who waits for that.
    await until(lambda: takes(host, issuer.token()))
    await host.aclose()


def _private(issuer: Issuer) -> bytes:
    """A set whose one key anybody could sign with."""
    key, _ = issuer.keys["one"]
    written = jwt.algorithms.ECAlgorithm.to_jwk(key, as_dict=True)
    return json.dumps({"keys": [{**written, "kid": "one"}]}).encode()


USELESS: dict[str, Callable[[Issuer], Answered]] = {
    "an error": lambda _: Answered(500),
    "not found": lambda _: Answered(404, b"no"),
    "too often": lambda _: Answered(429),
    "elsewhere": lambda _: Answered(302, headers=(("location", "http://127.0.0.1:1/"),)),
    "a page": lambda _: Answered(body=b"<html>sign in</html>", content_type="text/html"),
    "no set": lambda _: Answered(body=b"[1]"),
    "no list": lambda _: Answered(body=b'{"keys": {"one": 1}}'),
    "nothing": lambda _: Answered(body=b""),
    "no keys": lambda _: Answered(body=b'{"keys": []}'),
    "deep": lambda _: Answered(body=b"[" * 100_000),
    "what are no keys": lambda _: Answered(
        body=json.dumps(
            {"keys": [1, {}, {"kty": "EC"}, {"kty": "RSA", "n": 1, "e": []}, {"kty": "EC", "crv": "P-256", "x": "?"}]}
        ).encode()
    ),
    "a shared key": lambda _: Answered(
        body=b'{"keys": [{"kty": "oct", "kid": "one", "alg": "HS256", "k": "c2VjcmV0"}]}'
    ),
    "a private key": lambda issuer: Answered(body=_private(issuer)),
    "far too many": lambda issuer: Answered(body=json.dumps({"keys": issuer.published * 101}).encode()),
    "far too much": lambda issuer: Answered(body=issuer.document + b" " * 2_000_000),
}


@on_unix
async def test_answers_that_are_of_no_use_leave_the_keys_that_are_known(by_url: Listening, issuer: Issuer) -> None:
    await by_url.who_am_i(issuer.token())
    for number, (case, answer) in enumerate(USELESS.items(), 1):
        issuer.answer = answer(issuer)
        code, _ = await refusal(by_url, issuer.token(headers={"kid": "none"}))
        assert code is UNAVAILABLE, case
        assert by_url.count("issuer_key_failures") >= number, case
        assert await by_url.who_am_i(issuer.token(sub="bob")) == f"jwt:{ISSUER}#bob", case
    issuer.answer = None
    issuer.add("two")
    await until(lambda: takes(by_url, issuer.token("two")))
    assert not by_url.count("internal_errors")


@on_unix
async def test_an_issuer_is_known_by_the_authorities_that_are_named(place: Place, issuer: Issuer) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*place.server)
    strangers = Authority(place.directory, "strangers")
    async with HttpStandIn(issuer.serve, context) as serving:
        for authorities, is_believed in ((place.authority.ca, True), (strangers.ca, False)):
            host = Listening(place.by_jwt(jwt=at(serving, issuer, ca_file=authorities)))
            await host.open()
            assert await takes(host, issuer.token()) is is_believed
            assert bool(host.count("issuer_key_failures")) is not is_believed
            await host.aclose()
    assert issuer.asked == 1


@on_unix
async def test_an_issuer_is_asked_now_and_then(issuer: Issuer, serving: HttpStandIn) -> None:
    keys = IssuerKeys(f"{serving.url}/jwks", ("ES256",), refresh=0.02)
    running = asyncio.ensure_future(keys.run(Counters()))
    async with asyncio.timeout(20):
        while issuer.asked < 3:
            issuer.news.clear()
            await issuer.news.wait()
        assert keys.keys.find("one", "ES256") is not None
        issuer.add("two")
        issuer.withdraw("one")
        while keys.keys.find("one", "ES256") is not None:
            issuer.news.clear()
            await issuer.news.wait()
    assert keys.keys.find("two", "ES256") is not None
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert not keys._waiting


# --- what changes while it runs


@on_unix
async def test_a_file_of_keys_is_read_again_when_it_changes(place: Place, issuer: Issuer) -> None:
    host = Listening(place.by_jwt(jwt=by_file(place, issuer)))
    await host.open()
    worker = await attach(host)
    caller = await host.caller(issuer.token("one"))
    await caller.flush()
    issuer.add("two")
    issuer.withdraw("one")
    publish(place, issuer)
    await until(lambda: takes(host, issuer.token("two")))
    assert await refusal(host, issuer.token("one")) == (UNAUTHENTICATED, NO_KEY)
    # One that cannot be used leaves those of before.
    reloads = host.count("reloads")
    (place.directory / "jwks.json").write_text("{}")
    issuer.add("three")
    # What was open stays so.
    call = await caller.start()
    await worker.result((await worker.next_invoke()).call, "still open")
    assert (await caller.outcome(call)).result.json == b'"still open"'
    assert await host.who_am_i(issuer.token("two")) == f"jwt:{ISSUER}#ann"
    publish(place, issuer)
    await until(lambda: takes(host, issuer.token("three")))
    assert host.count("reloads") == reloads + 1
    await host.aclose()


@on_unix
async def test_a_reload_keeps_the_keys_of_an_issuer_that_is_away(
    by_url: Listening, place: Place, issuer: Issuer, serving: HttpStandIn
) -> None:
    token = issuer.token()
    await by_url.who_am_i(token)
    await serving.aclose()
    changed = place.by_jwt(jwt=at(serving, issuer, audience="another"))
    by_url.sidecar.reload(changed)
    assert await refusal(by_url, token) == (UNAUTHENTICATED, OTHER_AUDIENCE.replace(AUDIENCE, "another"))
    assert await by_url.who_am_i(issuer.token(aud="another")) == f"jwt:{ISSUER}#ann"
    await serving.open()
    issuer.add("two")
    await until(lambda: takes(by_url, issuer.token("two", aud="another")))
