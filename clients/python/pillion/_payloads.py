"""Payloads of artifacts: what they are put from, and what they are got back as."""

import asyncio
import os
from collections.abc import AsyncIterable, AsyncIterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

from pillion import _json
from pillion._artifacts import ArtifactShape

CHUNK_BYTES = 512 * 1024
"""What a payload is sent by; the protocol takes twice as much."""


class CannotRewind(Exception):
    """What was read of a source cannot be read again."""


class Source(Protocol):
    """The bytes of a payload on their way out."""

    def chunks(self, offset: int) -> AsyncIterator[bytes]:
        """Its bytes from an offset on, each chunk of at most `CHUNK_BYTES`.

        :raises CannotRewind: if they have been read and are gone.
        """
        ...


class Payload(NamedTuple):
    """A payload to be put."""

    shape: ArtifactShape
    size: int
    source: Source

    async def content(self) -> bytes:
        """All of it.

        :raises ValueError: if there is more or less of it than was said.
        """
        content = b"".join([chunk async for chunk in self.source.chunks(0)])
        if len(content) != self.size:
            raise ValueError(f"There were {len(content):,} bytes, and {self.size:,} were to come.")
        return content


class _Bytes:
    def __init__(self, content: bytes) -> None:
        self._content = content

    async def chunks(self, offset: int) -> AsyncIterator[bytes]:
        for start in range(offset, len(self._content), CHUNK_BYTES):
            yield self._content[start : start + CHUNK_BYTES]


class _Path:
    def __init__(self, path: Path) -> None:
        self._path = path

    async def chunks(self, offset: int) -> AsyncIterator[bytes]:
        file = await asyncio.to_thread(self._path.open, "rb")
        try:
            while chunk := await asyncio.to_thread(_read_at, file, offset):
                offset += len(chunk)
                yield chunk
        finally:
            # In a thread as well: closing may wait for the disk.
            await asyncio.to_thread(file.close)


class _File:
    """An open file, from where it stands."""

    def __init__(self, file: BinaryIO, start: int) -> None:
        self._file = file
        self._start = start

    async def chunks(self, offset: int) -> AsyncIterator[bytes]:
        while chunk := await asyncio.to_thread(_read_at, self._file, self._start + offset):
            offset += len(chunk)
            yield chunk


class _Stream:
    """Bytes that come once. What is left of a chunk is kept, so that no more is lost than what was taken."""

    def __init__(self, stream: AsyncIterable[bytes]) -> None:
        self._stream = aiter(stream)
        self._passed = 0

    async def chunks(self, offset: int) -> AsyncIterator[bytes]:
        if offset != self._passed:
            raise CannotRewind
        async for chunk in self._stream:
            for start in range(0, len(chunk), CHUNK_BYTES):
                part = bytes(chunk[start : start + CHUNK_BYTES])
                self._passed += len(part)
                yield part


async def payload_of(data: Any, shape: ArtifactShape | None, size: int | None) -> Payload:
    """A payload from what a program has: bytes, a text, a path, an open file, an iterator of bytes, or a JSON value.

    :raises JsonRefused: if a value has no JSON text of the same meaning.
    :raises OSError: if a file cannot be read.
    :raises TypeError: if the size of an iterator is not given.
    """
    raw = shape or ArtifactShape.BYTES
    if isinstance(data, bytes | bytearray | memoryview):
        content = bytes(data)
        return Payload(raw, len(content), _Bytes(content))
    if isinstance(data, str):
        content = data.encode()
        return Payload(shape or ArtifactShape.TEXT, len(content), _Bytes(content))
    if isinstance(data, os.PathLike):
        path = Path(data)
        return Payload(raw, (await asyncio.to_thread(path.stat)).st_size, _Path(path))
    if isinstance(data, AsyncIterable):
        if size is None:
            raise TypeError("What an iterator will bring is not known beforehand: pass size=, in bytes.")
        return Payload(raw, size, _Stream(data))
    if hasattr(data, "read") and hasattr(data, "seek"):
        start, end = await asyncio.to_thread(_extent, data)
        return Payload(raw, end - start, _File(data, start))
    content = _json.encode(data)
    return Payload(ArtifactShape.JSON, len(content), _Bytes(content))


def value_of(shape: ArtifactShape, content: bytes) -> Any:
    """A payload as it was put: bytes, a text, or a JSON value."""
    if shape is ArtifactShape.TEXT:
        return content.decode()
    return _json.decode(content) if shape is ArtifactShape.JSON else content


def _read_at(file: BinaryIO, offset: int) -> bytes:
    file.seek(offset)
    return file.read(CHUNK_BYTES)


def _extent(file: BinaryIO) -> tuple[int, int]:
    start = file.tell()
    end = file.seek(0, os.SEEK_END)
    file.seek(start)
    return start, end
