"""What is kept is sealed: unreadable and unchangeable without the key."""

import base64
import binascii
import hashlib
import hmac
import secrets
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from sidecar.credentials.secret import Secret

_MAGIC = b"PILLSEAL"
_VERSION = 1
_KEY_BYTES = 32
_ID_BYTES = 8
_NONCE_BYTES = 12
_HEADER_BYTES = len(_MAGIC) + 1 + _ID_BYTES + _NONCE_BYTES
_NEW_KEY = "make one with: head -c 32 /dev/urandom | base64"


class SealRefused(Exception):
    """What is sealed cannot be opened. The text is a sentence that says why, and what would do."""


class Key:
    """The key that all is sealed with: 256 random bits. It does not print."""

    def __init__(self, key: Secret[bytes]) -> None:
        self._key = key

    @classmethod
    def of(cls, text: Secret[str], source: str) -> "Key":
        """A key as it is written: 32 bytes in base64 or hexadecimal. `source`: where it is, for the refusal.

        :raises SealRefused: if it is no key.
        """
        for read in (bytes.fromhex, _from_base64):
            try:
                key = read(text.reveal().strip())
            except (ValueError, binascii.Error):
                continue
            if len(key) == _KEY_BYTES:
                return cls(Secret(key))
        raise SealRefused(f"{source} holds no key of 32 bytes in base64; {_NEW_KEY}.")

    @classmethod
    def in_file(cls, path: Path) -> "Key":
        """The key in a file.

        :raises SealRefused: if it cannot be read or is none.
        """
        try:
            text = path.read_text("utf-8")
        except UnicodeDecodeError:
            text = ""
        except OSError as error:
            raise SealRefused(f"{path} cannot be read, {error.strerror}; {_NEW_KEY} > {path}.") from None
        return cls.of(Secret(text), str(path))

    def derived(self, purpose: str) -> bytes:
        """A key of its own for each purpose, so that nothing of one passes for something of another."""
        return HKDF(SHA256(), _KEY_BYTES, salt=None, info=b"pillion/" + purpose.encode()).derive(self._key.reveal())


class Sealer:
    """Seals and opens with AES-256-GCM, for one purpose. What is sealed says by which version and which key."""

    def __init__(self, key: Key, purpose: str) -> None:
        derived = key.derived(purpose)
        self._cipher = AESGCM(derived)
        self._id = hashlib.sha256(b"id" + derived).digest()[:_ID_BYTES]
        self._names = hmac.new(derived, b"names", hashlib.sha256).digest()

    def seal(self, content: bytes, *, about: bytes = b"") -> bytes:
        """The content, sealed. `about` is not in it; it must be the same when it is opened."""
        header = _MAGIC + bytes((_VERSION,)) + self._id + secrets.token_bytes(_NONCE_BYTES)
        return header + self._cipher.encrypt(header[-_NONCE_BYTES:], content, header + about)

    def open(self, sealed: bytes, source: str, *, about: bytes = b"") -> bytes:
        """The content. `source`: where it is, for the refusal.

        :raises SealRefused: if it was sealed by another key or a newer Pillion, or is damaged or moved.
        """
        header = sealed[:_HEADER_BYTES]
        if not header.startswith(_MAGIC) or len(header) < _HEADER_BYTES:
            raise SealRefused(f"{source} is not sealed by Pillion, or damaged: put a backup in its place.")
        version = header[len(_MAGIC)]
        if version != _VERSION:
            raise SealRefused(
                f"{source} was sealed by a newer Pillion (its version {version}, this one's {_VERSION}): run that one."
            )
        start = len(_MAGIC) + 1
        if not hmac.compare_digest(header[start : start + _ID_BYTES], self._id):
            raise SealRefused(f"{source} was sealed with another key: name that one as the key of [credentials].")
        try:
            return self._cipher.decrypt(header[-_NONCE_BYTES:], sealed[_HEADER_BYTES:], header + about)
        except InvalidTag:
            raise SealRefused(f"{source} is damaged: put a backup in its place.") from None

    def name(self, of: bytes) -> str:
        """A name for a file that says nothing about what it is of, without the key."""
        return hmac.new(self._names, of, hashlib.sha256).hexdigest()[:40]


def _from_base64(text: str) -> bytes:
    padded = text.rstrip("=") + "=" * (-len(text.rstrip("=")) % 4)
    return base64.b64decode(padded.translate({ord("-"): "+", ord("_"): "/"}), validate=True)
