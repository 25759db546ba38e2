"""Issuers of tokens, with keys of a test's own."""

import asyncio
import json
import time
from collections.abc import Mapping
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from tests.support.http_stand_in import Answered, Asked

ISSUER = "https://id.example"
AUDIENCE = "pillion"
_CURVES = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}


def private_key(algorithm: str, bits: int = 2_048) -> Any:
    """A new key to sign with."""
    if algorithm == "EdDSA":
        return ed25519.Ed25519PrivateKey.generate()
    if algorithm in _CURVES:
        return ec.generate_private_key(_CURVES[algorithm])
    return rsa.generate_private_key(65_537, bits)


def public_jwk(key: Any, **fields: Any) -> dict[str, Any]:
    """What an issuer publishes of a key, with these fields; one that is `None` is left out."""
    kinds: dict[type, Any] = {
        ec.EllipticCurvePrivateKey: jwt.algorithms.ECAlgorithm,
        ed25519.Ed25519PrivateKey: jwt.algorithms.OKPAlgorithm,
        rsa.RSAPrivateKey: jwt.algorithms.RSAAlgorithm,
    }
    kind = next(algorithm for of, algorithm in kinds.items() if isinstance(key, of))
    public = key.public_key()
    written = {**kind.to_jwk(public, as_dict=True), "use": "sig", **fields}
    written.pop("key_ops", None)
    return {name: value for name, value in written.items() if value is not None}


class Issuer:
    """Makes tokens, and publishes its keys."""

    def __init__(self, name: str = ISSUER, audience: str = AUDIENCE) -> None:
        self.name = name
        self.audience = audience
        self.keys: dict[str, tuple[Any, str]] = {}
        """What it signs with, and how, by the ids of keys; the newest is the last."""
        self.published: list[dict[str, Any]] = []
        self.answer: Answered | None = None
        """What it answers in place of its keys, if anything."""
        self.asked = 0
        """How often it was asked for its keys."""
        self.news = asyncio.Event()
        """Set whenever it was asked."""
        self.answers = asyncio.Event()
        """While it is not set, nothing is answered."""
        self.answers.set()

    def add(self, key_id: str, algorithm: str = "ES256") -> None:
        """Signs with a new key from now on."""
        key = private_key(algorithm)
        self.keys[key_id] = (key, algorithm)
        self.published.append(public_jwk(key, kid=key_id))

    def withdraw(self, key_id: str) -> None:
        """Publishes a key no longer."""
        self.published = [key for key in self.published if key.get("kid") != key_id]

    @property
    def document(self) -> bytes:
        """Its key set."""
        return json.dumps({"keys": self.published}).encode()

    def token(self, key_id: str | None = None, headers: Mapping[str, Any] | None = None, **claims: Any) -> str:
        """A token for `ann` that is good for ten minutes, but for these claims; one that is `None` is left out."""
        name = key_id or list(self.keys)[-1]
        key, algorithm = self.keys[name]
        now = int(time.time())
        said = {"iss": self.name, "aud": self.audience, "sub": "ann", "iat": now, "exp": now + 600} | claims
        shown = {"kid": name} | dict(headers or {})
        return jwt.encode(
            {claim: value for claim, value in said.items() if value is not None},
            key,
            algorithm,
            {header: value for header, value in shown.items() if value is not None},
        )

    async def serve(self, asked: Asked) -> Answered:
        """Answers with its keys."""
        self.asked += 1
        self.news.set()
        await self.answers.wait()
        return self.answer if self.answer is not None else Answered(body=self.document)
