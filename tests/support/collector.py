"""A collector of traces: a real gRPC server that takes spans over OTLP, and keeps them."""

import asyncio

import grpc.aio
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

_PATIENCE = 15.0


class Sink:
    """A collector: a gRPC server that keeps the spans it is sent."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, Span]] = []
        """With the service that each is of."""
        self.requests: list[bytes] = []
        self.held: asyncio.Event | None = None
        """While it is there and not set, nothing is answered."""
        self.port = 0
        self._news = asyncio.Event()
        self._server = grpc.aio.server()

    async def open(self) -> None:
        handler: grpc.RpcMethodHandler[bytes, ExportTraceServiceResponse] = grpc.unary_unary_rpc_method_handler(
            self._export, response_serializer=ExportTraceServiceResponse.SerializeToString
        )
        self._server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(
                    "opentelemetry.proto.collector.trace.v1.TraceService", {"Export": handler}
                ),
            )
        )
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()

    async def aclose(self) -> None:
        if self.held is not None:
            self.held.set()
        await self._server.stop(0)

    async def of(self, service: str, count: int = 1) -> list[Span]:
        """The spans of a service, once there are so many; there must not be more."""
        async with asyncio.timeout(_PATIENCE):
            while len(found := [span for name, span in self.spans if name == service]) < count:
                self._news.clear()
                await self._news.wait()
        assert len(found) == count
        return found

    async def _export(self, request: bytes, _: object) -> ExportTraceServiceResponse:
        if self.held is not None:
            await self.held.wait()
        self.requests.append(request)
        for resource in ExportTraceServiceRequest.FromString(request).resource_spans:
            named = {each.key: each.value.string_value for each in resource.resource.attributes}
            for scope in resource.scope_spans:
                self.spans += [(named["service.name"], span) for span in scope.spans]
        self._news.set()
        return ExportTraceServiceResponse()
