"""Gate 8: the artifacts that a tool declares it wants, in place of the references that its arguments hold."""

from collections.abc import Coroutine, Mapping
from typing import Any, NamedTuple

from sidecar._gen.pillion.v1.context_pb2 import ToolContext, WantedArtifact
from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind
from sidecar.artifacts.messages import data_message, meta_message
from sidecar.artifacts.port import (
    LARGEST_PAGE,
    ArtifactCorrupt,
    ArtifactNotFound,
    ArtifactStore,
    OpenArtifact,
)
from sidecar.artifacts.tokens import CallTokens
from sidecar.artifacts.transfers import Download
from sidecar.calls.call import Call
from sidecar.calls.outcome import Refusal, cut
from sidecar.calls.ports import Assignment
from sidecar.calls.stores import StoreUnavailable
from sidecar.calls.strict_json import parse
from sidecar.calls.tool import Tool
from sidecar.scope import Scope

_UNAVAILABLE = FailureKind.FAILURE_KIND_ARTIFACT_UNAVAILABLE
_NOT_THERE = "there is no such artifact here"
_DAMAGED = "its stored payload is damaged"
_SUGGESTED = 10
_RETRY_AFTER = 1.0
# What credentials and the rest of the context may still add to the frame.
_KEPT_FREE = 64 * 1024


class _Wish(NamedTuple):
    """What one argument holds, and what it is to be."""

    reference: str
    kind: str


class Wants:
    """Redeems the references in arguments, within the call's own scope. Arguments are never changed.

    All are judged before any is refused. One that is missing, expired, another scope's or no reference at all gets one
    answer; so does an argument that is no text.
    """

    def __init__(self, store: ArtifactStore, tokens: CallTokens, *, inline_bytes: int, frame_bytes: int) -> None:
        """Payloads of at most `inline_bytes` ride inside the invocation, as long as it stays below `frame_bytes`."""
        self._store = store
        self._tokens = tokens
        self._inline_bytes = inline_bytes
        self._frame_bytes = frame_bytes

    def supply(self, call: Call, tool: Tool) -> Coroutine[Any, Any, None] | None:
        """`Supplier.supply`. An argument that was not sent is left out."""
        invocation, scope = call.invocation, call.scope
        if invocation is None or scope is None:
            return None
        context = invocation.invoke.context
        context.ClearField("wanted")
        arguments = parse(invocation.invoke.arguments)
        if not isinstance(arguments, dict):
            return None
        wishes = {
            name: _Wish(value if isinstance(value := arguments[name], str) else "", kind)
            for name, kind in sorted(tool.descriptor.wants.items())
            if name in arguments
        }
        if not wishes:
            return None
        room = self._frame_bytes - invocation.ByteSize() - _KEPT_FREE
        return self._redeem(tool.name, scope, context, wishes, room)

    def placed(self, call: Call, assignment: Assignment) -> None:
        """`Supplier.placed`: what is not in the invocation itself gets a token for this instance."""
        invocation, scope = call.invocation, call.scope
        self._tokens.revoke(call)
        if invocation is None or scope is None:
            return
        for wanted in invocation.invoke.context.wanted.arguments.values():
            if not wanted.HasField("inline"):
                what = Download(scope, wanted.meta.reference)
                wanted.transfer_token = self._tokens.issue(call, what, assignment)

    async def _redeem(
        self, tool: str, scope: Scope, context: ToolContext, wishes: Mapping[str, _Wish], room: int
    ) -> None:
        wrong: dict[str, str] = {}
        for name, wish in wishes.items():
            try:
                async with self._store.get(scope, wish.reference) as artifact:
                    if artifact.meta.kind == wish.kind:
                        wanted = await self._wanted(artifact, room)
                        context.wanted.arguments[name].CopyFrom(wanted)
                        room -= wanted.ByteSize()
                    else:
                        wrong[name] = f"the artifact is of another kind than {wish.kind}"
            except ArtifactNotFound:
                wrong[name] = _NOT_THERE
            except ArtifactCorrupt:
                wrong[name] = _DAMAGED
            except StoreUnavailable as error:
                raise Refusal(
                    _UNAVAILABLE,
                    "The artifacts could not be read just now; try again later.",
                    retryable=True,
                    retry_after=_RETRY_AFTER,
                ) from error
        if wrong:
            there = await self._there_are(scope, {wishes[name].kind for name in wrong})
            told = "; ".join(f"{name}: {why}" for name, why in wrong.items())
            raise Refusal(_UNAVAILABLE, cut(f"{tool} did not run. {told}. {there}"))

    async def _wanted(self, artifact: OpenArtifact, room: int) -> WantedArtifact:
        meta = artifact.meta
        wanted = WantedArtifact(meta=meta_message(meta))
        if meta.size <= self._inline_bytes and meta.size + wanted.ByteSize() <= room:
            content = b"".join([chunk async for chunk in artifact.chunks()])
            wanted.inline.CopyFrom(data_message(meta, content))
        return wanted

    async def _there_are(self, scope: Scope, kinds: set[str]) -> str:
        """What would do instead: the newest of these kinds in the scope."""
        try:
            page = await self._store.list(scope, None, LARGEST_PAGE)
        except StoreUnavailable:
            return ""
        names = ", ".join(sorted(kinds))
        found = [meta.reference for meta in page.artifacts if meta.kind in kinds][:_SUGGESTED]
        return f"Of kind {names} there are: {', '.join(found)}." if found else f"Of kind {names} there is none here."
