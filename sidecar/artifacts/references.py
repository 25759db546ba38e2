"""References: what an artifact is named by."""

import re
import secrets
import string

_ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase
_LENGTH = 22
_PREFIX = "art_"
_GRAMMAR = re.compile(rf"{_PREFIX}[0-9A-Za-z]{{{_LENGTH}}}")


def mint() -> str:
    """A new reference: random, so that it says nothing of what it names and cannot be guessed."""
    return _PREFIX + "".join(secrets.choice(_ALPHABET) for _ in range(_LENGTH))


def well_formed(text: str) -> bool:
    """Whether the text could be a reference at all. One that could not is as good as missing."""
    return _GRAMMAR.fullmatch(text) is not None
