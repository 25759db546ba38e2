"""The callers' service over gRPC."""

import time
from collections.abc import AsyncIterator, Callable

import grpc

from sidecar import __version__
from sidecar._gen.pillion.v1.context_pb2 import Identity
from sidecar._gen.pillion.v1.execute_pb2 import (
    CallRequest,
    CallResponse,
    CompleteConsentRequest,
    CompleteConsentResponse,
    EndScopeRequest,
    EndScopeResponse,
    GetInfoRequest,
    GetInfoResponse,
    ListToolsRequest,
    ListToolsResponse,
    WatchToolsRequest,
    WatchToolsResponse,
)
from sidecar._gen.pillion.v1.tool_pb2 import ToolDescriptor
from sidecar.calls.outcome import Refusal
from sidecar.calls.pipeline import Pipeline
from sidecar.calls.ports import Listing
from sidecar.doors.access import Context, tell_expired
from sidecar.doors.callers import CallerHost
from sidecar.doors.consent import Consents, complete_consent
from sidecar.doors.execute import too_large
from sidecar.doors.scopes import end_scope
from sidecar.doors.status import ENDING_CODES, refuse
from sidecar.doors.unary import run_call
from sidecar.policy import Policy
from sidecar.scope import Principal, scope_of
from sidecar.wire.grpc import GrpcTransport
from sidecar.wire.limits import WireLimits
from sidecar.wire.protocol import PROTOCOL, limits_message
from sidecar.wire.transport import StreamLost

SERVICE = "pillion.v1.ToolHostService"
EXPIRES_IN = "pillion-expires-in"
"""Initial metadata of a stream whose caller's token expires: in how many seconds it takes no new calls."""
_LISTING = "listing"


class ToolHost:
    """Handlers of `ToolHostService`. Thin: the rules are the pipeline's."""

    def __init__(
        self,
        callers: CallerHost,
        pipeline: Pipeline,
        listing: Listing,
        policy: Policy,
        consents: Consents,
        wire_limits: WireLimits,
        principal_of: Callable[[Context], Principal],
        expiry_of: Callable[[Context], float | None],
    ) -> None:
        self._callers = callers
        self._pipeline = pipeline
        self._listing = listing
        self._policy = policy
        self._consents = consents
        self._wire_limits = wire_limits
        self._principal_of = principal_of
        self._expiry_of = expiry_of
        self._started_at = pipeline.loop.time()

    def handler(self) -> grpc.GenericRpcHandler:
        """The handler to add to a server."""
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                # Bytes both ways: the wire parses and joins batches itself.
                "Execute": grpc.stream_stream_rpc_method_handler(self._execute),
                "Call": grpc.unary_unary_rpc_method_handler(
                    self._call, CallRequest.FromString, CallResponse.SerializeToString
                ),
                "ListTools": grpc.unary_unary_rpc_method_handler(
                    self._list_tools, ListToolsRequest.FromString, ListToolsResponse.SerializeToString
                ),
                "WatchTools": grpc.unary_stream_rpc_method_handler(
                    self._watch_tools, WatchToolsRequest.FromString, WatchToolsResponse.SerializeToString
                ),
                "GetInfo": grpc.unary_unary_rpc_method_handler(
                    self._get_info, GetInfoRequest.FromString, GetInfoResponse.SerializeToString
                ),
                "EndScope": grpc.unary_unary_rpc_method_handler(
                    self._end_scope, EndScopeRequest.FromString, EndScopeResponse.SerializeToString
                ),
                "CompleteConsent": grpc.unary_unary_rpc_method_handler(
                    self._complete_consent, CompleteConsentRequest.FromString, CompleteConsentResponse.SerializeToString
                ),
            },
        )

    async def _execute(self, _requests: object, context: Context) -> None:
        transport = GrpcTransport(context)
        until = self._expiry_of(context)
        if until is not None:
            try:
                await transport.tell({EXPIRES_IN: f"{max(until - time.time(), 0.0):.3f}"})
            except StreamLost:
                return
        ending = await self._callers.execute(transport, self._principal_of(context), until)
        if ending is not None:
            context.set_code(ENDING_CODES[ending.reason])
            context.set_details(ending.message)

    async def _call(self, request: CallRequest, context: Context) -> CallResponse:
        largest = self._wire_limits.max_frame_bytes
        if request.ByteSize() > largest:
            await refuse(context, too_large(request.ByteSize(), largest).failure)
        started, outcome = await run_call(self._pipeline, self._principal_of(context), request.start)
        if outcome.WhichOneof("kind") == "failure":
            await refuse(context, outcome.failure)
        return CallResponse(started=started, outcome=outcome)

    async def _list_tools(self, request: ListToolsRequest, context: Context) -> ListToolsResponse:
        tools, generation = self._listed(request.identity, self._principal_of(context))
        return ListToolsResponse(tools=tools, generation=generation)

    async def _watch_tools(self, request: WatchToolsRequest, context: Context) -> AsyncIterator[WatchToolsResponse]:
        # Asked once: a stream stays whose it was when it began.
        principal, until = self._principal_of(context), self._expiry_of(context)
        told: tuple[int, list[str]] | None = None
        while True:
            if until is not None and time.time() >= until:
                tell_expired(context)
                return
            tools, generation = self._listed(request.identity, principal)
            # Policy may change while the tools do not.
            now = (generation, [tool.name for tool in tools])
            if now != told:
                told = now
                yield WatchToolsResponse(tools=tools, generation=generation)
            else:
                await self._listing.changed()

    async def _get_info(self, _request: GetInfoRequest, context: Context) -> GetInfoResponse:
        principal = self._principal_of(context)
        info = GetInfoResponse(
            version=__version__,
            minimum=PROTOCOL,
            maximum=PROTOCOL,
            limits=limits_message(self._wire_limits, self._pipeline.limits.in_flight_per_stream),
            instance_id=self._pipeline.ids.process,
            features=("artifacts",) if self._pipeline.has_artifacts else (),
        )
        info.uptime.FromNanoseconds(int((self._pipeline.loop.time() - self._started_at) * 1e9))
        if principal.authenticated:
            info.caller_principal = principal.name
        if principal.is_local:
            info.counters.update(self._pipeline.counters.snapshot())
        return info

    async def _end_scope(self, request: EndScopeRequest, context: Context) -> EndScopeResponse:
        try:
            ended = await end_scope(request, self._principal_of(context), self._pipeline.teardowns, self._policy)
        except Refusal as refusal:
            await refuse(context, refusal.failure)
        return EndScopeResponse(fired=ended.fired, failed=ended.failed, cancelled=ended.cancelled)

    async def _complete_consent(self, request: CompleteConsentRequest, context: Context) -> CompleteConsentResponse:
        try:
            await complete_consent(request, self._principal_of(context), self._consents, self._policy)
        except Refusal as refusal:
            await refuse(context, refusal.failure)
        return CompleteConsentResponse()

    def _listed(self, identity: Identity, principal: Principal) -> tuple[list[ToolDescriptor], int]:
        """The tools that policy lets this caller know of, and their generation."""
        scope = scope_of(principal, identity, None, None, _LISTING)
        snapshot = self._listing.snapshot
        tools = [
            tool.descriptor
            for tool in snapshot.tools.values()
            if (decision := self._policy.decide(principal, scope, tool.name)).allowed or decision.listed
        ]
        return tools, snapshot.generation
