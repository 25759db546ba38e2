"""Callers by tokens of an issuer: a token that proves nothing is refused, and a caller is who its token is of."""

import asyncio
import base64
import hashlib
import hmac
import json
import logging
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from sidecar._gen.pillion.v1.execute_pb2 import GetInfoRequest
from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind, Outcome
from tests.integration.issued import (
    EXPIRED,
    NO_EXPIRY,
    NO_KEY,
    NO_SUBJECT,
    NO_TOKEN,
    NO_WAY,
    NOTHING,
    OTHER_AUDIENCE,
    OTHER_ISSUER,
    SIGNATURE,
    TOO_EARLY,
    UNAUTHENTICATED,
    UNAVAILABLE,
    by_file,
    refusal,
)
from tests.integration.listening import EVERYWHERE, GET_INFO, Listening, Place, anything
from tests.support import attach, on_unix, tool
from tests.support.certificates import Shown
from tests.support.issuers import AUDIENCE, ISSUER, Issuer, private_key, public_jwk
from tests.support.links import bearing, channel_to


def lacks(claim: str) -> str:
    return f"The token has no {claim}, and needs iss, aud, exp, sub."


def encoded(value: Any) -> str:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def decoded(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


def signed(issuer: Issuer, header: Any, payload: bytes) -> str:
    """A token of any header and payload, with a good signature of the issuer."""
    key, algorithm = issuer.keys["one"]
    parts = f"{encoded(header)}.{encoded(payload)}"
    return f"{parts}.{encoded(jwt.get_algorithm_by_name(algorithm).sign(parts.encode(), key))}"


def shared(issuer: Issuer, secret: bytes, algorithm: str = "HS256") -> str:
    """A token that is signed with what everybody knows of the issuer's key, as if it were a shared secret."""
    _, payload, _ = issuer.token("one").split(".")
    parts = f"{encoded({'alg': algorithm, 'typ': 'JWT', 'kid': 'one'})}.{payload}"
    return f"{parts}.{encoded(hmac.digest(secret, parts.encode(), hashlib.sha256))}"


def tampered(issuer: Issuer) -> str:
    header, payload, signature = issuer.token("one").split(".")
    return f"{header}.{encoded(json.loads(decoded(payload)) | {'sub': 'root'})}.{signature}"


def of_another(issuer: Issuer) -> str:
    other = Issuer()
    other.add("one")
    return other.token("one")


def pem_of(issuer: Issuer) -> bytes:
    key, _ = issuer.keys["one"]
    pem: bytes = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return pem


def with_expiry(text: str) -> Callable[[Issuer], str]:
    """A well signed token whose exp is this text of JSON."""
    claims = f'{{"iss": "{ISSUER}", "aud": "{AUDIENCE}", "sub": "ann", "exp": {text}}}'
    return lambda issuer: signed(issuer, {"alg": "ES256", "kid": "one"}, claims.encode())


def claiming(**claims: Any) -> Callable[[Issuer], str]:
    return lambda issuer: issuer.token("one", **claims)


# When this was read, which may be long before a test runs: what is to be later is a day away.
NOW = time.time()
REFUSED: dict[str, tuple[Callable[[Issuer], str | None], str]] = {
    "nothing": (lambda _: None, NOTHING),
    "a text": (lambda _: "let-me-in-please-0123456789", NO_TOKEN),
    "dots": (lambda _: "..", NO_TOKEN),
    "three words": (lambda _: "a.b.c", NO_TOKEN),
    "an encrypted one": (lambda _: "a.b.c.d.e", NO_TOKEN),
    "a header that is no object": (lambda issuer: signed(issuer, ["ES256"], b"{}"), NO_TOKEN),
    "a payload that is no object": (lambda issuer: signed(issuer, {"alg": "ES256", "kid": "one"}, b"[1]"), NO_TOKEN),
    "a payload that is not JSON": (lambda issuer: signed(issuer, {"alg": "ES256", "kid": "one"}, b"{"), NO_TOKEN),
    "an id of a key that is no text": (lambda issuer: signed(issuer, {"alg": "ES256", "kid": 1}, b"{}"), NO_TOKEN),
    "a way to sign that is no text": (lambda issuer: signed(issuer, {"alg": ["ES256"], "kid": "one"}, b"{}"), NO_WAY),
    "no way to sign": (lambda issuer: signed(issuer, {"kid": "one"}, b"{}"), NO_WAY),
    "one that is cut": (lambda issuer: issuer.token("one")[:-9], NO_TOKEN),
    "one without its signature": (lambda issuer: issuer.token("one").rpartition(".")[0] + ".", SIGNATURE),
    "not signed": (lambda issuer: jwt.encode({"sub": "ann", "exp": NOW + 600}, "", "none"), NO_WAY),
    "not signed, in capitals": (
        lambda issuer: f"{encoded({'alg': 'NONE', 'kid': 'one'})}.{issuer.token('one').split('.')[1]}.",
        NO_WAY,
    ),
    "signed with the public key as a secret": (lambda issuer: shared(issuer, pem_of(issuer)), NO_WAY),
    "signed with what is published": (lambda issuer: shared(issuer, issuer.document), NO_WAY),
    "signed so, and said to be signed otherwise": (
        lambda issuer: shared(issuer, pem_of(issuer), "ES256"),
        SIGNATURE,
    ),
    "signed by another": (of_another, SIGNATURE),
    "changed since it was signed": (tampered, SIGNATURE),
    "signed in a way that is not taken": (lambda issuer: issuer.token("strong"), NO_WAY),
    "signed in a way that the key is not for": (
        lambda issuer: issuer.token("two", {"kid": "one"}),
        NO_KEY,
    ),
    "an unknown key": (lambda issuer: issuer.token("one", {"kid": "none"}), NO_KEY),
    "no key, where several would fit": (lambda issuer: issuer.token("one", {"kid": None}), NO_KEY),
    "a weak key": (lambda issuer: issuer.token("weak"), NO_KEY),
    "a key to encrypt with": (lambda issuer: issuer.token("encrypts"), NO_KEY),
    "a key that comes with it": (
        lambda issuer: signed(issuer, {"alg": "ES256", "jwk": issuer.published[0], "kid": "own"}, b"{}"),
        NO_KEY,
    ),
    "an extension that has to be known": (
        lambda issuer: signed(issuer, {"alg": "ES256", "kid": "one", "crit": ["x"], "x": 1}, b"{}"),
        NO_TOKEN,
    ),
    "expired": (claiming(exp=int(NOW) - 60), EXPIRED),
    "not valid yet": (claiming(nbf=int(NOW) + 100_000), TOO_EARLY),
    "made later": (claiming(iat=int(NOW) + 100_000), TOO_EARLY),
    "no expiry": (claiming(exp=None), lacks("exp")),
    "an expiry that is null": (with_expiry("null"), lacks("exp")),
    "an expiry that is a text": (with_expiry('"4102444800"'), NO_EXPIRY),
    "an expiry that is true": (with_expiry("true"), EXPIRED),
    "an expiry that is infinite": (with_expiry("1e999"), NO_TOKEN),
    "an expiry that is no number": (with_expiry("NaN"), NO_TOKEN),
    "an expiry at no time": (with_expiry("9" * 400), NO_EXPIRY),
    "an expiry that cannot be read": (with_expiry("9" * 5_000), NO_TOKEN),
    "no subject": (claiming(sub=None), lacks("sub")),
    "an empty subject": (claiming(sub=""), NO_SUBJECT),
    "a subject that is a number": (claiming(sub=1), NO_SUBJECT),
    "a subject of two lines": (claiming(sub="ann\nroot"), NO_SUBJECT),
    "a subject that is not of ASCII": (claiming(sub="anñ"), NO_SUBJECT),
    "a long subject": (claiming(sub="a" * 256), NO_SUBJECT),
    "no issuer": (claiming(iss=None), lacks("iss")),
    "another issuer": (claiming(iss="https://evil.example"), OTHER_ISSUER),
    "an issuer that is written otherwise": (claiming(iss=ISSUER + "/"), OTHER_ISSUER),
    "no audience": (claiming(aud=None), lacks("aud")),
    "an empty audience": (claiming(aud=[]), lacks("aud")),
    "another audience": (claiming(aud="pillion-of-another"), OTHER_AUDIENCE),
    "other audiences": (claiming(aud=["a", "b"]), OTHER_AUDIENCE),
    "an audience that is no text": (claiming(aud={"pillion": 1}), OTHER_AUDIENCE),
    "a long one": (
        claiming(more="x" * 6_000),
        "The token is over 8,192 characters; leave away what is not needed in it.",
    ),
}


@pytest.fixture
async def host(place: Place, issuer: Issuer) -> AsyncIterator[Listening]:
    """Takes tokens of the issuer, by keys of a file."""
    serving = Listening(place.by_jwt(jwt=by_file(place, issuer)))
    await serving.open()
    yield serving
    await serving.aclose()


# --- which tokens are taken


@on_unix
async def test_guarantee_14_a_token_that_proves_nothing_is_refused(
    place: Place, issuer: Issuer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "sidecar")
    issuer.add("two", "RS256")
    issuer.add("strong", "ES384")
    issuer.add("encrypts")
    issuer.published[-1]["use"] = "enc"
    weak = private_key("RS256", 1_024)
    issuer.keys["weak"] = (weak, "RS256")
    issuer.published.append(public_jwk(weak, kid="weak"))
    issuer.add("another")
    host = Listening(place.by_jwt(jwt=by_file(place, issuer)))
    await host.open()
    with pytest.warns(match="below the minimum"):
        tokens = {case: make(issuer) for case, (make, _) in REFUSED.items()}
    said = {case: await refusal(host, token) for case, token in tokens.items()}
    assert said == {case: (UNAUTHENTICATED, sentence) for case, (_, sentence) in REFUSED.items()}
    assert host.count("refused_callers") == len(REFUSED)
    assert not host.count("internal_errors")
    assert await host.who_am_i(issuer.token("one")) == f"jwt:{ISSUER}#ann"
    assert not any(token and token in caplog.text for token in tokens.values())
    await host.aclose()


@on_unix
async def test_a_token_that_is_huge_is_refused_by_whoever_reads_it_first(host: Listening, issuer: Issuer) -> None:
    for size in (9_000, 20_000, 200_000):
        refused = await host.refuses(issuer.token(more="x" * size))
        assert refused.code() in (UNAUTHENTICATED, grpc.StatusCode.RESOURCE_EXHAUSTED, UNAVAILABLE)
    assert await host.who_am_i(issuer.token()) == f"jwt:{ISSUER}#ann"


@on_unix
async def test_two_tokens_are_none(host: Listening, issuer: Issuer) -> None:
    async with channel_to(host.target) as channel:
        ask: Any = channel.unary_unary(GET_INFO, GetInfoRequest.SerializeToString)
        call = ask(GetInfoRequest(), metadata=(*bearing(issuer.token()), *bearing(issuer.token())))
        assert (await call.code(), await call.details()) == (UNAUTHENTICATED, NOTHING)


@on_unix
async def test_every_way_to_sign_that_is_asked_for_is_taken(place: Place) -> None:
    ways = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
    issuer = Issuer()
    for way in ways:
        issuer.add(way, way)
    # A key says what it is for, or is for all that fit it.
    issuer.published[3]["alg"] = "PS256"
    host = Listening(place.by_jwt(jwt=by_file(place, issuer, algorithms=ways)))
    await host.open()
    for way in ways:
        assert await host.who_am_i(issuer.token(way)) == f"jwt:{ISSUER}#ann"
    key, _ = issuer.keys["PS256"]
    issuer.keys["PS256"] = (key, "RS256")
    assert await refusal(host, issuer.token("PS256")) == (UNAUTHENTICATED, NO_KEY)
    await host.aclose()


@on_unix
async def test_a_caller_is_who_its_token_is_of(host: Listening, issuer: Issuer) -> None:
    subjects = ("ann", "auth0|5f7c", "system:serviceaccount:prod:agent", "spiffe://prod.example/ann", "a#b", "a b", "*")
    for subject in (*subjects, "x" * 255, "local:0", f"{ISSUER}#ann"):
        assert await host.who_am_i(issuer.token(sub=subject)) == f"jwt:{ISSUER}#{subject}"
    for claims in (
        {"aud": ["another", AUDIENCE]},
        {"exp": int(time.time()) - 10},
        {"nbf": int(time.time()) + 10, "iat": int(time.time()) + 10},
        {"exp": time.time() + 0.5},
    ):
        assert await host.who_am_i(issuer.token(**claims)) == f"jwt:{ISSUER}#ann"
    # The only key that there is need not be named.
    assert await host.who_am_i(issuer.token(headers={"kid": None})) == f"jwt:{ISSUER}#ann"
    worker = await attach(host)
    caller = await host.caller(issuer.token(sub="bob"))
    call = await caller.start("echo", identity={"tenant": "acme"})
    run = await worker.next_invoke()
    assert run.context.caller_principal == f"jwt:{ISSUER}#bob"
    await worker.result(run.call, "done")
    assert (await caller.outcome(call)).result.json == b'"done"'


@on_unix
async def test_rules_name_callers_by_their_tokens(place: Place, issuer: Issuer) -> None:
    allow = [
        anything(f"jwt:{ISSUER}#ann"),
        {"principal": f"jwt:{ISSUER}#team:*", "tools": ["read"]},
        {"principal": f"jwt:{ISSUER}#*", "tools": ["echo"], "subjects": ["nobody"]},
    ]
    settings = place.settings({"callers": "127.0.0.1:0", "caller_jwt": by_file(place, issuer)}, allow)
    host = Listening(settings)
    await host.open()
    worker = await attach(host, tool("echo"), tool("read"))

    async def ends(subject: str, name: str, **identity: str) -> Outcome:
        """How a call of somebody's ends, which is answered if it may be run."""
        caller = await host.caller(issuer.token(sub=subject))
        call = await caller.start(name, identity=identity)
        invoked = asyncio.ensure_future(worker.next_invoke())
        ended = asyncio.ensure_future(caller.outcome(call))
        await asyncio.wait((invoked, ended), return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            await worker.result((await invoked).call, "done")
        else:
            invoked.cancel()
        return await ended

    assert (await ends("ann", "echo", tenant="acme")).HasField("result")
    assert (await ends("team:a", "read")).HasField("result")
    for subject, name in (("bob", "echo"), ("team:a", "echo")):
        assert (await ends(subject, name)).failure.kind == FailureKind.FAILURE_KIND_DENIED
    assert (await ends("bob", "read")).failure.kind == FailureKind.FAILURE_KIND_UNKNOWN_TOOL
    assert (await ends("bob", "echo", principal="nobody")).HasField("result")
    await host.aclose()


# --- by TLS


@on_unix
@pytest.mark.parametrize("address", EVERYWHERE)
async def test_off_loopback_the_listener_alone_shows_a_certificate(place: Place, issuer: Issuer, address: str) -> None:
    tls = {name: file for name, file in place.tls.items() if name != "client_ca"}
    host = Listening(place.by_jwt(address, jwt=by_file(place, issuer), caller_tls=tls))
    await host.open()
    believed = Shown(place.authority.ca, None)
    assert await host.who_am_i(issuer.token(), believed) == f"jwt:{ISSUER}#ann"
    assert await refusal(host, None, believed) == (UNAUTHENTICATED, NOTHING)
    # A certificate is not asked for, and says nothing.
    assert await host.who_am_i(issuer.token(), place.shown("backend.example")) == f"jwt:{ISSUER}#ann"
    assert (await refusal(host, None, place.shown("backend.example")))[0] is UNAUTHENTICATED
    assert (await refusal(host, issuer.token()))[0] is UNAVAILABLE, "it is not served in the clear"
    await host.aclose()


@on_unix
async def test_both_a_certificate_and_a_token_may_be_asked_for(place: Place, issuer: Issuer) -> None:
    host = Listening(place.by_jwt("0.0.0.0:0", jwt=by_file(place, issuer), caller_tls=place.tls))
    await host.open()
    shown = place.shown("backend.example")
    assert await host.who_am_i(issuer.token(), shown) == f"jwt:{ISSUER}#ann", "it is the token that says who"
    assert await refusal(host, None, shown) == (UNAUTHENTICATED, NOTHING)
    assert (await refusal(host, issuer.token(), Shown(place.authority.ca, None)))[0] is UNAVAILABLE
    await host.aclose()
