"""Payloads of any size, over streams of their own, in flat memory."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import aclosing, suppress
from types import TracebackType
from typing import Any, Self, TypeVar

from google.protobuf.message import DecodeError

from pillion import _failures, _refusals
from pillion._gen.pillion.v1.artifacts_pb2 import (
    ArtifactMeta,
    DownloadResponse,
    UploadHeader,
    UploadRequest,
    UploadResponse,
)
from pillion._gen.pillion.v1.outcome_pb2 import FailureKind
from pillion._payloads import CannotRewind, Source
from pillion._wire.backoff import Backoff
from pillion._wire.channel import StreamEnded, Transport

Opened = Callable[[], Awaitable[Transport]]
"""Opens a stream for a transfer."""
Answer = TypeVar("Answer")

_ID, _RECEIVED = "pillion-upload-id", "pillion-upload-received"
_CHUNK_TAG = bytes((DownloadResponse.CHUNK_FIELD_NUMBER << 3 | 2,))
_SEVEN_BITS, _MORE = 0x7F, 0x80
_TRIES = 8
_AHEAD = 4


async def upload(opened: Opened, header: UploadHeader, source: Source) -> ArtifactMeta:
    """Stores a payload; what is interrupted is gone on with where it stopped, for a while.

    :raises RequestRefused: if the sidecar says no.
    :raises ConnectionFailed: if the stream is lost, and again and again.
    """
    uploading = _Upload(header, source)
    backoff = Backoff()
    for tries_left in reversed(range(_TRIES)):
        received = uploading.received
        try:
            # Scopes of anyio leak out of gRPC's awaits, so they are in a task of their own.
            answer = await _apart(uploading.run(await opened()))
        except StreamEnded as ended:
            refusal = _refused(ended)
            if refusal is not None and not uploading.may_begin_anew(refusal):
                raise refusal from None
            if not tries_left:
                raise _lost(ended) from None
        except CannotRewind:
            raise _failures.ConnectionFailed(
                "The upload was interrupted, and what was sent cannot be read again."
            ) from None
        else:
            if answer.HasField("meta"):
                return answer.meta
            if uploading.is_whole:
                raise _failures.ConnectionFailed("The upload is not whole, though all was sent.")
        if uploading.received > received:
            backoff.reset()
        await asyncio.sleep(backoff.next())
    raise _failures.ConnectionFailed("The upload was interrupted again and again.")


class _Upload:
    """One upload, over as many streams as it takes."""

    def __init__(self, header: UploadHeader, source: Source) -> None:
        self.received = 0
        """How many bytes the sidecar is known to have."""
        self.is_whole = False
        self._header = header
        self._source = source

    async def run(self, stream: Transport) -> UploadResponse:
        """One stream of it, to its answer."""
        # Read all the while: a refusal comes at any moment, and says more than a write that fails.
        answer = asyncio.ensure_future(stream.read())
        try:
            await _written(stream, UploadRequest(header=self._header), answer)
            told = await stream.told()
            if _ID in told:
                self._header.upload_id = told[_ID]
                self.received = int(told[_RECEIVED])
                await self._send(stream, answer)
            await stream.finish()
            return UploadResponse.FromString(await answer)
        except DecodeError:
            raise _failures.ConnectionFailed("The sidecar's answer cannot be read.") from None
        finally:
            stream.cancel()
            answer.cancel()
            await asyncio.gather(answer, return_exceptions=True)

    async def _send(self, stream: Transport, answer: "asyncio.Future[bytes]") -> None:
        sent = self.received
        async with aclosing(_generator(self._source, sent)) as chunks:
            async for chunk in chunks:
                await _written(stream, UploadRequest(chunk=chunk), answer)
                sent += len(chunk)
        self.is_whole = sent >= self._header.size
        if not self.is_whole:
            raise ValueError(f"There were {sent:,} bytes, and {self._header.size:,} were to come.")

    def may_begin_anew(self, refusal: _refusals.RequestRefused) -> bool:
        """Whether a refusal is no reason to end: the sidecar has forgotten an upload that it had begun."""
        if refusal.retryable and self._header.HasField("upload_id"):
            return True
        if isinstance(refusal, _refusals.ArtifactMissing) and self._header.HasField("upload_id"):
            self._header.ClearField("upload_id")
            self.received = 0
            return True
        return False


class Download:
    """An artifact that is being read, within an `async with` block: its meta, then its bytes."""

    def __init__(self, opened: Opened) -> None:
        self._opened = opened
        self._parts: asyncio.Queue[DownloadResponse | bytes | StreamEnded] = asyncio.Queue(_AHEAD)
        self._stream: Transport | None = None
        self._pumping: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._stream = stream = await self._opened()

        async def pump() -> None:
            try:
                await self._parts.put(DownloadResponse.FromString(await stream.read()))
                while True:
                    await self._parts.put(_chunk_in(await stream.read()))
            except StreamEnded as ended:
                await self._parts.put(ended)
            except DecodeError:
                await self._parts.put(StreamEnded(None, "It cannot be read."))

        # As above.
        self._pumping = asyncio.get_running_loop().create_task(pump())
        return self

    async def __aexit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        if self._stream is not None and self._pumping is not None:
            self._stream.cancel()
            self._pumping.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.gather(self._pumping, return_exceptions=True)

    async def meta(self) -> ArtifactMeta:
        """What is known of it; to be read first.

        :raises RequestRefused: if the sidecar says no.
        :raises ConnectionFailed: if the stream is lost.
        """
        part = await self._next()
        if not isinstance(part, DownloadResponse) or part.WhichOneof("part") != "meta":
            raise _failures.ConnectionFailed("The download does not begin as it should.")
        return part.meta

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Its bytes. What ends is whole.

        :raises RequestRefused: if the sidecar says no, also of a damaged artifact.
        :raises ConnectionFailed: if the stream is lost.
        """
        while (part := await self._next()) is not None:
            if isinstance(part, bytes):
                yield part

    async def _next(self) -> DownloadResponse | bytes | None:
        part = await self._parts.get()
        if not isinstance(part, StreamEnded):
            return part
        # Whoever asks once more is told the same.
        self._parts.put_nowait(part)
        if part.code is None and not part.details:
            return None
        raise _refused(part) or _lost(part)


def _chunk_in(message: bytes) -> bytes:
    """The chunk of a `DownloadResponse`, which as a message object would be copied twice more.

    :raises DecodeError: if there is none.
    """
    position, size, shift = 1, 0, 0
    if message[:1] == _CHUNK_TAG:
        for byte in message[1:6]:
            position += 1
            size |= (byte & _SEVEN_BITS) << shift
            shift += 7
            if byte < _MORE:
                if len(message) - position == size:
                    return message[position:]
                break
    # Written by another hand, or no chunk at all.
    part = DownloadResponse.FromString(message)
    if part.WhichOneof("part") != "chunk":
        raise DecodeError
    return part.chunk


def _refused(ended: StreamEnded) -> _refusals.RequestRefused | None:
    """The sidecar's refusal; `None` where the stream was lost, or stood still for too long."""
    failure = ended.failure
    if failure is None or failure.kind == FailureKind.FAILURE_KIND_IDLE_TIMEOUT:
        return None
    return _refusals.of_failure(failure)


def _lost(ended: StreamEnded) -> _failures.ConnectionFailed:
    code = ended.code.name if ended.code is not None else "OK"
    return _failures.ConnectionFailed(f"The transfer was cut off: {code}: {ended.details}")


async def _apart(work: Coroutine[Any, Any, Answer]) -> Answer:
    """Awaits something in a task of its own, which is cancelled together with this one."""
    task = asyncio.get_running_loop().create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        raise


async def _written(stream: Transport, message: UploadRequest, answer: "asyncio.Future[bytes]") -> None:
    """Writes a message, unless the stream ends first; raises what that says then."""
    writing = asyncio.ensure_future(stream.write(message.SerializeToString()))
    try:
        await asyncio.wait((writing, answer), return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            answer.result()
        try:
            await writing
        except StreamEnded:
            await answer
            raise
    finally:
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)


async def _generator(source: Source, offset: int) -> AsyncGenerator[bytes, None]:
    async for chunk in source.chunks(offset):
        yield chunk
