"""Files with secrets in them, which nobody else may read, and files that are believed, which nobody else may change."""

import os
import secrets
import stat
from pathlib import Path

from sidecar.config import ConfigRefused

_LARGEST = 1024 * 1024
_LEAST_TOKEN = 16
KEY_BYTES = 32
"""What a key of `make_key` has."""
_PRIVATE = 0o600
_ROOT = 0
_GROUP_AND_OTHERS = 0o077
_READ_BY_GROUP = 0o040
_WRITTEN_BY_OTHERS = 0o022


def private_bytes(path: Path, what: str) -> bytes:
    """What is in a file that is this user's alone. `what` it is begins the sentence in which it is refused.

    One of root's that this user may read by its group is taken too, as that is how secrets are handed to a container.

    :raises ConfigRefused: if it cannot be read, or others could.
    """
    state, data = _opened(path, what)
    if not _is_private(state):
        raise ConfigRefused(f"{what}, {path}, can be read or changed by other users; close it with: chmod 600 {path}")
    return data


def make_key(path: Path, what: str) -> None:
    """Makes a private file with a random key, synced, unless it is there: 64 hexadecimal digits and a line's end.

    :raises ConfigRefused: if it cannot be made.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _PRIVATE)
    except FileExistsError:
        return
    except OSError as error:
        raise ConfigRefused(f"{what}, {path}, cannot be made: {error.strerror}.") from None
    try:
        os.write(descriptor, secrets.token_hex(KEY_BYTES).encode() + b"\n")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def own_key(path: Path, what: str) -> bytes:
    """The key in a file of `make_key`, which is made if it is not there.

    :raises ConfigRefused: if it cannot be had, or the file holds something else.
    """
    make_key(path, what)
    try:
        key = bytes.fromhex(private_bytes(path, what).decode())
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise ConfigRefused(f"{what}, {path}, is not what the sidecar made; remove it, and another one is made.")
    return key


def trusted_bytes(path: Path, what: str) -> bytes:
    """What is in a file that others may read, and only this user or root may change.

    :raises ConfigRefused: if it cannot be read, or others could change it.
    """
    state, data = _opened(path, what)
    if state.st_uid not in (_ROOT, os.getuid()) or state.st_mode & _WRITTEN_BY_OTHERS:
        raise ConfigRefused(f"{what}, {path}, can be changed by other users; close it with: chmod go-w {path}")
    return data


def _opened(path: Path, what: str) -> tuple[os.stat_result, bytes]:
    try:
        # Looked at through what was opened: so it is the same file.
        with path.open("rb") as file:
            state = os.fstat(file.fileno())
            if not stat.S_ISREG(state.st_mode):
                raise ConfigRefused(f"{what}, {path}, is no file; name one.")
            return state, file.read(_LARGEST)
    except OSError as error:
        raise ConfigRefused(f"{what}, {path}, cannot be read: {error.strerror}.") from None


def _is_private(state: os.stat_result) -> bool:
    user = os.getuid()
    if state.st_uid == user:
        return not state.st_mode & _GROUP_AND_OTHERS
    if state.st_uid == _ROOT:
        return not state.st_mode & (_GROUP_AND_OTHERS & ~_READ_BY_GROUP)
    return False


def tokens_in(path: Path, what: str) -> list[str]:
    """The tokens in a private file, a line each: the newest, and those that it takes the place of.

    :raises ConfigRefused: as `private_bytes` does, and if there is none, or one that could be guessed.
    """
    try:
        tokens = private_bytes(path, what).decode("ascii").split("\n")
    except UnicodeDecodeError:
        raise ConfigRefused(f"{what}, {path}, is no text of ASCII; {_FIX}.") from None
    tokens = [token for line in tokens if (token := line.strip())]
    if not tokens:
        raise ConfigRefused(f"{what}, {path}, is empty; {_FIX}.")
    if any(len(token) < _LEAST_TOKEN or not token.isprintable() or " " in token for token in tokens):
        raise ConfigRefused(f"{what}, {path}, has a token under {_LEAST_TOKEN} characters or with blanks; {_FIX}.")
    return tokens


_FIX = "put a random one in it, such as of: head -c 32 /dev/urandom | base64"
