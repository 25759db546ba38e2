"""Small private files that are replaced as a whole."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


def replace(path: Path, content: bytes) -> None:
    """Puts the content in the file's place, for this user alone. Synced on return; before that, the old one is there.

    For who holds the lock of what the file stands for: what a crash left half written is written over.

    :raises OSError: if it cannot be written; the old one is there then.
    """
    beside = path.with_name(f".{path.name}.new")
    beside.unlink(missing_ok=True)
    try:
        descriptor = os.open(beside, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:  # noqa: PTH123  # of a descriptor
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def remove(path: Path) -> bool:
    """Removes the file, synced on return. False: there was none."""
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    sync_directory(path.parent)
    return True


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds others, of this and of other processes, out of what the file at this path stands for."""
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def sync_directory(directory: Path) -> None:
    """Makes the names in it survive a loss of power."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
