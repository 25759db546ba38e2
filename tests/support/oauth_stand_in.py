"""A stand-in for an OAuth 2 provider, which rotates refresh tokens, notices used ones, and fails as a test says.

What a real provider says is in the tests against `oidc-provider`; this one is for what none does on demand.
"""

import asyncio
import base64
import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl, unquote_plus, urlencode, urlsplit

from tests.support.http_stand_in import Answered, Asked, Cut, HttpStandIn

CLIENT = "sidecar"
CLIENT_SECRET = "canary client:secret/+"


class OAuthStandIn(HttpStandIn):
    """Its tokens are `access-<who>-<n>` and `refresh-<who>-<n>`, and each names its issue."""

    def __init__(self) -> None:
        super().__init__(self._answer)
        self.asked: Counter[str] = Counter()
        """How often each grant type was asked for."""
        self.expires_in: Any = 3600
        """What tokens say about their life; `None`: nothing."""
        self.rotates = True
        """Whether a refresh token works once."""
        self.fault: Callable[[Asked], Answered | None] | None = None
        """Answers in place of the provider, which then does nothing. `None` from it: as ever."""
        self.fault_after: Callable[[Asked], Answered | None] | None = None
        """Answers in place of the provider, which has done its part."""
        self.hanging_before: asyncio.Event | None = None
        """Where there is one, requests wait for it before the provider does its part."""
        self.hanging: asyncio.Event | None = None
        """Where there is one, they wait for it afterwards."""
        self.arrived: asyncio.Queue[str] = asyncio.Queue()
        """The grant type of each request, as it came."""
        self.live: dict[str, str] = {}
        """Refresh tokens that work, with whose they are."""
        self.dead: dict[str, str] = {}
        """Those that were used."""
        self.forms: list[dict[str, str]] = []
        self.issued: list[str] = []
        """All access tokens, those that were refused on their way too."""
        self._codes: dict[str, tuple[str, dict[str, str]]] = {}
        self._numbers = itertools.count(1)

    def authorize(self, url: str, who: str) -> str:
        """What the person does: authorises, and comes back with this query."""
        query = dict(parse_qsl(urlsplit(url).query))
        assert query["response_type"] == "code"
        assert query["client_id"] == CLIENT
        assert query["code_challenge_method"] == "S256"
        code = f"code-{who}-{next(self._numbers)}"
        self._codes[code] = (who, query)
        return urlencode({"code": code, "state": query["state"]})

    def revoke(self, who: str) -> None:
        """Ends all that this person authorised."""
        self.dead |= {token: owner for token, owner in self.live.items() if owner == who}
        self.live = {token: owner for token, owner in self.live.items() if owner != who}

    async def _answer(self, asked: Asked) -> Answered:
        grant = asked.form.get("grant_type", "")
        self.asked[grant] += 1
        self.forms.append(dict(asked.form))
        self.arrived.put_nowait(grant)
        if self.hanging_before is not None:
            await self.hanging_before.wait()
        if self.fault is not None and (answered := self.fault(asked)) is not None:
            return answered
        answer = self._granted(asked) if _knows(asked) else (401, {"error": "invalid_client"})
        if self.hanging is not None:
            await self.hanging.wait()
        if self.fault_after is not None and (answered := self.fault_after(asked)) is not None:
            return answered
        return Answered(answer[0], json.dumps(answer[1]).encode())

    def _granted(self, asked: Asked) -> tuple[int, dict[str, Any]]:
        form = asked.form
        kind = form["grant_type"].rpartition(":")[2]
        if kind == "client_credentials":
            return 200, self._tokens("machine")
        if kind == "token-exchange":
            who = form["subject_token"].removeprefix("user-")
            return 200, {**self._tokens(who), "issued_token_type": "urn:ietf:params:oauth:token-type:access_token"}
        if kind == "authorization_code":
            who, query = self._codes.pop(form["code"], ("", {}))
            digest = hashlib.sha256(form["code_verifier"].encode()).digest()
            challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
            if query.get("code_challenge") != challenge or query["redirect_uri"] != form["redirect_uri"]:
                return 400, {"error": "invalid_grant"}
            return 200, self._tokens(who, refreshes=True)
        token = form["refresh_token"]
        if token in self.dead:
            self.revoke(self.dead[token])
        if token not in self.live:
            return 400, {"error": "invalid_grant"}
        who = self.live[token]
        if self.rotates:
            self.dead[token] = self.live.pop(token)
        return 200, self._tokens(who, refreshes=self.rotates)

    def _tokens(self, who: str, *, refreshes: bool = False) -> dict[str, Any]:
        number = next(self._numbers)
        tokens: dict[str, Any] = {"access_token": f"access-{who}-{number:04}", "token_type": "Bearer"}
        self.issued.append(tokens["access_token"])
        if self.expires_in is not None:
            tokens["expires_in"] = self.expires_in
        if refreshes:
            tokens["refresh_token"] = f"refresh-{who}-{number:04}"
            self.live[tokens["refresh_token"]] = who
        return tokens


def _knows(asked: Asked) -> bool:
    """Whether the client showed its secret, in either way."""
    scheme, _, shown = asked.headers.get("authorization", "").partition(" ")
    if scheme == "Basic":
        name, _, secret = base64.b64decode(shown).decode().partition(":")
        return (unquote_plus(name), unquote_plus(secret)) == (CLIENT, CLIENT_SECRET)
    return (asked.form.get("client_id"), asked.form.get("client_secret")) == (CLIENT, CLIENT_SECRET)


def cut(_: Asked) -> Answered:
    """A fault: the connection ends without an answer."""
    raise Cut
