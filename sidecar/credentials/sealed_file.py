"""The encrypted file: credentials that an operator puts in by `pillion credentials set`."""

import asyncio
import base64
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sidecar.credentials import files
from sidecar.credentials.fields import Shape
from sidecar.credentials.port import Answer, CredentialRefused, Issued, Kind, Mode, Request
from sidecar.credentials.sealing import Key, Sealer, SealRefused
from sidecar.credentials.secret import Secret
from sidecar.scope import Owner

_PURPOSE = "file"


@dataclass(frozen=True, slots=True)
class Entry:
    """One credential of the file."""

    service: str
    owner: Owner | None
    """Whose it is; `None` is the worker's own."""
    kind: Kind
    fields: Mapping[str, Secret[bytes]]
    header: str | None = None
    expires_at: float | None = None
    """When it stops working, in seconds of the wall clock; `None` is not known."""


class SealedFile:
    """The file itself, for any number of readers and writers in any number of processes.

    It is replaced as a whole: a reader sees what was there before or after, and so does who starts after a crash.
    """

    def __init__(self, path: Path, key: Key) -> None:
        self.path = path
        self._sealer = Sealer(key, _PURPOSE)
        self._seen: tuple[object, Sequence[Entry]] | None = None

    def entries(self) -> Sequence[Entry]:
        """All that is in it; nothing where there is no file.

        :raises SealRefused: if it cannot be opened.
        """
        try:
            status = self.path.stat()
            signature = (status.st_ino, status.st_mtime_ns, status.st_size)
            seen = self._seen
            if seen is not None and seen[0] == signature:
                return seen[1]
            sealed = self.path.read_bytes()
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise SealRefused(
                f"The encrypted file {self.path} cannot be read, {error.strerror}: let this user read it."
            ) from None
        entries = _entries_of(self._sealer.open(sealed, f"The encrypted file {self.path}"), self.path)
        self._seen = (signature, entries)
        return entries

    def put(self, entry: Entry) -> None:
        """Puts one in, in place of that of the same service and owner. Synced on return.

        :raises SealRefused: if the file cannot be opened; nothing is changed then.
        :raises OSError: if it cannot be written; nothing is changed then.
        """
        self._change(lambda entries: [*(other for other in entries if not _same(other, entry)), entry])

    def remove(self, service: str, owner: Owner | None) -> bool:
        """Takes one out, synced on return. False: there was none.

        :raises SealRefused: if the file cannot be opened.
        :raises OSError: if it cannot be written; nothing is changed then.
        """
        return self._change(
            lambda entries: [other for other in entries if (other.service, other.owner) != (service, owner)]
        )

    def _change(self, change: Callable[[Sequence[Entry]], Sequence[Entry]]) -> bool:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with files.locked(self.path.with_name(self.path.name + ".lock")):
            self._seen = None
            before = self.entries()
            after = change(before)
            if len(after) == len(before) and all(old is new for old, new in zip(before, after, strict=True)):
                return False
            files.replace(self.path, self._sealer.seal(_content_of(after)))
        return True


class SealedFileProvider:
    """Issues what the encrypted file holds: the worker's own, and what was put in for a tenant's subject."""

    modes = frozenset(Mode)
    keeps_for = 0.0
    takes_user_token = False

    def __init__(self, service: str, file: SealedFile, *, clock: Callable[[], float] = time.time) -> None:
        self._service = service
        self._file = file
        self._clock = clock

    async def issue(self, request: Request) -> Answer:
        """What the file holds now."""
        owner = None if request.need.mode is Mode.MACHINE else request.scope.owner
        try:
            entries = await asyncio.to_thread(self._file.entries)
        except SealRefused as refused:
            raise CredentialRefused(str(refused)) from None
        entry = next((entry for entry in entries if (entry.service, entry.owner) == (self._service, owner)), None)
        if entry is None:
            whose = "" if owner is None else " for this subject"
            raise CredentialRefused(
                f"No credential for {self._service} is stored{whose}; store one with: pillion credentials set "
                f"{self._service}"
            )
        if entry.expires_at is not None and entry.expires_at <= self._clock():
            raise CredentialRefused(
                f"The stored credential for {self._service} has expired; store a new one with: pillion credentials set "
                f"{self._service}"
            )
        fields = {name: value.reveal() for name, value in entry.fields.items()}
        return Issued(Shape(self._service, entry.kind, entry.header).credential(fields), entry.expires_at)


def _same(one: Entry, other: Entry) -> bool:
    return (one.service, one.owner) == (other.service, other.owner)


def _content_of(entries: Sequence[Entry]) -> bytes:
    return json.dumps(
        [
            {
                "service": entry.service,
                "owner": None if entry.owner is None else list(entry.owner),
                "kind": entry.kind,
                "fields": {name: base64.b64encode(value.reveal()).decode() for name, value in entry.fields.items()},
                "header": entry.header,
                "expires_at": entry.expires_at,
            }
            for entry in entries
        ]
    ).encode()


def _entries_of(content: bytes, path: Path) -> Sequence[Entry]:
    try:
        return tuple(_entry_of(value) for value in json.loads(content))
    except (ValueError, KeyError, TypeError):
        raise SealRefused(
            f"The encrypted file {path} holds what this Pillion does not know: run a newer one."
        ) from None


def _entry_of(value: Mapping[str, Any]) -> Entry:
    owner = value["owner"]
    return Entry(
        value["service"],
        None if owner is None else Owner(*owner),
        value["kind"],
        {name: Secret(base64.b64decode(text)) for name, text in value["fields"].items()},
        value["header"],
        value["expires_at"],
    )
