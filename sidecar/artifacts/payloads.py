"""The files of payloads: written under one name, synced, and renamed; named by nothing but chance.

Below one directory::

    parts/<32 hexadecimal digits>          an upload that is not finished
    payloads/<first 2 of them>/<all 32>    an artifact's payload

Everything here blocks, and is for this user alone. A file that has no record is an orphan: a crash left it, or a disk
that could not be written to.
"""

import errno
import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sidecar.artifacts.port import ArtifactCorrupt
from sidecar.calls.stores import StoreUnavailable
from sidecar.storage.refusals import refusing

_DIRECTORY = 0o700
_FILE = 0o600
_NAME_BYTES = 16
_SHELVES = 256
_SHELF_LETTERS = 2
_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class DiskFull(StoreUnavailable):
    """There is no room on the disk. Nothing was stored."""


class FilePart:
    """The file of an upload. It is open only while it is written, so that any number may wait to be continued."""

    def __init__(self, files: "PayloadFiles", name: str, path: Path) -> None:
        self.name = name
        self._files = files
        self._path = path

    def write(self, offset: int, data: bytes) -> None:
        """Writes all of it."""
        rest = memoryview(data)
        with _unavailable(), _opened(self._path, os.O_WRONLY) as descriptor:
            while rest:
                written = os.pwrite(descriptor, rest, offset)
                offset += written
                rest = rest[written:]

    def place(self, target: Path) -> None:
        """Syncs it and gives it its last name. It survives a loss of power then."""
        with _unavailable():
            with _opened(self._path, os.O_WRONLY) as descriptor:
                os.fsync(descriptor)
            self._path.rename(target)
            self._path = target
            _sync(target.parent)

    def discard(self) -> None:
        """Removes it, unless it was released. What cannot be removed is an orphan from now on."""
        if self.name in self._files.underway:
            with suppress(OSError):
                self._path.unlink()
            self.release()

    def release(self) -> None:
        """Lets it be what its record says: without one, an orphan."""
        self._files.underway.discard(self.name)


class PayloadFiles:
    """The files below one directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._parts = directory / "parts"
        self._payloads = directory / "payloads"
        self.underway: set[str] = set()
        """Names of files that are written, or have a record that is."""

    def make(self) -> None:
        """Makes the directories, and removes the parts that an earlier process left.

        :raises StoreRefused: if the directory cannot be used.
        """
        with refusing(self._directory):
            for directory in (self._directory, self._parts, self._payloads):
                directory.mkdir(_DIRECTORY, parents=True, exist_ok=True)
                directory.chmod(_DIRECTORY)
            for shelf in self.shelves():
                shelf.mkdir(_DIRECTORY, exist_ok=True)
            for directory in (self._payloads, self._directory, self._directory.parent):
                _sync(directory)
            for part in self._parts.iterdir():
                part.unlink()

    def new_part(self) -> FilePart:
        """An empty part, underway."""
        part = FilePart(self, name := secrets.token_hex(_NAME_BYTES), self._parts / name)
        self.underway.add(name)
        try:
            with _unavailable(), _opened(self._parts / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL):
                return part
        except BaseException:
            part.discard()
            raise

    def place(self, part: FilePart) -> None:
        """Makes a payload of a part that is whole. It has no record yet, and is underway until it is released."""
        part.place(self._path(part.name))

    def open(self, name: str, size: int) -> int:
        """A descriptor to read a payload of this size by.

        :raises ArtifactCorrupt: if it is not there, or has another size.
        """
        with _unavailable():
            try:
                descriptor = os.open(self._path(name), os.O_RDONLY | _FLAGS)
            except FileNotFoundError:
                raise ArtifactCorrupt from None
        if os.fstat(descriptor).st_size != size:
            os.close(descriptor)
            raise ArtifactCorrupt
        return descriptor

    def remove(self, names: Iterable[str]) -> None:
        """Removes payloads, if they are there. What cannot be removed is an orphan from now on."""
        for name in names:
            with suppress(OSError):
                self._path(name).unlink()

    def sweep_parts(self) -> int:
        """Removes the parts that nobody writes; answers how many."""
        left = self.unattended(self._parts)
        with _unavailable():
            for name in left:
                (self._parts / name).unlink(missing_ok=True)
        return len(left)

    def shelves(self) -> list[Path]:
        """The directories that payloads are in."""
        return [self._payloads / f"{number:02x}" for number in range(_SHELVES)]

    def unattended(self, directory: Path) -> set[str]:
        """The files in a directory that are not underway: each has its record by now, or is an orphan."""
        with _unavailable():
            found = {entry.name for entry in directory.iterdir()}
        # Looked at later than the directory: what was written meanwhile has its record before it is not underway.
        return found.difference(tuple(self.underway))

    def _path(self, name: str) -> Path:
        return self._payloads / name[:_SHELF_LETTERS] / name


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags | _FLAGS, _FILE)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _unavailable() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise DiskFull("There is no room to keep artifacts; free some space on the sidecar's disk.") from error
        raise StoreUnavailable("The artifacts could not be read or written; look after the sidecar's disk.") from error


def _sync(directory: Path) -> None:
    """Makes the names in a directory survive a loss of power."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
