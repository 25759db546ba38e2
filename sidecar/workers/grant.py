"""What a worker may do, by its token."""

import hashlib
import hmac
import secrets
from collections.abc import Iterable

_ANY = "*"


class Grant:
    """The rights of one worker set, and the tokens that carry them. Tokens themselves are not kept."""

    def __init__(self, name: str, tools: Iterable[str]) -> None:
        self.name = name
        """The set's configured name."""
        self.tools = frozenset(tools) - {_ANY}
        """The tools that are named in it."""
        self._any_tool = _ANY in tools
        self._holders: dict[bytes, str] = {}

    def __repr__(self) -> str:
        return f"Grant({self.name!r})"

    @classmethod
    def of(cls, name: str, tools: Iterable[str], token: str) -> "Grant":
        """A grant for whoever shows the token."""
        grant = cls(name, tools)
        grant.accept(token)
        return grant

    def accept(self, token: str, holder: str = "") -> None:
        """Lets whoever shows this token have the rights; `holder` is told of it when it is shown."""
        self._holders[_digest(token)] = holder

    def issue(self, holder: str) -> str:
        """A new token."""
        token = secrets.token_urlsafe(32)
        self.accept(token, holder)
        return token

    def revoke(self, holder: str) -> None:
        """Forgets a holder's tokens."""
        self._holders = {digest: name for digest, name in self._holders.items() if name != holder}

    def renew(self, other: "Grant") -> None:
        """Takes over the tokens of another grant that were not issued here, for its own."""
        issued = {digest: holder for digest, holder in self._holders.items() if holder}
        given = other._holders.items()  # noqa: SLF001  # of the same class
        self._holders = {digest: holder for digest, holder in given if not holder} | issued

    def holder_of(self, token: str) -> str | None:
        """Whom the token was given to; `None` if it is none of these. Takes the same time for each wrong one."""
        shown = _digest(token)
        found = None
        for digest, holder in self._holders.items():
            if hmac.compare_digest(digest, shown):
                found = holder
        return found

    def permits(self, tool: str) -> bool:
        """Whether the set may register a tool of this name."""
        return self._any_tool or tool in self.tools


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
