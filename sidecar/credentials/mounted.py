"""Credentials from files that something else mounts and rotates, such as secrets of Kubernetes."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

from sidecar.credentials.fields import Shape
from sidecar.credentials.port import Answer, CredentialRefused, Issued, Mode, ProviderDown, Request

_MOST_BYTES = 1024 * 1024
_TRIES = 3
# What Kubernetes lets name the directory of the current version, and swaps as one.
_CURRENT = "..data"


class MountedProvider:
    """Issues what the files of a directory hold, to all tenants and subjects alike.

    They are read each time, so that a rotated secret is in the next credential. Files that are swapped together, by one
    symbolic link as Kubernetes does, are read together: a new password never comes with an old user name.
    """

    modes = frozenset((Mode.MACHINE,))
    keeps_for = 0.0
    takes_user_token = False

    def __init__(self, shape: Shape, directory: Path, files: Mapping[str, str] | None = None) -> None:
        """`files`: by field, the name of its file, where that is not the field's own."""
        self._shape = shape
        self._directory = directory
        self._files = files or {}

    async def issue(self, request: Request) -> Answer:  # noqa: ARG002  # the same for everybody
        """What the files hold now."""
        return Issued(self._shape.credential(await asyncio.to_thread(self._read)))

    def _read(self) -> dict[str, bytes]:
        for _ in range(_TRIES):
            try:
                current = (self._directory / _CURRENT).resolve(strict=True)
            except OSError:
                # Files that are there themselves, or each by a link of its own.
                current = self._directory
            try:
                return {field: _content(current / name) for field, name in self._names(current).items()}
            except FileNotFoundError:
                # The version was swapped while it was read, or the file is not there.
                continue
            except _TooLarge as error:
                raise CredentialRefused(
                    f"{error} is too large for the credential for {self._shape.service}; mount one of at most 1 MiB."
                ) from None
            except OSError as error:
                raise CredentialRefused(
                    f"The files of the credential for {self._shape.service} in {self._directory} cannot be read, "
                    f"{error.strerror}; let this user read them."
                ) from None
        text = f"The credential for {self._shape.service} is not in {self._directory}; mount the secret there."
        raise CredentialRefused(text) if self._directory.is_dir() else ProviderDown(text)

    def _names(self, current: Path) -> Mapping[str, str]:
        if self._files:
            return self._files
        if self._shape.wanted:
            return {name: name for name in self._shape.wanted}
        return {path.name: path.name for path in current.iterdir() if not path.name.startswith(".") and path.is_file()}


class _TooLarge(OSError):
    """A file over what a credential may have."""


def _content(path: Path) -> bytes:
    with path.open("rb") as file:
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise _TooLarge(path)
    # Editors and `echo` end a line.
    return content.removesuffix(b"\n").removesuffix(b"\r")
