"""What a worker may do, by its token."""

import hashlib
import hmac
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Grant:
    """The rights of one worker set."""

    name: str
    """The set's configured name."""
    tools: frozenset[str]
    """The tools it may register."""
    _token_digest: bytes = field(repr=False)

    @classmethod
    def of(cls, name: str, tools: frozenset[str], token: str) -> "Grant":
        """A grant for whoever shows the token. The token itself is not kept."""
        return cls(name, tools, _digest(token))

    def admits(self, token: str) -> bool:
        """Whether this is the token. Takes the same time for each wrong one."""
        return hmac.compare_digest(self._token_digest, _digest(token))


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
