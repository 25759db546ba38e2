"""Tickets: unguessable handles to paused and detached calls. A store keeps their digests, never the tickets."""

import hashlib
import secrets

_BYTES = 32
_MARK = "tic_"


def new_ticket() -> str:
    """A ticket, which nobody can guess."""
    return _MARK + secrets.token_urlsafe(_BYTES)


def digest_of(ticket: str) -> bytes:
    """What a ticket is looked up by. Any text has one; that of a text that is no ticket finds nothing."""
    return hashlib.sha256(ticket.encode(errors="surrogatepass")).digest()
