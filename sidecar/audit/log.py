"""The audit log as it is written: buffered, written before what it tells of is, synced once a second."""

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVarTuple

from sidecar.audit.chain import START, Key, Link, append, members
from sidecar.audit.head import HeadBroken, read_head, write_head
from sidecar.audit.segments import Segment, segment_path, segments_in, tail_of

_log = logging.getLogger(__name__)

_Arguments = TypeVarTuple("_Arguments")

_PRIVATE = 0o600
_PRIVATE_DIRECTORY = 0o700
_BUFFERED = 256
"""How many entries are kept at most, with what they tell of, while nothing is sent that waits for them."""
_SYNC_SECONDS = 1.0
_RETRY_SECONDS = 1.0


class AuditRefused(Exception):
    """The log cannot be gone on with. Its own text says what to do."""


class Places(NamedTuple):
    """Where a log is."""

    directory: Path
    """Of the segments."""
    head: Path
    """The file of the sealed head."""


class AuditLog:
    """One chain, in segments. For one process at a time, and one thread but for the syncs.

    `add` buffers; `flush` writes all that is buffered in one go, so that the system has it. Where much is buffered that
    is done at once, and `run` does so once a second, syncs it and seals how far the chain reached. Where it cannot be
    written, `failing` is true, entries are lost and counted, and an entry `lost` says how many as soon as there is room
    again.
    """

    def __init__(self, places: Places, key: Key, *, segment_bytes: int, segments_kept: int) -> None:
        self.failing = False
        """Whether the last write failed: what is added now is lost."""
        self.lost = 0
        """How many entries were lost."""
        self._places = places
        self._key = key
        self._segment_bytes = segment_bytes
        self._segments_kept = segments_kept
        self._written = START
        self._synced = START
        self._buffer: list[tuple[Callable[..., str], tuple[Any, ...]]] = []
        self._file = -1
        self._size = 0
        self._unsaid = 0
        self._try_at = 0.0
        self._sealing = threading.Lock()

    # --- its life

    def open(self) -> None:
        """Goes on with the chain that is there, or begins one. What a crash tore is cut, and an entry says so.

        :raises AuditRefused: if it cannot be written, or was tampered with.
        """
        directory, head_path = self._places
        try:
            directory.mkdir(mode=_PRIVATE_DIRECTORY, parents=True, exist_ok=True)
            head = read_head(head_path, self._key)
            segments = segments_in(directory)
            torn = self._resume(segments, head) if segments else self._begin(head)
            if torn:
                self.add("recovered", {"cut_bytes": torn})
            self.add("started", {"process": os.getpid()})
            self._write()
            self._sync(self._file, self._written)
        except HeadBroken:
            raise AuditRefused(
                f"{head_path} was not sealed with this audit key: name the key it was sealed with, or keep the log as "
                "evidence and move both away to begin a new one."
            ) from None
        except OSError as error:
            raise AuditRefused(
                f"The audit log in {directory} cannot be written: {error.strerror}; name a writable audit.directory, "
                "or set audit.enabled = false."
            ) from None

    async def run(self) -> None:
        """Writes and syncs what was added, once a second, until it is cancelled."""
        while True:
            await asyncio.sleep(_SYNC_SECONDS)
            # Where nobody is left to be sent an outcome, nobody else has it written.
            self.flush()
            if self._written != self._synced:
                with contextlib.suppress(OSError):
                    # A file of its own for the thread: this one may be closed for the next segment meanwhile.
                    await asyncio.to_thread(self._sync_apart, os.dup(self._file), self._written)

    def close(self) -> None:
        """Ends the chain for now: writes, syncs and seals what there is."""
        if self._file < 0:
            return
        self.add("stopped", {})
        self.flush()
        try:
            self._sync(self._file, self._written)
        except OSError:
            _log.exception("the audit log could not be synced at the end")
        os.close(self._file)
        self._file = -1

    # --- entries

    def add(self, event: str, facts: Mapping[str, Any]) -> None:
        """Adds an entry, with the time, to what is written next."""
        self.defer(members, {"time_unix_nano": time.time_ns(), "event": event, **facts})

    def defer(self, tell: Callable[[*_Arguments], str], *arguments: *_Arguments) -> None:
        """Adds an entry whose members, its time and event first, are asked for when it is written: with others."""
        if self.failing:
            self.lost += 1
            self._unsaid += 1
        else:
            self._buffer.append((tell, arguments))
            if len(self._buffer) >= _BUFFERED:
                self.flush()

    def flush(self) -> None:
        """Writes what was added. To be called before what it tells of is sent; never raises."""
        if self.failing:
            self._try_again()
        elif self._buffer:
            count = len(self._buffer)
            try:
                self._write()
            except OSError:
                self.lost += count
                self._unsaid = count
                _log.exception("the audit log cannot be written; what it should hold is lost until it can")

    def _try_again(self) -> None:
        now = time.monotonic()
        if now < self._try_at:
            return
        self.failing = False
        self.add("lost", {"entries": self._unsaid})
        try:
            self._write()
        except OSError:
            return
        _log.warning("the audit log is written again; %d entries were lost", self._unsaid)
        self._unsaid = 0

    def _write(self) -> None:
        """Writes the buffer. After a failure the file ends where it did before, and what was buffered is gone.

        :raises OSError: if that failed.
        """
        buffer, self._buffer = self._buffer, []
        link, lines = self._written, []
        for tell, arguments in buffer:
            line, link = append(self._key, link, tell(*arguments))
            lines.append(line)
        data = "".join(lines).encode()
        try:
            if self._size and self._size + len(data) > self._segment_bytes:
                self._next_segment()
            view = memoryview(data)
            while view:
                view = view[os.write(self._file, view) :]
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._size)
            self.failing = True
            self._try_at = time.monotonic() + _RETRY_SECONDS
            raise
        self._size += len(data)
        self._written = link

    # --- files

    def _begin(self, head: Link | None) -> int:
        directory, head_path = self._places
        if head is not None:
            raise AuditRefused(
                f"The audit log in {directory} is gone, and {head_path} says that there were {head.sequence} entries: "
                "put it back, or keep the head as evidence and move it away to begin a new log."
            )
        self._open_segment(1)
        return 0

    def _resume(self, segments: list[Segment], head: Link | None) -> int:
        """Goes on behind the last entry; answers how many torn bytes were cut."""
        segment = segments[-1]
        tail = tail_of(segment)
        if tail.last is None and not tail.size and len(segments) > 1:
            # A crash came between the making of the segment and its first entry.
            segment.path.unlink()
            return self._resume(segments[:-1], head) + tail.torn
        last, before = tail.last, tail.before
        if last is not None:
            fits = before is None or last.follows(before.link)
            if not fits or not last.is_authentic(self._key):
                raise self._tampered(segment)
            self._written = last.link
        elif tail.size:
            raise self._tampered(segment)
        if head is not None and head.sequence > self._written.sequence:
            raise AuditRefused(
                f"The audit log in {self._places.directory} ends with entry {self._written.sequence}, and its head "
                f"says that there were {head.sequence}: see `pillion audit verify`; keep it as evidence, and move log "
                "and head away to begin a new one."
            )
        self._file = os.open(segment.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        os.ftruncate(self._file, tail.size)
        self._size = tail.size
        return tail.torn

    def _tampered(self, segment: Segment) -> AuditRefused:
        return AuditRefused(
            f"The end of {segment.path} is not as this audit key wrote it: see `pillion audit verify`; keep it as "
            "evidence, and move log and head away to begin a new one."
        )

    def _open_segment(self, first: int) -> None:
        path = segment_path(self._places.directory, first)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _PRIVATE)
        self._size = 0
        directory = os.open(self._places.directory, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def _next_segment(self) -> None:
        """Begins another file. What is buffered is the first in it, and so the chain goes on."""
        self._sync(self._file, self._written)
        old, size = self._file, self._size
        try:
            self._open_segment(self._written.sequence + 1)
        except OSError:
            self._file, self._size = old, size
            raise
        os.close(old)
        for segment in segments_in(self._places.directory)[: -self._segments_kept]:
            segment.path.unlink(missing_ok=True)

    def _sync(self, file: int, link: Link) -> None:
        """Syncs a segment, and seals that the chain reached this far.

        :raises OSError: if that failed.
        """
        # A sync that was begun apart may still run when the log is closed, or goes on in another segment.
        with self._sealing:
            os.fsync(file)
            if link.sequence > self._synced.sequence:
                write_head(self._places.head, self._key, link)
                self._synced = link

    def _sync_apart(self, file: int, link: Link) -> None:
        try:
            self._sync(file, link)
        except OSError:
            _log.exception("the audit log could not be synced")
            raise
        finally:
            os.close(file)
