"""Looks at the bytes of a payload as they pass: their number, their digest, whether they have their shape."""

import codecs
import hashlib

from sidecar.artifacts.port import MIB, ArtifactInput, ArtifactShape, DigestMismatch, InvalidArtifact
from sidecar.calls.strict_json import JsonRefused, parse

_PARSED_BYTES = MIB
_NOT_TEXT = "The payload is not UTF-8, which text and JSON have to be; put it as bytes."


class Measure:
    """The measure of one payload. Keeps no more of it than is parsed at its end.

    Text and JSON must be UTF-8. A JSON text is parsed if it is at most 1 MiB; of a larger one no more is known than
    that it is UTF-8, since it would have to be in memory as a whole.
    """

    def __init__(self, stated: ArtifactInput, shape: ArtifactShape) -> None:
        self._expected = stated.expected_digest
        self._hash = hashlib.sha256() if stated.digest or stated.expected_digest is not None else None
        self._decoder = None if shape is ArtifactShape.BYTES else codecs.getincrementaldecoder("utf-8")()
        self._json = bytearray() if shape is ArtifactShape.JSON else None

    def update(self, data: bytes) -> None:
        """Takes the next bytes.

        :raises InvalidArtifact: if they cannot be of the payload's shape.
        """
        if self._decoder is not None:
            _decode(self._decoder, data)
        if self._hash is not None:
            self._hash.update(data)
        if self._json is not None:
            self._json += data
            if len(self._json) > _PARSED_BYTES:
                self._json = None

    def finish(self) -> str | None:
        """The digest, if it was asked for.

        :raises InvalidArtifact: if the payload is not of its shape.
        :raises DigestMismatch: if it does not have the digest that was stated.
        """
        if self._decoder is not None:
            _decode(self._decoder, b"", final=True)
        if self._json is not None:
            try:
                parse(bytes(self._json))
            except JsonRefused as refused:
                raise InvalidArtifact(f"The payload is not JSON as it is taken here: {refused}") from None
        if self._hash is None:
            return None
        digest = f"sha-256:{self._hash.hexdigest()}"
        if self._expected is not None and digest != self._expected:
            raise DigestMismatch
        return digest


def _decode(decoder: codecs.IncrementalDecoder, data: bytes, *, final: bool = False) -> None:
    try:
        decoder.decode(data, final)
    except UnicodeDecodeError:
        raise InvalidArtifact(_NOT_TEXT) from None
