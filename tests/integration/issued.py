"""Callers with tokens of an issuer: the settings for them, and what is said of a token that is not taken."""

from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from tests.integration.listening import Listening, Place
from tests.support.certificates import Shown
from tests.support.http_stand_in import HttpStandIn
from tests.support.issuers import AUDIENCE, ISSUER, Issuer

UNAUTHENTICATED, UNAVAILABLE = grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNAVAILABLE
NO_TOKEN = "What is shown is no JSON Web Token."
NOTHING = f"Show a token of {ISSUER} for {AUDIENCE}, as metadata: authorization: Bearer TOKEN."
NO_WAY = "The token is not signed in a way that is taken here: RS256, PS256, ES256, EdDSA."
NO_SUBJECT = "The token's sub is not 1 to 255 printable characters of ASCII."
NO_KEY = "The token is signed with a key that its issuer does not list."
SIGNATURE = "The token's signature is wrong."
EXPIRED = "The token has expired; show a newer one."
TOO_EARLY = "The token is not valid yet; are the clocks right?"
OTHER_ISSUER = f"The token is of another issuer; here it is {ISSUER}."
OTHER_AUDIENCE = f"The token is for another audience; here it is {AUDIENCE}."
LONG = "The token is over 8,192 characters; leave away what is not needed in it."
NO_EXPIRY = "The token's exp is no number of seconds."


def publish(place: Place, issuer: Issuer) -> Path:
    """The file of its keys, written over whole."""
    new = place.directory / "jwks.new"
    new.write_bytes(issuer.document)
    new.chmod(0o644)
    return new.replace(place.directory / "jwks.json")


def by_file(place: Place, issuer: Issuer, **rest: Any) -> dict[str, Any]:
    """The section for an issuer whose keys are in a file."""
    return {"issuer": issuer.name, "audience": issuer.audience, "jwks_file": publish(place, issuer)} | rest


def at(serving: HttpStandIn, issuer: Issuer, **rest: Any) -> dict[str, Any]:
    """The section for an issuer that is asked for its keys."""
    return {"issuer": issuer.name, "audience": issuer.audience, "jwks_url": f"{serving.url}/jwks"} | rest


async def refusal(host: Listening, token: str | None, shown: Shown | None = None) -> tuple[grpc.StatusCode, str]:
    """How a token is refused."""
    error = await host.refuses(token, shown)
    return error.code(), error.details() or ""


async def takes(host: Listening, token: str, shown: Shown | None = None) -> bool:
    """Whether a token is taken."""
    try:
        await host.who_am_i(token, shown)
    except grpc.aio.AioRpcError:
        return False
    return True
