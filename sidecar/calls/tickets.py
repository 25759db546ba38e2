"""Tickets: unguessable handles to paused and detached calls. A store keeps their digests, never the tickets."""

import base64
import hashlib
import hmac
import secrets

_BYTES = 32
_SEED_BYTES = 16
_MARK = "tic_"
_PURPOSE = b"pillion ticket "


def new_ticket() -> str:
    """A ticket, which nobody can guess."""
    return _MARK + secrets.token_urlsafe(_BYTES)


def digest_of(ticket: str) -> bytes:
    """What a ticket is looked up by. Any text has one; that of a text that is no ticket finds nothing."""
    return hashlib.sha256(ticket.encode(errors="surrogatepass")).digest()


class Tickets:
    """Tickets that can be told again by who has the secret, from a seed that tells nobody else anything."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def new(self) -> str:
        """A ticket, which nobody can guess."""
        return self.of(secrets.token_bytes(_SEED_BYTES))

    def of(self, seed: bytes) -> str:
        """The ticket of a seed."""
        mac = hmac.digest(self._secret, _PURPOSE + seed, hashlib.sha256)
        return _MARK + base64.urlsafe_b64encode(seed + mac).decode().rstrip("=")

    @staticmethod
    def seed_of(ticket: str) -> bytes:
        """The seed that a ticket was made from."""
        text = ticket.removeprefix(_MARK)
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))[:_SEED_BYTES]
