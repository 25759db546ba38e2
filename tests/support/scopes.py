"""The end of a run or a session, as a caller asks for it."""

import grpc.aio

from sidecar._gen.pillion.v1.execute_pb2 import EndScopeRequest, EndScopeResponse
from sidecar._gen.pillion.v1.execute_pb2_grpc import ToolHostServiceStub
from sidecar.doors import scopes
from tests.support.host import Host, MemoryHost, SocketHost
from tests.support.process import SidecarProcess


async def end_scope(host: Host | SidecarProcess, request: EndScopeRequest) -> EndScopeResponse:
    """Ends a scope by the service; in memory, where there is none, by what is behind it."""
    if isinstance(host, MemoryHost):
        ended = await scopes.end_scope(request, host.principal, host.pipeline.teardowns, host.policy)
        return EndScopeResponse(fired=ended.fired, failed=ended.failed, cancelled=ended.cancelled)
    assert isinstance(host, SocketHost | SidecarProcess)
    async with grpc.aio.insecure_channel(host.callers_at) as channel:
        answer: EndScopeResponse = await ToolHostServiceStub(channel).EndScope(request)
        return answer
