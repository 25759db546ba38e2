"""RPCs of the protocol that this sidecar does not do: each is refused by name, with a typed failure."""

from collections.abc import Collection
from typing import Any, NoReturn

import grpc
import grpc.aio
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor

from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind
from sidecar.calls.outcome import NONE, failure
from sidecar.doors.status import refuse


def unsupported_handler(service: ServiceDescriptor, methods: Collection[str] | None = None) -> grpc.GenericRpcHandler:
    """A handler that refuses these methods of a service; by default all."""
    refused = [method for method in service.methods if methods is None or method.name in methods]
    return grpc.method_handlers_generic_handler(
        service.full_name, {method.name: _handler(service, method) for method in refused}
    )


def _handler(service: ServiceDescriptor, method: MethodDescriptor) -> Any:
    reason = failure(
        FailureKind.FAILURE_KIND_UNSUPPORTED,
        f"This sidecar does not do {service.name}.{method.name}; GetInfo says what it does.",
        NONE,
    )

    async def unsupported(_request: object, context: "grpc.aio.ServicerContext[Any, Any]") -> NoReturn:
        await refuse(context, reason)

    if method.client_streaming and method.server_streaming:
        return grpc.stream_stream_rpc_method_handler(unsupported)
    if method.client_streaming:
        return grpc.stream_unary_rpc_method_handler(unsupported)
    if method.server_streaming:
        return grpc.unary_stream_rpc_method_handler(unsupported)
    return grpc.unary_unary_rpc_method_handler(unsupported)
