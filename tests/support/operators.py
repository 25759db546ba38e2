"""An operator who asks a sidecar what runs."""

from types import TracebackType
from typing import Any, Self

import grpc.aio
from google.protobuf.duration_pb2 import Duration

from sidecar._gen.pillion.v1.admin_pb2 import (
    AdminServiceEndScopeRequest,
    AdminServiceEndScopeResponse,
    CancelCallRequest,
    CancelCallResponse,
    ListCallsRequest,
    ListCallsResponse,
    ShutdownRequest,
    ShutdownResponse,
)
from tests.support.host import SocketHost


class Operator:
    """Asks the sidecar at an address."""

    def __init__(self, host: SocketHost) -> None:
        self._channel = grpc.aio.insecure_channel(host.callers_at)

    async def calls(self, **fields: Any) -> ListCallsResponse:
        answer: ListCallsResponse = await self._ask("ListCalls", ListCallsRequest(**fields), ListCallsResponse)
        return answer

    async def cancel(self, execution_id: str) -> bool:
        request = CancelCallRequest(execution_id=execution_id)
        answer: CancelCallResponse = await self._ask("CancelCall", request, CancelCallResponse)
        return answer.found

    async def shut_down(self, grace: Duration | None = None) -> ShutdownResponse:
        request = ShutdownRequest(grace=grace)
        answer: ShutdownResponse = await self._ask("Shutdown", request, ShutdownResponse)
        return answer

    async def end_scope(self, **fields: Any) -> AdminServiceEndScopeResponse:
        answer: AdminServiceEndScopeResponse = await self._ask(
            "EndScope", AdminServiceEndScopeRequest(**fields), AdminServiceEndScopeResponse
        )
        return answer

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._channel.close()

    async def _ask(self, method: str, request: Any, answer: Any) -> Any:
        call = self._channel.unary_unary(
            f"/pillion.v1.AdminService/{method}", type(request).SerializeToString, answer.FromString
        )
        return await call(request)
