"""One sidecar a place: files that stay locked while it runs."""

import fcntl
import os
from pathlib import Path


class InUse(Exception):
    """Another sidecar holds the place."""


class FileLock:
    """A lock on a file, held until `release` or the end of the process, however that comes."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._descriptor)
            raise InUse(path) from None

    def release(self) -> None:
        """Gives the place up."""
        os.close(self._descriptor)
