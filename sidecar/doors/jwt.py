"""Callers by JSON Web Tokens: who they are is what an issuer that is trusted has signed."""

import asyncio
import hashlib
import time
from typing import Any, NamedTuple, NoReturn

import anyio
import grpc
import jwt
from jwt.exceptions import InvalidSubjectError

from sidecar.doors.access import Access, Context, TurnedAway, bearer_of
from sidecar.doors.jwks import Keys, KeySource
from sidecar.scope import Principal
from sidecar.telemetry import Counters

LONGEST_TOKEN = 8_192
"""In characters. gRPC itself takes little more."""
LONGEST_SUBJECT = 255
_LATEST = 253_402_300_800  # the year 10000
_REMEMBERED = 1_024
_REQUIRED = ["iss", "aud", "exp", "sub"]


class TokenRules(NamedTuple):
    """Which tokens are taken."""

    issuer: str
    audience: str
    algorithms: tuple[str, ...]
    leeway: float
    """How far clocks may be apart, in seconds."""


class _Refused(Exception):
    """A token is not taken. The text says why, and quotes nothing of it."""


class _UnknownKey(_Refused):
    """It may be taken once its key is known."""


class _Verified(NamedTuple):
    """What was found of a token."""

    principal: Principal
    until: float
    keys: Keys
    """Those that it was found with."""


class JwtAccess(Access):
    """By tokens of one issuer. Who shows one is `jwt:<issuer>#<sub>`, and no two of its subjects become the same.

    Tokens are checked when an RPC begins. What was found of one is remembered by its digest, until it expires or the
    issuer's keys change.
    """

    def __init__(self, rules: TokenRules, source: KeySource) -> None:
        self._rules = rules
        self._source = source
        self._replaced = asyncio.Event()
        self._verified: dict[bytes, _Verified] = {}

    async def turned_away(self, context: Context) -> TurnedAway | None:
        """Why a token is not taken. Where its key is not known, the issuer may be asked for newer ones first."""
        token = bearer_of(context)
        if token is None:
            return TurnedAway(
                f"Show a token of {self._rules.issuer} for {self._rules.audience}, as metadata: "
                "authorization: Bearer TOKEN."
            )
        try:
            self._check(token)
        except _UnknownKey:
            return await self._turned_away_again(token)
        except _Refused as refused:
            return TurnedAway(str(refused))
        return None

    async def _turned_away_again(self, token: str) -> TurnedAway | None:
        if not await self._source.look_again():
            return TurnedAway(
                "The key of the token is not known, and its issuer cannot be asked for newer ones just now; try again "
                "in some seconds.",
                grpc.StatusCode.UNAVAILABLE,
            )
        try:
            self._check(token)
        except _Refused as refused:
            return TurnedAway(str(refused))
        return None

    def principal_of(self, context: Context) -> Principal | None:
        """Whom the token is of."""
        try:
            return self._check(bearer_of(context) or "").principal
        except _Refused:
            return None

    def expiry_of(self, context: Context) -> float | None:
        """When the token expires, with what clocks may be apart."""
        try:
            return self._check(bearer_of(context) or "").until
        except _Refused:
            # It has expired since it was let in, or its key was withdrawn.
            return 0.0

    def renew(self, other: "JwtAccess") -> None:
        """Takes over the other's rules and keys, for tokens that are shown from now on."""
        other._source.follow(self._source)  # noqa: SLF001  # of the same class
        self._rules, self._source = other._rules, other._source  # noqa: SLF001  # likewise
        self._verified.clear()
        self._replaced.set()

    async def run(self, counters: Counters) -> None:
        """Keeps the keys up to date."""
        while True:
            self._replaced.clear()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._source.run, counters)
                await self._replaced.wait()
                tasks.cancel_scope.cancel()

    def _check(self, token: str) -> _Verified:
        """What is found of a token, if it is taken."""
        digest = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        known = self._verified.get(digest)
        keys = self._source.keys
        if known is None or known.keys is not keys:
            known = _verified(token, self._rules, keys)
            self._verified.pop(digest, None)
            if len(self._verified) >= _REMEMBERED:
                del self._verified[next(iter(self._verified))]
            self._verified[digest] = known
        elif time.time() >= known.until:
            raise _Refused(_EXPIRED)
        return known


_NO_TOKEN = "What is shown is no JSON Web Token."  # noqa: S105  # a sentence
_EXPIRED = "The token has expired; show a newer one."


def _verified(token: str, rules: TokenRules, keys: Keys) -> _Verified:
    if len(token) > LONGEST_TOKEN:
        raise _Refused(f"The token is over {LONGEST_TOKEN:,} characters; leave away what is not needed in it.")
    try:
        header = jwt.get_unverified_header(token)
    except jwt.PyJWTError:
        raise _Refused(_NO_TOKEN) from None
    algorithm, key_id = header.get("alg"), header.get("kid")
    if not isinstance(algorithm, str) or algorithm not in rules.algorithms:
        raise _Refused(f"The token is not signed in a way that is taken here: {', '.join(rules.algorithms)}.")
    key = keys.find(key_id, algorithm)
    if key is None:
        raise _UnknownKey("The token is signed with a key that its issuer does not list.")
    try:
        claims = jwt.decode(
            token,
            key,
            algorithms=[algorithm],
            audience=rules.audience,
            issuer=rules.issuer,
            leeway=rules.leeway,
            options={"require": _REQUIRED, "enforce_minimum_key_length": True},
        )
    except jwt.PyJWTError as error:
        _refuse(error, rules)
    expires, subject = claims["exp"], claims["sub"]
    if isinstance(expires, bool) or not isinstance(expires, int | float) or not 0 < expires < _LATEST:
        raise _Refused("The token's exp is no number of seconds.")
    if not (1 <= len(subject) <= LONGEST_SUBJECT and subject.isascii() and subject.isprintable()):
        raise _Refused(f"The token's sub is not 1 to {LONGEST_SUBJECT} printable characters of ASCII.")
    # The issuer has no `#`, so that where the subject begins can be told.
    principal = Principal(f"jwt:{rules.issuer}#{subject}", authenticated=True)
    return _Verified(principal, expires + rules.leeway, keys)


def _refuse(error: jwt.PyJWTError, rules: TokenRules) -> NoReturn:
    """Says why PyJWT does not take a token, in words of ours: its own may quote it."""
    sentences: dict[type[Any], str] = {
        jwt.ExpiredSignatureError: _EXPIRED,
        jwt.ImmatureSignatureError: "The token is not valid yet; are the clocks right?",
        jwt.InvalidAudienceError: f"The token is for another audience; here it is {rules.audience}.",
        jwt.InvalidIssuerError: f"The token is of another issuer; here it is {rules.issuer}.",
        InvalidSubjectError: f"The token's sub is not 1 to {LONGEST_SUBJECT} printable characters of ASCII.",
        jwt.InvalidSignatureError: "The token's signature is wrong.",
    }
    if isinstance(error, jwt.MissingRequiredClaimError):
        raise _Refused(f"The token has no {error.claim}, and needs {', '.join(_REQUIRED)}.")
    raise _Refused(next((text for kind, text in sentences.items() if isinstance(error, kind)), _NO_TOKEN))
