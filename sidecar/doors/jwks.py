"""The public keys that tokens are checked with: JSON Web Key Sets."""

import json
from collections.abc import Collection, Mapping
from typing import Any, Protocol

import jwt

from sidecar.telemetry import Counters

_MOST_KEYS = 100
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
        return len({key_id for key_id, _ in self._keys})

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
