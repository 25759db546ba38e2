"""What is stated about an artifact, held to its rules, in their order."""

import math
import re

from sidecar.artifacts.limits import ArtifactLimits
from sidecar.artifacts.port import APPEND_BYTES, ArtifactInput, ArtifactTooLarge, InvalidArtifact
from sidecar.artifacts.references import well_formed

_WORD_BYTES = 256
_LABEL_BYTES = 1_024
_MOST_PARENTS = 64
_DIGEST = re.compile(r"sha-256:[0-9a-f]{64}")


def check_input(stated: ArtifactInput) -> None:
    """Checks what can be told without a store.

    :raises InvalidArtifact: naming the first rule that is broken, and not what broke it.
    """
    _check_word("kind", stated.kind)
    _check_word("media_type", stated.media_type)
    expires_in = stated.expires_in
    if expires_in is not None and not 0 < expires_in < math.inf:
        raise InvalidArtifact("expires_in must be positive; leave it out to have it kept as long as the store does.")
    if stated.expected_digest is not None and not _DIGEST.fullmatch(stated.expected_digest):
        raise InvalidArtifact("A digest is written as sha-256: and 64 lower-case hexadecimal digits.")
    if stated.label is not None and len(stated.label.encode()) > _LABEL_BYTES:
        raise InvalidArtifact("label is over 1,024 bytes; shorten it.")
    if len(stated.parents) > _MOST_PARENTS:
        raise InvalidArtifact("An artifact has at most 64 parents; name fewer.")


def check_size(size: int, limits: ArtifactLimits) -> None:
    """Checks a size against what could ever fit.

    :raises ArtifactTooLarge: if it could not.
    """
    largest = min(limits.max_bytes, limits.bytes_per_scope, limits.bytes_per_subject, limits.bytes_per_tenant)
    if size > largest:
        raise ArtifactTooLarge(f"The payload is over the largest that is kept, {largest:,} bytes; put less at once.")


def check_chunk(size: int, lacking: int) -> None:
    """Checks the next bytes of an upload that lacks so many.

    :raises InvalidArtifact: if they are too many at once, or more than were declared.
    """
    if size > APPEND_BYTES:
        raise InvalidArtifact("A chunk is over 1 MiB; send all again, in smaller ones.")
    if size > lacking:
        raise InvalidArtifact("More bytes came than were declared; declare them, and send all again.")


def end_of(size: int, offset: int, length: int | None) -> int:
    """Where reading ends that begins at an offset and is to have at most this length.

    :raises InvalidArtifact: if the offset is not within the payload, or at its end.
    """
    if not 0 <= offset <= size:
        raise InvalidArtifact(f"The offset is beyond the artifact's end, at {size:,} bytes.")
    return size if length is None else min(offset + max(length, 0), size)


def shown(reference: str, position: int) -> str:
    """A parent as a message may name it: as it is if it could be a reference, else by its place."""
    return reference if well_formed(reference) else f"number {position + 1}, which is no reference"


def _check_word(name: str, text: str) -> None:
    if not text or text.isspace():
        raise InvalidArtifact(f"{name} is required, and not blank.")
    if len(text.encode()) > _WORD_BYTES:
        raise InvalidArtifact(f"{name} is over 256 bytes; shorten it.")
