"""The operator's service over gRPC, for users of this machine, and for those whom the settings name."""

import time
from collections.abc import AsyncIterator, Callable
from typing import Protocol

import grpc

from sidecar._gen.pillion.v1.admin_pb2 import (
    AdminServiceEndScopeRequest,
    AdminServiceEndScopeResponse,
    CancelCallRequest,
    CancelCallResponse,
    ListCallsRequest,
    ListCallsResponse,
    ShutdownRequest,
    ShutdownResponse,
    WatchCallsRequest,
    WatchCallsResponse,
)
from sidecar._gen.pillion.v1.context_pb2 import CancelReason
from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind
from sidecar.calls.context import LONGEST
from sidecar.calls.outcome import NONE, Refusal, failure
from sidecar.calls.pipeline import Pipeline
from sidecar.calls.summary import summary_of
from sidecar.doors.access import Context, tell_expired
from sidecar.doors.scopes import end_any_scope
from sidecar.doors.status import refuse
from sidecar.scope import Principal

SERVICE = "pillion.v1.AdminService"
_MOST_LISTED = 1_000


class Deeds(Protocol):
    """Who is told what operators did."""

    def cancelled(self, operator: Principal, execution: str) -> None:
        """An operator asked a call to stop."""
        ...

    def shut_down(self, operator: Principal, grace: float | None) -> None:
        """An operator asked the sidecar to stop."""
        ...


class Admin:
    """Handlers of `AdminService`. Refused to everyone but operators, as users of the unix socket are."""

    def __init__(
        self,
        pipeline: Pipeline,
        shut_down: Callable[[float | None], None],
        principal_of: Callable[[Context], Principal],
        expiry_of: Callable[[Context], float | None],
        is_operator: Callable[[Principal], bool],
        deeds: Deeds,
    ) -> None:
        self._pipeline = pipeline
        self._shut_down = shut_down
        self._principal_of = principal_of
        self._expiry_of = expiry_of
        self._is_operator = is_operator
        self._deeds = deeds

    def handler(self) -> grpc.GenericRpcHandler:
        """The handler to add to a server."""
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "ListCalls": grpc.unary_unary_rpc_method_handler(
                    self._list_calls, ListCallsRequest.FromString, ListCallsResponse.SerializeToString
                ),
                "WatchCalls": grpc.unary_stream_rpc_method_handler(
                    self._watch_calls, WatchCallsRequest.FromString, WatchCallsResponse.SerializeToString
                ),
                "CancelCall": grpc.unary_unary_rpc_method_handler(
                    self._cancel_call, CancelCallRequest.FromString, CancelCallResponse.SerializeToString
                ),
                "EndScope": grpc.unary_unary_rpc_method_handler(
                    self._end_scope,
                    AdminServiceEndScopeRequest.FromString,
                    AdminServiceEndScopeResponse.SerializeToString,
                ),
                "Shutdown": grpc.unary_unary_rpc_method_handler(
                    self._shutdown, ShutdownRequest.FromString, ShutdownResponse.SerializeToString
                ),
            },
        )

    async def _list_calls(self, request: ListCallsRequest, context: Context) -> ListCallsResponse:
        await self._check(context)
        running = [
            call for call in self._pipeline.running if not request.HasField("tool") or call.tool_name == request.tool
        ]
        running.sort(key=lambda call: call.started_at)
        limit = min(request.limit, _MOST_LISTED) if request.HasField("limit") else _MOST_LISTED
        now = self._pipeline.loop.time()
        redact = self._pipeline.redact
        return ListCallsResponse(calls=[summary_of(call, now, redact) for call in running[:limit]], total=len(running))

    async def _watch_calls(self, request: WatchCallsRequest, context: Context) -> AsyncIterator[WatchCallsResponse]:
        await self._check(context)
        with self._pipeline.watched(request.tool if request.HasField("tool") else None) as watcher:
            # Says that nothing is missed from now on, though nothing may happen for long.
            await context.send_initial_metadata(())
            until = self._expiry_of(context)
            while True:
                news = await watcher.take()
                if until is not None and time.time() >= until:
                    tell_expired(context)
                    return
                yield news

    async def _cancel_call(self, request: CancelCallRequest, context: Context) -> CancelCallResponse:
        await self._check(context)
        for call in self._pipeline.running:
            if call.execution_id == request.execution_id:
                self._deeds.cancelled(self._principal_of(context), call.execution_id)
                call.cancel(CancelReason.CANCEL_REASON_OPERATOR)
                return CancelCallResponse(found=True)
        return CancelCallResponse(found=False)

    async def _end_scope(self, request: AdminServiceEndScopeRequest, context: Context) -> AdminServiceEndScopeResponse:
        await self._check(context)
        try:
            ended = await end_any_scope(request, self._principal_of(context), self._pipeline.teardowns)
        except Refusal as refusal:
            await refuse(context, refusal.failure)
        return AdminServiceEndScopeResponse(fired=ended.fired, failed=ended.failed, cancelled=ended.cancelled)

    async def _shutdown(self, request: ShutdownRequest, context: Context) -> ShutdownResponse:
        await self._check(context)
        grace = None
        if request.HasField("grace"):
            grace = min(max(request.grace.seconds + request.grace.nanos / 1e9, 0.0), LONGEST)
        running = len(self._pipeline.running)
        self._deeds.shut_down(self._principal_of(context), grace)
        self._shut_down(grace)
        return ShutdownResponse(running=running)

    async def _check(self, context: Context) -> None:
        if not self._is_operator(self._principal_of(context)):
            await refuse(
                context,
                failure(
                    FailureKind.FAILURE_KIND_DENIED,
                    "The operator's service is for users of the sidecar's machine, by its unix socket, and for those "
                    "that listen.operators names.",
                    NONE,
                ),
            )
