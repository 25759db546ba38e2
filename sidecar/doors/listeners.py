"""The gRPC servers: one for callers, one for workers, each on its own address."""

import os
from dataclasses import dataclass

import grpc
import grpc.aio
from grpc_channelz.v1 import channelz
from grpc_health.v1 import health_pb2
from grpc_health.v1.health import aio as health_aio
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server
from grpc_reflection.v1alpha import reflection

from sidecar._gen.pillion.v1 import admin_pb2, artifacts_pb2, execute_pb2
from sidecar.doors.access import Access
from sidecar.doors.address import Address
from sidecar.doors.certificates import Certificates
from sidecar.doors.guard import Guard
from sidecar.telemetry import Counters
from sidecar.wire.grpc import SERVER_OPTIONS

_PRIVATE = 0o177

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@dataclass(frozen=True, slots=True)
class Listener:
    """Where one server listens, and to whom."""

    address: Address
    access: Access
    certificates: Certificates | None = None
    """What it proves itself with; `None`: it does not, and nothing is encrypted."""

    def renew(self, other: "Listener") -> None:
        """Takes over the tokens, keys and certificates of another listener of the same kind."""
        self.access.renew(other.access)
        if self.certificates is not None and other.certificates is not None:
            self.certificates.renew(other.certificates)


class Listeners:
    """Both servers. They listen from `start` to `stop`."""

    def __init__(self, callers: Listener, workers: Listener, counters: Counters) -> None:
        self.callers = callers
        """Of those who ask."""
        self.workers = workers
        """Of those who host tools."""
        self.health = health_aio.HealthServicer()
        guards = (
            Guard(callers.access, "refused_callers", counters),
            Guard(workers.access, "refused_workers", counters),
        )
        self._callers, self._workers = (
            grpc.aio.server(interceptors=(guard,), options=SERVER_OPTIONS) for guard in guards
        )

    async def start(
        self,
        tool_host: grpc.GenericRpcHandler,
        admin_door: grpc.GenericRpcHandler,
        worker_host: grpc.GenericRpcHandler,
        artifact_door: grpc.GenericRpcHandler,
        transfer_door: grpc.GenericRpcHandler,
        *,
        reflection_by_tcp: bool = False,
    ) -> tuple[str, str]:
        """Listens; answers where, with the ports that were chosen.

        :raises OSError: if an address cannot be had.
        """
        execute = execute_pb2.DESCRIPTOR.services_by_name["ToolHostService"]
        artifacts = artifacts_pb2.DESCRIPTOR.services_by_name["ArtifactService"]
        admin = admin_pb2.DESCRIPTOR.services_by_name["AdminService"]
        self._callers.add_generic_rpc_handlers((tool_host, artifact_door, admin_door))
        self._workers.add_generic_rpc_handlers((worker_host, transfer_door))
        add_HealthServicer_to_server(self.health, self._callers)
        add_HealthServicer_to_server(self.health, self._workers)
        is_local = self.callers.address.socket is not None
        if is_local:
            # It tells of every connection, so it is for users of this machine.
            channelz.add_channelz_servicer(self._callers)
        if is_local or reflection_by_tcp:
            names = [service.full_name for service in (execute, artifacts, admin)]
            reflection.enable_server_reflection([*names, reflection.SERVICE_NAME], self._callers)
        addresses = (_bind(self._callers, self.callers), _bind(self._workers, self.workers))
        await self._callers.start()
        await self._workers.start()
        return addresses

    async def stop(self, grace: float) -> None:
        """Stops listening; what is still open ends after the grace, in seconds."""
        await self.health.enter_graceful_shutdown()
        await self._callers.stop(grace)
        await self._workers.stop(grace)


def _bind(server: grpc.aio.Server, listener: Listener) -> str:
    address, certificates = listener.address, listener.certificates
    if address.socket is None:
        try:
            if certificates is None:
                port = server.add_insecure_port(address.text)
            else:
                port = server.add_secure_port(address.text, certificates.credentials())
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
    if address.group is not None:
        os.chown(address.socket, -1, address.group)
        address.socket.chmod(address.mode)
    return address.text
