"""The transfer tokens of running calls, from the moment they are given out until their call has ended."""

import asyncio
from contextlib import suppress
from functools import partial

from sidecar.artifacts.port import ArtifactStore, UploadNotFound
from sidecar.artifacts.transfers import Download, Slot, Transfers
from sidecar.calls.call import Call
from sidecar.calls.ports import Assignment
from sidecar.scope import Scope


class CallTokens:
    """Gives calls their tokens, and takes them back: a token is worth nothing once its call is over."""

    def __init__(self, transfers: Transfers, store: ArtifactStore) -> None:
        self._transfers = transfers
        self._store = store
        self._calls: set[str] = set()
        """The executions that have had tokens and are not over."""
        self._abandoning: set[asyncio.Task[None]] = set()

    def issue(self, call: Call, what: Download | Slot, holder: Assignment) -> str:
        """A token for the instance that runs the call.

        :raises ArtifactsFull: if the call has too many already.
        """
        token = self._transfers.issue(what, call.execution_id, holder)
        if call.execution_id not in self._calls:
            self._calls.add(call.execution_id)
            call.at_end(partial(self._over, call.execution_id))
        return token

    def revoke(self, call: Call) -> None:
        """Takes back what the call's earlier instance was given, and gives up what it has begun to upload."""
        if call.execution_id in self._calls:
            self._end(call.execution_id)

    async def settled(self) -> None:
        """Waits until what ended calls had begun to upload is given up."""
        while self._abandoning:
            await asyncio.wait(self._abandoning)

    def _over(self, execution_id: str) -> None:
        self._calls.discard(execution_id)
        self._end(execution_id)

    def _end(self, execution_id: str) -> None:
        for scope, upload_id in self._transfers.end(execution_id):
            task = asyncio.get_running_loop().create_task(abandon(self._store, scope, upload_id))
            self._abandoning.add(task)
            task.add_done_callback(self._abandoning.discard)


async def abandon(store: ArtifactStore, scope: Scope, upload_id: str) -> None:
    """Gives up an upload, if it is still open."""
    with suppress(UploadNotFound):
        await (await store.resume(scope, upload_id)).abandon()
