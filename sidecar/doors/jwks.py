"""The public keys that tokens are checked with: JSON Web Key Sets, of a file or of an issuer's address."""

import asyncio
import json
import logging
import random
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import jwt

from sidecar.credentials.port import CredentialFailed
from sidecar.telemetry import Counters

_log = logging.getLogger(__name__)

LEAST_SECONDS = 10.0
"""How long after an issuer was asked for its keys it is not asked because of an unknown one."""
_MOST_KEYS = 100
_MOST_WAITING = 256
_BACKOFF = (1.0, 60.0)
_JITTER = 0.1
_ACCEPT = {"accept": "application/jwk-set+json, application/json"}
_WHOM = "The issuer of tokens"

_OF_RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_OF_CURVE = {
    ("EC", "P-256"): ("ES256",),
    ("EC", "P-384"): ("ES384",),
    ("EC", "P-521"): ("ES512",),
    ("OKP", "Ed25519"): ("EdDSA",),
    ("OKP", "Ed448"): ("EdDSA",),
}
# What makes a key a private or a shared one: who has that can make tokens as well.
_SECRET = frozenset(("d", "k"))


class KeysRefused(Exception):
    """A set of keys cannot be used. The text says why, and quotes nothing of it."""


class Keys:
    """Public keys by id and algorithm. Never changed."""

    def __init__(self, keys: Mapping[tuple[str | None, str], jwt.PyJWK], written: str = "") -> None:
        self._keys = dict(keys)
        self._written = written

    def __len__(self) -> int:
        return len(self._keys)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Keys) and other._written == self._written

    def __hash__(self) -> int:
        return hash(self._written)

    def find(self, key_id: str | None, algorithm: str) -> jwt.PyJWK | None:
        """The key of this id for this algorithm. Without an id, the only one that there is for the algorithm."""
        if key_id is not None:
            return self._keys.get((key_id, algorithm))
        fitting = [key for (_, of), key in self._keys.items() if of == algorithm]
        return fitting[0] if len(fitting) == 1 else None


NO_KEYS = Keys({})


def keys_in(document: bytes, algorithms: Collection[str]) -> Keys:
    """The keys of a set that can be used with these algorithms. Those that cannot are left out.

    :raises KeysRefused: if it is no such set, or none of its keys can be used.
    """
    try:
        listed = json.loads(document)["keys"]
    except (ValueError, RecursionError, KeyError, TypeError, IndexError):
        listed = None
    if not isinstance(listed, list):
        raise KeysRefused("it is no JSON Web Key Set, as of RFC 7517")
    if len(listed) > _MOST_KEYS:
        raise KeysRefused(f"it has over {_MOST_KEYS} keys")
    found: dict[tuple[str | None, str], jwt.PyJWK] = {}
    used: list[Any] = []
    for each in listed:
        for algorithm in _algorithms_of(each, algorithms):
            key = _read(each, algorithm)
            if key is not None and (each.get("kid"), algorithm) not in found:
                found[each.get("kid"), algorithm] = key
                used.append((algorithm, each))
    if not found:
        raise KeysRefused(f"it has no public key of 2,048 bits or more for {', '.join(sorted(algorithms))}")
    return Keys(found, json.dumps(used, sort_keys=True))


def _algorithms_of(key: Any, allowed: Collection[str]) -> list[str]:
    """The algorithms that a key of a set is for, among those that are allowed."""
    if not isinstance(key, dict) or not _SECRET.isdisjoint(key):
        return []
    if not isinstance(key.get("kid"), str | None) or key.get("use", "sig") != "sig":
        return []
    if "key_ops" in key and (not isinstance(key["key_ops"], list) or "verify" not in key["key_ops"]):
        return []
    kind, curve = key.get("kty"), key.get("crv")
    fitting = _OF_RSA if kind == "RSA" else _OF_CURVE.get((str(kind), str(curve)), ())
    return [name for name in fitting if name in allowed and key.get("alg", name) == name]


def _read(written: dict[str, Any], algorithm: str) -> jwt.PyJWK | None:
    """A key; `None` where it is none, or a weak one."""
    try:
        key = jwt.PyJWK(written, algorithm)
        return key if key.Algorithm.check_key_length(key.key) is None else None
    except Exception:
        # What a key is made of is the issuer's, and what its parts raise is not all of PyJWT.
        return None


class KeySource(Protocol):
    """Where keys come from."""

    keys: Keys
    """Those that are known now."""

    async def look_again(self) -> bool:
        """Returns once the source was looked at again; false if that may not be now, or it does not answer."""
        ...

    def follow(self, other: "KeySource") -> None:
        """Takes over what another one knows, which this one comes in place of, where it is of the same source."""
        ...

    async def run(self, counters: Counters) -> None:
        """Keeps the keys up to date until cancelled, where they change by themselves."""
        ...


class FileKeys:
    """Keys of a file, which is read when the settings are."""

    def __init__(self, keys: Keys) -> None:
        self.keys = keys

    async def look_again(self) -> bool:
        """There is nothing newer."""
        return True

    def follow(self, other: KeySource) -> None:
        """It knows all that it can."""

    async def run(self, counters: Counters) -> None:
        """They change with the settings alone."""


class IssuerKeys:
    """Keys at an issuer's address. What is known stays known while the issuer cannot be asked.

    It is asked by `run` alone, one request at a time: at first, each `refresh` seconds, and when somebody looks for a
    key that is not known, for that at most every `LEAST_SECONDS`.
    """

    def __init__(
        self, url: str, algorithms: Collection[str], *, ca_file: Path | None = None, refresh: float = 300.0
    ) -> None:
        self.keys = NO_KEYS
        self._url = url
        self._algorithms = frozenset(algorithms)
        self._ca_file = ca_file
        self._refresh = refresh
        self._wanted = asyncio.Event()
        self._waiting: set[asyncio.Future[bool]] = set()
        self._asked_at: float | None = None
        """When it was asked last, on the loop's clock."""
        self._is_asking = False

    @property
    def identity(self) -> tuple[str, frozenset[str]]:
        """Which keys it has."""
        return self._url, self._algorithms

    def follow(self, other: KeySource) -> None:
        """Takes over the keys of one of the same address and algorithms."""
        if isinstance(other, IssuerKeys) and other.identity == self.identity:
            self.keys = other.keys

    async def look_again(self) -> bool:
        """Returns once the issuer was asked; false if it was a moment ago, does not answer, or too many wait."""
        loop = asyncio.get_running_loop()
        is_recent = self._asked_at is not None and loop.time() < self._asked_at + LEAST_SECONDS
        if (is_recent and not self._is_asking) or len(self._waiting) >= _MOST_WAITING:
            return False
        answered: asyncio.Future[bool] = loop.create_future()
        self._waiting.add(answered)
        self._wanted.set()
        try:
            return await answered
        finally:
            self._waiting.discard(answered)

    async def run(self, counters: Counters) -> None:
        """Asks the issuer for its keys, again and again."""
        # Needed here alone, and large.
        from sidecar.credentials.http import Http

        loop = asyncio.get_running_loop()
        first, longest = _BACKOFF
        pause = first
        try:
            async with Http(ca_file=self._ca_file) as http:
                while True:
                    self._asked_at = loop.time()
                    self._is_asking = True
                    is_answered = await self._ask(http, counters)
                    self._is_asking = False
                    self._tell(is_answered=is_answered)
                    self._wanted.clear()
                    pause = first if is_answered else min(2 * pause, longest)
                    wait = self._refresh if is_answered else pause
                    with suppress(TimeoutError):
                        async with asyncio.timeout(wait * random.uniform(1 - _JITTER, 1)):  # noqa: S311  # not a secret
                            await self._wanted.wait()
        finally:
            self._is_asking = False
            self._tell(is_answered=False)

    async def _ask(self, http: Any, counters: Counters) -> bool:
        try:
            keys = await self._fetched(http)
        except (CredentialFailed, KeysRefused) as error:
            counters.add("issuer_key_failures")
            _log.warning("the keys of the issuer of tokens cannot be had, and those before stay: %s", error)
            return False
        except Exception:
            counters.add("internal_errors")
            _log.exception("the keys of the issuer of tokens could not be asked for, and those before stay")
            return False
        counters.add("issuer_key_refreshes")
        if keys != self.keys:
            # Only then: who has checked a token by those before need not check it again.
            self.keys = keys
            _log.info("the issuer of tokens has %d keys that can be used", len(keys))
        return True

    async def _fetched(self, http: Any) -> Keys:
        reply = await http.get(_WHOM, self._url, _ACCEPT)
        if not reply.is_success:
            raise KeysRefused(f"it answered with status {reply.status}")
        return await asyncio.to_thread(keys_in, reply.body, self._algorithms)

    def _tell(self, *, is_answered: bool) -> None:
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(is_answered)
