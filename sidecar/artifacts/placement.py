"""Gate 12: large results as artifacts, where their tool says so."""

from collections.abc import Coroutine
from typing import Any

from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind
from sidecar.artifacts.messages import meta_message
from sidecar.artifacts.port import (
    ArtifactError,
    ArtifactInput,
    ArtifactMeta,
    ArtifactNotFound,
    ArtifactShape,
    ArtifactStore,
    Stored,
    UnknownParents,
)
from sidecar.artifacts.requests import origin_of
from sidecar.calls.call import Call
from sidecar.calls.causes import not_placed
from sidecar.calls.outcome import failed, failure
from sidecar.calls.result import effects_of_return, over_ceiling
from sidecar.calls.stores import StoreUnavailable
from sidecar.calls.tool import Tool
from sidecar.scope import Scope

_MEDIA_TYPE = "application/json"


class Placement:
    """Puts results that are over their tool's threshold, and takes over those that the worker has uploaded itself.

    An error, and a result without a value, is left as it is. A result that cannot be put is passed on as it is, and
    counted: it did fit into a frame.
    """

    def __init__(self, store: ArtifactStore) -> None:
        self._store = store

    def place(self, call: Call, tool: Tool, frame: Frame) -> Coroutine[Any, Any, Frame] | None:
        """`Placer.place`."""
        outcome, scope = frame.outcome, call.scope
        if scope is None or not outcome.HasField("result"):
            return None
        if outcome.HasField("uploaded_reference"):
            return self._take_over(call, tool, scope, frame)
        result = outcome.result
        if result.is_error or len(result.json) <= tool.descriptor.placement.over_bytes:
            return None
        return self._put(call, tool, scope, frame, _handed_to(call))

    async def _put(self, call: Call, tool: Tool, scope: Scope, frame: Frame, parents: tuple[str, ...]) -> Frame:
        try:
            try:
                stored = await self._stored(call, tool, scope, frame.outcome.result.json, parents)
            except UnknownParents:
                # One that was wanted is gone by now, which is no reason to refuse the result.
                stored = await self._stored(call, tool, scope, frame.outcome.result.json, ())
        except (ArtifactError, StoreUnavailable):
            call.count("unplaced_results")
            return frame
        return _placed(frame, stored.meta)

    async def _stored(self, call: Call, tool: Tool, scope: Scope, json: bytes, parents: tuple[str, ...]) -> Stored:
        stated = ArtifactInput(_kind_of(tool), _MEDIA_TYPE, label=f"{tool.name} result", parents=parents)
        return await self._store.put(scope, stated, json, ArtifactShape.JSON, origin_of(call))

    async def _take_over(self, call: Call, tool: Tool, scope: Scope, frame: Frame) -> Frame:
        try:
            meta = await self._store.head(scope, frame.outcome.uploaded_reference)
        except ArtifactNotFound:
            return _not_its_own(tool)
        except StoreUnavailable:
            return failed(not_placed(tool))
        origin = meta.origin
        if (
            origin is None
            or origin.execution_id != call.execution_id
            or meta.shape is not ArtifactShape.JSON
            or meta.kind != _kind_of(tool)
        ):
            return _not_its_own(tool)
        if tool.ceiling is not None and meta.size > tool.ceiling:
            return failed(over_ceiling(tool, meta.size))
        return _placed(frame, meta)


def _handed_to(call: Call) -> tuple[str, ...]:
    """References of the artifacts that the call was handed for its arguments, each once."""
    if call.invocation is None:
        return ()
    wanted = call.invocation.invoke.context.wanted.arguments.values()
    return tuple(dict.fromkeys(artifact.meta.reference for artifact in wanted))


def _kind_of(tool: Tool) -> str:
    placement = tool.descriptor.placement
    return placement.kind if placement.HasField("kind") else f"tool-result/{tool.name}"


def _placed(frame: Frame, meta: ArtifactMeta) -> Frame:
    outcome = frame.outcome
    outcome.ClearField("uploaded_reference")
    outcome.result.ClearField("json")
    outcome.result.placed.CopyFrom(meta_message(meta))
    return frame


def _not_its_own(tool: Tool) -> Frame:
    """The outcome in place of one that names an artifact which is not this call's result."""
    return failed(
        failure(
            FailureKind.FAILURE_KIND_INTERNAL,
            f"The worker of {tool.name} named an artifact as its result that is not a JSON one of kind "
            f"{_kind_of(tool)}, uploaded in this call.",
            effects_of_return(tool),
        )
    )
