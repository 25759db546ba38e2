"""The gRPC servers: one for callers, one for workers, each on its own address."""

import os
from typing import Any

import grpc
import grpc.aio
from grpc_channelz.v1 import channelz
from grpc_health.v1 import health_pb2
from grpc_health.v1.health import aio as health_aio
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server
from grpc_reflection.v1alpha import reflection

from sidecar._gen.pillion.v1 import admin_pb2, artifacts_pb2, execute_pb2
from sidecar.doors.address import Address
from sidecar.doors.guard import Guard
from sidecar.doors.unsupported import unsupported_handler
from sidecar.scope import Principal, local_principal
from sidecar.telemetry import Counters
from sidecar.wire.grpc import SERVER_OPTIONS

_PRIVATE = 0o177
_INSECURE = Principal("insecure:loopback", authenticated=False)

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def principal_of(context: "grpc.aio.ServicerContext[Any, Any]") -> Principal:
    """Who is at the other end: the owner of the unix socket, or nobody that could be told."""
    return local_principal(os.getuid()) if context.peer().startswith("unix:") else _INSECURE


def allowed_principals(*, insecure: bool) -> frozenset[str]:
    """The names of those whom these listeners let in."""
    local = local_principal(os.getuid()).name
    return frozenset((local, _INSECURE.name)) if insecure else frozenset((local,))


class Listeners:
    """Both servers. They listen from `start` to `stop`."""

    def __init__(self, counters: Counters) -> None:
        self.health = health_aio.HealthServicer()
        self._callers = grpc.aio.server(interceptors=(Guard(counters),), options=SERVER_OPTIONS)
        self._workers = grpc.aio.server(interceptors=(Guard(counters),), options=SERVER_OPTIONS)

    async def start(
        self,
        callers: Address,
        workers: Address,
        tool_host: grpc.GenericRpcHandler,
        admin_door: grpc.GenericRpcHandler,
        worker_host: grpc.GenericRpcHandler,
    ) -> tuple[str, str]:
        """Listens; answers where, with the ports that were chosen.

        :raises OSError: if an address cannot be had.
        """
        execute = execute_pb2.DESCRIPTOR.services_by_name["ToolHostService"]
        artifacts = artifacts_pb2.DESCRIPTOR.services_by_name["ArtifactService"]
        admin = admin_pb2.DESCRIPTOR.services_by_name["AdminService"]
        self._callers.add_generic_rpc_handlers(
            (
                tool_host,
                unsupported_handler(execute, ("EndScope", "CompleteConsent")),
                unsupported_handler(artifacts),
                admin_door,
                unsupported_handler(admin, ("WatchCalls",)),
            )
        )
        self._workers.add_generic_rpc_handlers((worker_host, unsupported_handler(artifacts, ("Upload", "Download"))))
        add_HealthServicer_to_server(self.health, self._callers)
        add_HealthServicer_to_server(self.health, self._workers)
        if callers.socket is not None:
            # They tell of every connection, so they are for users of this machine.
            channelz.add_channelz_servicer(self._callers)
            names = [service.full_name for service in (execute, artifacts, admin)]
            reflection.enable_server_reflection([*names, reflection.SERVICE_NAME], self._callers)
        addresses = (_bind(self._callers, callers), _bind(self._workers, workers))
        await self._callers.start()
        await self._workers.start()
        return addresses

    async def stop(self, grace: float) -> None:
        """Stops listening; what is still open ends after the grace, in seconds."""
        await self.health.enter_graceful_shutdown()
        await self._callers.stop(grace)
        await self._workers.stop(grace)


def _bind(server: grpc.aio.Server, address: Address) -> str:
    if address.socket is None:
        try:
            port = server.add_insecure_port(address.text)
        except RuntimeError:
            port = 0
        if not port:
            raise OSError(f"{address.text} cannot be listened on; is it in use?")
        return f"{address.text.rpartition(':')[0]}:{port}"
    # The socket is made by gRPC with the process's mask: for this user alone from its first moment.
    before = os.umask(_PRIVATE)
    try:
        server.add_insecure_port(address.text)
    except RuntimeError:
        raise OSError(f"{address.text} cannot be listened on; may this user write there?") from None
    finally:
        os.umask(before)
    return address.text
