"""Tokens for bulk transfers between the sidecar and the workers of calls."""

import asyncio
import enum
import hashlib
import secrets
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

from sidecar.artifacts.port import ArtifactInput, ArtifactsFull, ArtifactShape, Origin
from sidecar.scope import Scope

_TOKEN_BYTES = 32
_MOST_PER_CALL = 1_024


class TransferRefused(Exception):
    """The token opens nothing here. Says nothing of why."""

    def __init__(self) -> None:
        super().__init__("The transfer token opens nothing here; ask for one within the call, and use it there once.")


class Direction(enum.Enum):
    """Which way the bytes go."""

    DOWNLOAD = enum.auto()
    """To the worker."""
    UPLOAD = enum.auto()
    """From the worker."""


@dataclass(frozen=True, slots=True)
class Download:
    """An artifact that a worker may read."""

    scope: Scope
    reference: str


@dataclass(frozen=True, slots=True)
class Slot:
    """An artifact that a worker may put."""

    scope: Scope
    stated: ArtifactInput
    size: int
    shape: ArtifactShape
    origin: Origin


class Holder(Protocol):
    """The worker instance that runs a call."""

    def knows(self, secret: str) -> bool:
        """Whether this is the instance's own secret. Takes the same time for each wrong one."""
        ...


@dataclass(slots=True, eq=False)
class Transfer:
    """What a token stands for, while it is used."""

    what: Download | Slot
    execution_id: str
    holder: Holder
    upload_id: str | None = None
    """The upload of its slot that was begun, if one was."""
    is_used_up: bool = False
    """Set by whoever has claimed it, once all was transferred: the token is worth nothing then."""
    running: asyncio.Timeout | None = field(default=None, repr=False)
    """Ends what runs with it; `None`: nothing does."""


class Transfers:
    """The tokens there are. Each is for one artifact or slot, one direction, one call and one worker instance.

    A token opens one transfer at a time. One that was interrupted may be taken up again with it; one that is complete
    uses it up. What is kept of a token is its digest.
    """

    def __init__(self, *, most_per_call: int = _MOST_PER_CALL) -> None:
        self._most_per_call = most_per_call
        self._transfers: dict[bytes, Transfer] = {}
        self._calls: defaultdict[str, set[bytes]] = defaultdict(set)

    def __len__(self) -> int:
        return len(self._transfers)

    def issue(self, what: Download | Slot, execution_id: str, holder: Holder) -> str:
        """A token for the instance that runs the call. It dies with the call, so `end` must be called for that.

        :raises ArtifactsFull: if the call has too many already.
        """
        tokens = self._calls[execution_id]
        if len(tokens) >= self._most_per_call:
            raise ArtifactsFull("The call has too many transfers open; use those that it has, or put less at once.")
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        digest = _digest(token)
        self._transfers[digest] = Transfer(what, execution_id, holder)
        tokens.add(digest)
        return token

    def end(self, execution_id: str) -> list[tuple[Scope, str]]:
        """The call has ended: its tokens are worth nothing any more, and what runs with them ends.

        Answers the uploads that were begun with them and are not complete, by scope and id: nobody can continue them.
        """
        left = []
        for digest in self._calls.pop(execution_id, ()):
            transfer = self._transfers.pop(digest)
            if transfer.running is not None:
                transfer.running.reschedule(asyncio.get_running_loop().time())
            if transfer.upload_id is not None:
                left.append((transfer.what.scope, transfer.upload_id))
        return left

    @asynccontextmanager
    async def claim(self, token: str, direction: Direction, secret: str) -> AsyncIterator[Transfer]:
        """What the token stands for, for the instance with this secret. The block is cut off if the call ends.

        :raises TransferRefused: if the token is none, is used up or in use, is another instance's or for the other
            direction, or its call has ended, also while the block runs. All of these are one answer.
        """
        digest = _digest(token)
        transfer = self._transfers.get(digest)
        if (
            transfer is None
            or not transfer.holder.knows(secret)
            or transfer.running is not None
            or isinstance(transfer.what, Slot) is not (direction is Direction.UPLOAD)
        ):
            raise TransferRefused
        limit = asyncio.timeout(None)
        try:
            async with limit:
                transfer.running = limit
                yield transfer
        except TimeoutError:
            if limit.expired():
                raise TransferRefused from None
            raise
        finally:
            transfer.running = None
            if transfer.is_used_up and self._transfers.pop(digest, None) is not None:
                self._forget(transfer, digest)

    def _forget(self, transfer: Transfer, digest: bytes) -> None:
        tokens = self._calls[transfer.execution_id]
        tokens.discard(digest)
        if not tokens:
            del self._calls[transfer.execution_id]


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()
