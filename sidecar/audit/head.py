"""The sealed head: where a chain ended when it was last synced, kept apart from it.

What is cut off the end of a chain leaves no trace in what is left. The head says how far it reached at least.
"""

import hmac
import json
import os
from pathlib import Path

from sidecar.audit.chain import Key, Link

_PURPOSE = b"pillion audit head "
_PRIVATE = 0o600


class HeadBroken(ValueError):
    """The file holds no head, or one that was sealed with another key."""


def write_head(path: Path, key: Key, link: Link) -> None:
    """Replaces the head, in one step, and syncs it.

    :raises OSError: if that cannot be done; the old one is there then.
    """
    text = json.dumps({"sequence": link.sequence, "mac": link.mac, "seal": _seal(key, link)})
    other = path.with_name(path.name + ".new")
    descriptor = os.open(other, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _PRIVATE)
    try:
        os.write(descriptor, text.encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    other.replace(path)


def read_head(path: Path, key: Key) -> Link | None:
    """The head; `None` where there is none.

    :raises HeadBroken: if what is there is not one that this key sealed.
    :raises OSError: if it cannot be read.
    """
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        told = json.loads(text)
        link = Link(int(told["sequence"]), str(told["mac"]))
        seal = str(told["seal"])
    except (ValueError, TypeError, KeyError):
        raise HeadBroken("no head") from None
    if not hmac.compare_digest(seal.encode(), _seal(key, link).encode()):
        raise HeadBroken("another key's head")
    return link


def _seal(key: Key, link: Link) -> str:
    return key.mac(_PURPOSE + f"{link.sequence} {link.mac}".encode())
