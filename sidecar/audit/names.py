"""Who somebody is, as the audit log says it: so that the same one reads the same, and nobody learns which."""

from collections.abc import Callable
from functools import lru_cache
from typing import TypeAlias

from sidecar.audit.chain import Key

_REMEMBERED = 1_024
_PURPOSE = "pillion audit name"

Names: TypeAlias = Callable[[str, str], str]
"""The keyed hash of a caller's, subject's or tenant's name: of what it is, and the name."""


def names_by(key: Key) -> Names:
    """The hashes by this key."""

    @lru_cache(_REMEMBERED)
    def name(kind: str, text: str) -> str:
        return key.mac(f"{_PURPOSE} {kind} {text}".encode(errors="surrogatepass"))[:32]

    return name
