"""The token endpoint of an OAuth 2 provider."""

import asyncio
import base64
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote_plus

from sidecar.credentials.http import Http, Reply
from sidecar.credentials.port import CredentialRefused, ProviderDown
from sidecar.credentials.secret import Secret

_MOST_TOKEN = 64 * 1024
_LONGEST = 10 * 365 * 24 * 3600.0
_PRINTABLE = range(0x21, 0x7F)

# Those of RFC 6749, 8693 and 8707. Others are a vendor's own words, and are not passed on.
_CODES = frozenset(
    (
        "invalid_request",
        "invalid_client",
        "invalid_grant",
        "unauthorized_client",
        "unsupported_grant_type",
        "invalid_scope",
        "invalid_target",
    )
)
_LATER = frozenset(("temporarily_unavailable", "server_error", "slow_down"))
# What some say instead of `invalid_grant`.
_DEAD = frozenset(("invalid_grant", "bad_refresh_token", "bad_verification_code"))


class GrantDead(CredentialRefused):
    """The provider says that what was handed in is invalid, expired, used or revoked."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """What a token endpoint issued."""

    access_token: Secret[str]
    refresh_token: Secret[str] | None
    """`None`: none came, and one that there was stays."""
    expires_in: float | None
    """Seconds; `None` is not known."""


@dataclass(frozen=True, slots=True)
class Client:
    """Who the sidecar is to the provider."""

    identifier: str
    secret: Callable[[], Secret[str]] | None = None
    """Reads the secret, each time: it may be rotated. May block. `None`: a public client."""
    shown: Literal["basic", "post"] = "basic"
    """How the secret is shown: in a header, or in the form."""


class TokenEndpoint:
    """Asks for tokens as one client, and judges the answers: nothing in them is trusted to be what it should be."""

    def __init__(self, service: str, url: str, client: Client, http: Http) -> None:
        self._whom = f"The provider of {service}"
        self._url = url
        self._client = client
        self._http = http

    async def ask(self, form: Mapping[str, str]) -> Tokens:
        """The tokens for a grant.

        :raises GrantDead: if the provider says that the grant is no good.
        :raises CredentialRefused: if it refuses for another reason.
        :raises ProviderDown: if it does not answer, or with what is no token.
        """
        headers: dict[str, str] = {}
        form = dict(form)
        client = self._client
        if client.secret is None:
            form["client_id"] = client.identifier
        else:
            secret = (await asyncio.to_thread(client.secret)).reveal()
            if client.shown == "basic":
                pair = f"{quote_plus(client.identifier)}:{quote_plus(secret)}"
                headers["authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
            else:
                form |= {"client_id": client.identifier, "client_secret": secret}
        return self._tokens_of(await self._http.post(self._whom, self._url, form, headers))

    def _tokens_of(self, reply: Reply) -> Tokens:
        answer = reply.json()
        # Some answer an error with success.
        if not reply.is_success or (isinstance(answer, dict) and "error" in answer):
            raise self._refusal(reply.status, answer)
        if not isinstance(answer, dict):
            raise ProviderDown(f"{self._whom} answered with what is no token; look after it.")
        token_type = answer.get("token_type", "bearer")
        if not isinstance(token_type, str) or token_type.lower() not in ("bearer", "n_a"):
            raise CredentialRefused(f"{self._whom} issues tokens of a type that is not bearer; have it issue those.")
        access = _token(answer.get("access_token"))
        if access is None:
            raise ProviderDown(f"{self._whom} answered with what is no token; look after it.")
        return Tokens(access, _token(answer.get("refresh_token")), _seconds(answer.get("expires_in")))

    def _refusal(self, status: int, answer: Any) -> CredentialRefused | ProviderDown:
        code = answer.get("error") if isinstance(answer, dict) else None
        if not isinstance(code, str):
            code = ""
        if code in _DEAD:
            return GrantDead(f"{self._whom} says that the grant is no longer good; authorise it again.")
        if code in _LATER:
            return ProviderDown(f"{self._whom} is not available at the moment; try again in a moment.")
        said = code if code in _CODES else f"status {status}"
        return CredentialRefused(f"{self._whom} refused ({said}); look at the credential's client and scopes.")


def _token(value: Any) -> Secret[str] | None:
    """A token that can be put in a header; `None` where it is none."""
    if not isinstance(value, str) or not 0 < len(value) <= _MOST_TOKEN:
        return None
    return Secret(value) if all(ord(character) in _PRINTABLE for character in value) else None


def _seconds(value: Any) -> float | None:
    """A time to live, also where it is a text; `None` where it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        seconds = float(value)
    except (ValueError, OverflowError):
        return None
    return min(seconds, _LONGEST) if seconds > 0 and not math.isnan(seconds) else None
