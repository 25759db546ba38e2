"""What is asked of whatever keeps artifacts.

Errors::

    ArtifactError
    ├── ArtifactNotFound     missing, expired, another scope's or malformed: one answer, in the same words
    ├── InvalidArtifact      what was stated about it, or asked of it, is not valid
    │   ├── UnknownParents   it names artifacts that are not in its scope
    │   └── DigestMismatch   what came is not what it was said to be
    ├── ArtifactTooLarge     it would never fit
    ├── ArtifactsFull        it does not fit beside what there is
    ├── ArtifactCorrupt      what is kept is not what was put
    ├── UploadNotFound       missing, given up, taken over, another scope's or malformed: one answer
    └── UploadIncomplete     bytes are lacking; the upload goes on

Besides, every method may raise `StoreUnavailable`: the disk, say, could not be read or written, or is full. Nothing was
stored then. The text of each is a sentence for whoever asked, and quotes no payload, tenant or subject.
"""

import enum
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from sidecar.scope import Scope

KIB = 1024
MIB = 1024 * KIB
CHUNK_BYTES = 256 * KIB
"""What a payload is read by, at most."""
APPEND_BYTES = MIB
"""What may be appended at once, at most."""
DEFAULT_PAGE = 50
"""How many artifacts a page of a list has, where nobody says."""
LARGEST_PAGE = 200
"""And at most."""


class ArtifactError(Exception):
    """An artifact could not be put or got."""


class ArtifactNotFound(ArtifactError):
    """There is no such artifact in the scope. Says nothing of why."""

    def __init__(self) -> None:
        super().__init__("There is no such artifact here; List names those that there are.")


class InvalidArtifact(ArtifactError):
    """What was stated about an artifact, or asked of it, is not valid; the same would fail again."""


class UnknownParents(InvalidArtifact):
    """An artifact was to be made from some that are not in its scope."""

    def __init__(self, unresolved: Sequence[str]) -> None:
        super().__init__(f"Not every parent is an artifact in this scope; leave out: {', '.join(unresolved)}.")
        self.unresolved = tuple(unresolved)
        """The parents that are not there, in the order in which they were named."""


class DigestMismatch(InvalidArtifact):
    """The bytes that came do not have the digest that was stated."""

    def __init__(self) -> None:
        super().__init__("The bytes that came have another digest than the stated one; nothing was stored, send again.")


class ArtifactTooLarge(ArtifactError):
    """An artifact would not fit into its scope even if nothing else were there. Nothing gave way to it."""


class ArtifactsFull(ArtifactError):
    """The subject, or its tenant, has as much as it may have. Nothing gave way to the new one."""


class ArtifactCorrupt(ArtifactError):
    """What is kept of an artifact is not what was put."""

    def __init__(self) -> None:
        super().__init__("The stored payload is damaged; put it again, and have the sidecar's disk looked after.")


class UploadNotFound(ArtifactError):
    """There is no such upload to continue. Says nothing of why."""

    def __init__(self) -> None:
        super().__init__("There is no such upload to continue here; begin a new one.")


class UploadIncomplete(ArtifactError):
    """Not all bytes have come; the upload may be continued."""

    def __init__(self) -> None:
        super().__init__("Not all bytes have come; send those that are lacking.")


class ArtifactShape(enum.IntEnum):
    """In which shape a payload was put, and is got back. The numbers are those of the protocol."""

    BYTES = 1
    TEXT = 2
    """UTF-8."""
    JSON = 3
    """One JSON value, in UTF-8."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Which call made an artifact. Stamped by the sidecar, never taken from a tool."""

    tool_call_id: str
    """The caller's id of the call."""
    run_id: str | None = None
    """The caller's run."""
    tool: str | None = None
    execution_id: str | None = None


@dataclass(frozen=True, slots=True)
class ArtifactInput:
    """What a put states about a payload. Nothing of it was checked yet."""

    kind: str
    """The maker's own word for what it is."""
    media_type: str
    label: str | None = None
    """A name for people."""
    digest: bool = False
    """Whether to compute the digest."""
    expected_digest: str | None = None
    """The digest that the payload must have, as `ArtifactMeta.digest` writes it; it is computed then."""
    expires_in: float | None = None
    """How long to keep it, in seconds; `None`: as long as the store does."""
    parents: tuple[str, ...] = ()
    """References of the artifacts that it was made from."""


@dataclass(frozen=True, slots=True)
class ArtifactMeta:
    """What is known of an artifact. Times are in nanoseconds since the Unix epoch."""

    reference: str
    """`art_` and 22 base62 characters, random. It opens nothing without its scope."""
    kind: str
    media_type: str
    size: int
    """Bytes of the canonical form: raw bytes, UTF-8, or the JSON text."""
    shape: ArtifactShape
    created_at: int
    expires_at: int
    """From then on it is as if it had never been."""
    label: str | None = None
    digest: str | None = None
    """`sha-256:` and 64 lower-case hexadecimal digits, of the canonical form; `None`: nobody asked for it."""
    origin: Origin | None = None
    parents: tuple[str, ...] = ()


class EvictionReason(enum.IntEnum):
    """Why a store removed an artifact by itself. The numbers are those of the protocol."""

    EXPIRED = 1
    BYTES = 2
    """Its scope held too many bytes."""
    COUNT = 3
    """Its scope held too many artifacts."""


class Eviction(NamedTuple):
    """An artifact that a store removed by itself."""

    reference: str
    reason: EvictionReason
    kind: str
    size: int


class Stored(NamedTuple):
    """What a put did."""

    meta: ArtifactMeta
    evicted: tuple[Eviction, ...]
    """What it pushed out of its scope, in order: expired ones, then for their number, then for their bytes."""


class Page(NamedTuple):
    """A part of a list."""

    artifacts: tuple[ArtifactMeta, ...]
    """Newest first."""
    cursor: str | None
    """Where to go on; `None` exactly where there is no more."""


class OpenArtifact(Protocol):
    """An artifact that is being read. What is deleted or expires meanwhile can still be read to its end."""

    @property
    def meta(self) -> ArtifactMeta:
        """What is known of it."""
        ...

    def chunks(self, offset: int = 0, length: int | None = None) -> AsyncGenerator[bytes, None]:
        """Its bytes from an offset on, as many as there are or as asked for; each chunk at most `CHUNK_BYTES`.

        Where it has a digest and is read as a whole, the digest is checked before the last chunk is handed out.

        :raises InvalidArtifact: if the offset is not within it.
        :raises ArtifactCorrupt: if what is kept is not what was put.
        """
        ...


class Upload(Protocol):
    """A payload on its way in. One holder at a time: continuing it elsewhere takes it away from the earlier holder.

    Whoever holds it may leave it at any moment, also by cancelling what it waits for; it may be continued until it was
    left alone for too long. Each method raises `UploadNotFound` once it is over or somebody else's. It is over also
    when a method has raised anything but `UploadIncomplete`.
    """

    @property
    def id(self) -> str:
        """What it is continued by, within its scope."""
        ...

    @property
    def size(self) -> int:
        """How many bytes were declared."""
        ...

    @property
    def received(self) -> int:
        """How many bytes have come: where to go on."""
        ...

    async def append(self, data: bytes) -> None:
        """Takes the next bytes, at most `APPEND_BYTES` of them.

        :raises InvalidArtifact: if they are more than were declared, or not of the declared shape.
        """
        ...

    async def finish(self) -> Stored:
        """Stores the artifact; on return it is there, whatever happens to the sidecar. Again: the same answer.

        :raises UploadIncomplete: if bytes are lacking.
        :raises InvalidArtifact: if what came is not of the declared shape or digest.
        :raises ArtifactsFull: if others took its room meanwhile.
        """
        ...

    async def abandon(self) -> None:
        """Gives it up, and frees what it took. Afterwards, and after `finish`, nothing happens."""
        ...


class ArtifactStore(Protocol):
    """Keeps artifacts, each in its scope. Five verbs, and `begin` and `resume` for payloads that are large.

    It never grows a query, a filter or a transformation.
    """

    async def put(
        self,
        scope: Scope,
        stated: ArtifactInput,
        payload: bytes,
        shape: ArtifactShape = ArtifactShape.BYTES,
        origin: Origin | None = None,
    ) -> Stored:
        """Stores a payload that is in memory. As `begin`, `append` and `finish`, and raises what they do."""
        ...

    async def head(self, scope: Scope, reference: str) -> ArtifactMeta:
        """What is known of an artifact; also of one whose payload is damaged.

        :raises ArtifactNotFound: if there is no such artifact in the scope.
        """
        ...

    def get(self, scope: Scope, reference: str) -> AbstractAsyncContextManager[OpenArtifact]:
        """Opens an artifact, to be read inside the block.

        :raises ArtifactNotFound: if there is no such artifact in the scope.
        :raises ArtifactCorrupt: if its payload is not there, or has another size.
        """
        ...

    async def delete(self, scope: Scope, reference: str) -> None:
        """Removes an artifact. On return it is gone, or never was there: any text is agreed to."""
        ...

    async def list(self, scope: Scope, cursor: str | None = None, limit: int = DEFAULT_PAGE) -> Page:
        """The scope's artifacts, newest first; at least 1 and at most `LARGEST_PAGE` of them.

        What comes or goes meanwhile makes no other artifact appear twice or not at all. A cursor that is not one of
        this scope's begins anew.
        """
        ...

    async def begin(
        self,
        scope: Scope,
        stated: ArtifactInput,
        size: int,
        shape: ArtifactShape = ArtifactShape.BYTES,
        origin: Origin | None = None,
    ) -> Upload:
        """Begins to take in a payload of this size. Refuses before anything is stored or gives way.

        The size counts for the subject and its tenant from now on, until the upload is over.

        :raises InvalidArtifact: if what is stated is not valid.
        :raises UnknownParents: if a parent is not in the scope; all that are not are named together.
        :raises ArtifactTooLarge: if it would never fit.
        :raises ArtifactsFull: if it does not fit beside what the subject or its tenant has, or too many uploads are
            open.
        """
        ...

    async def resume(self, scope: Scope, upload_id: str) -> Upload:
        """Continues an upload, which is taken away from whoever held it.

        What the earlier holder handed in is in or not when this returns, so `received` says where to go on. One that is
        finished may be had again for a while, for its answer.

        :raises UploadNotFound: if there is no such upload in the scope.
        """
        ...
