"""The workers' service over gRPC."""

from collections.abc import Awaitable, Callable

import grpc
import grpc.aio

from sidecar.doors.status import ENDING_CODES
from sidecar.wire.ending import Ending
from sidecar.wire.grpc import GrpcTransport
from sidecar.wire.transport import Transport

SERVICE = "pillion.v1.WorkerHostService"


def worker_host_handler(attach: Callable[[Transport], Awaitable[Ending | None]]) -> grpc.GenericRpcHandler:
    """The handler of `WorkerHostService`, for a server that listens for workers."""

    async def handle(_requests: object, context: "grpc.aio.ServicerContext[bytes, bytes]") -> None:
        ending = await attach(GrpcTransport(context))
        if ending is not None:
            context.set_code(ENDING_CODES[ending.reason])
            context.set_details(ending.message)

    return grpc.method_handlers_generic_handler(SERVICE, {"Attach": grpc.stream_stream_rpc_method_handler(handle)})
