"""What a law of artifact stores is: a coroutine that two actors go through at once, in scopes of their own.

The laws themselves are in the files `laws_of_*.py` beside this one, and `LAWS` once those are imported.
"""

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from sidecar.artifacts import (
    ArtifactLimits,
    ArtifactShape,
)
from tests.conformance.artifacts.stage import LIMITS, Actor

MIB = 1024 * 1024
GIB = 1024 * MIB
BYTES, TEXT, JSON = ArtifactShape.BYTES, ArtifactShape.TEXT, ArtifactShape.JSON
MALFORMED = (
    "",
    "art_",
    "art_" + "a" * 21,
    "art_" + "a" * 23,
    "art_" + "-" * 22,
    "ART_" + "a" * 22,
    " ",
    "../x",
    "é" * 300,
)
NOBODYS = "art_" + "0" * 22
CANARY = "canary-of-ann-and-bob"


@dataclass(frozen=True)
class Law:
    """What every store keeps, under these limits."""

    body: Callable[[Actor], Awaitable[None]]
    limits: ArtifactLimits

    @property
    def name(self) -> str:
        return self.body.__name__


LAWS: dict[str, Law] = {}


def law(**limits: float) -> Callable[[Callable[[Actor], Awaitable[None]]], Callable[[Actor], Awaitable[None]]]:
    """Makes a coroutine a law, under limits that differ from the usual."""

    def make(body: Callable[[Actor], Awaitable[None]]) -> Callable[[Actor], Awaitable[None]]:
        LAWS[body.__name__] = Law(body, replace(LIMITS, **limits))  # type: ignore[arg-type]  # names are checked as it is made
        return body

    return make


def digest_of(payload: bytes) -> str:
    return f"sha-256:{hashlib.sha256(payload).hexdigest()}"
