"""Payloads of any size, in and out, in flat memory: the same for callers and for workers."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager

from google.protobuf.message import DecodeError

from sidecar._gen.pillion.v1.artifacts_pb2 import (
    DownloadRequest,
    DownloadResponse,
    UploadHeader,
    UploadRequest,
    UploadResponse,
)
from sidecar._gen.pillion.v1.outcome_pb2 import Failure, FailureKind
from sidecar.artifacts import ArtifactError, InvalidArtifact, OpenArtifact, Upload
from sidecar.artifacts.checks import end_of
from sidecar.artifacts.messages import eviction_message, meta_message
from sidecar.artifacts.transfers import TransferRefused
from sidecar.calls.outcome import NONE, Refusal, failure
from sidecar.calls.stores import StoreUnavailable
from sidecar.doors.access import Context
from sidecar.doors.artifact_messages import failure_of
from sidecar.doors.status import refuse, tell
from sidecar.wire.bulk import BulkStream, Stalled
from sidecar.wire.transport import StreamLost

UPLOAD_ID = "pillion-upload-id"
"""Initial metadata: what the upload is continued by."""
UPLOAD_RECEIVED = "pillion-upload-received"
"""Initial metadata: how many bytes have come already, so where the next chunk belongs."""

_CHUNK_TAG = bytes((DownloadResponse.CHUNK_FIELD_NUMBER << 3 | 2,))
_SEVEN_BITS, _MORE = 0x7F, 0x80
_OVERLOADED = FailureKind.FAILURE_KIND_OVERLOADED


class Bulk:
    """The uploads and downloads of one listener: so many at once, and none that stands still for long."""

    def __init__(self, most: int, stall_after: float) -> None:
        self._most = most
        self._stall_after = stall_after
        self._running = 0

    @asynccontextmanager
    async def transferring(self, context: Context, *, reads: bool = False) -> AsyncIterator[BulkStream]:
        """One transfer over an RPC, which reads messages or writes them.

        What is refused inside the block becomes the RPC's status; a lost RPC becomes nothing.
        """
        stream = BulkStream(context, self._stall_after)
        ending: Failure
        self._running += 1
        try:
            if self._running > self._most:
                raise Refusal(_OVERLOADED, "Too many transfers are running; try again later.", retryable=True)  # noqa: TRY301  # it is told as all others are
            yield stream
        except StreamLost:
            return
        except Stalled:
            ending = failure(
                FailureKind.FAILURE_KIND_IDLE_TIMEOUT,
                f"Nothing moved for {self._stall_after:g} s; go on from where it stopped, in a new stream.",
                NONE,
                retryable=True,
            )
        except (ArtifactError, TransferRefused, StoreUnavailable, Refusal) as error:
            ending = failure_of(error)
        else:
            return
        finally:
            self._running -= 1
        if reads:
            await stream.drain()
        if stream.is_begun:
            # An abort would wait behind what the peer has not read.
            tell(context, ending)
        else:
            await refuse(context, ending)


async def receive(stream: BulkStream, opened: Callable[[UploadHeader], Awaitable[Upload]]) -> UploadResponse:
    """Takes in an upload, which `opened` begins or continues. One that is cut off is left to be continued."""
    first = await _next_part(stream)
    if first is None or first.WhichOneof("part") != "header":
        raise InvalidArtifact("An upload begins with its header.")
    upload = await opened(first.header)
    await stream.tell({UPLOAD_ID: upload.id, UPLOAD_RECEIVED: str(upload.received)})
    while (part := await _next_part(stream)) is not None:
        if part.WhichOneof("part") != "chunk":
            await upload.abandon()
            raise InvalidArtifact("Only chunks follow the header of an upload; begin anew.")
        await upload.append(part.chunk)
    if upload.received < upload.size:
        return UploadResponse(upload_id=upload.id, received=upload.received)
    meta, evicted = await upload.finish()
    return UploadResponse(
        meta=meta_message(meta), evicted=[eviction_message(each) for each in evicted], received=upload.received
    )


async def send(stream: BulkStream, artifact: OpenArtifact, request: DownloadRequest) -> None:
    """Sends an artifact's meta, and the part of it that is asked for."""
    length = request.length if request.HasField("length") else None
    # A refusal is better told before the meta is.
    end_of(artifact.meta.size, request.offset, length)
    await stream.write(DownloadResponse(meta=meta_message(artifact.meta)).SerializeToString())
    async with aclosing(artifact.chunks(request.offset, length)) as chunks:
        async for chunk in chunks:
            await stream.write(chunk_message(chunk))


def chunk_message(chunk: bytes) -> bytes:
    """A `DownloadResponse` with a chunk, as bytes: a message object would copy these twice more."""
    size, header = len(chunk), bytearray(_CHUNK_TAG)
    while size >= _MORE:
        header.append(size & _SEVEN_BITS | _MORE)
        size >>= 7
    header.append(size)
    return bytes(header) + chunk


async def _next_part(stream: BulkStream) -> UploadRequest | None:
    message = await stream.read()
    if message is None:
        return None
    try:
        return UploadRequest.FromString(message)
    except DecodeError:
        raise InvalidArtifact("A message of the upload could not be read.") from None
