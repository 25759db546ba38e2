"""`Execute` without a sidecar: a bare grpc.aio bidirectional server that is itself the tool, one frame a message.

It answers every `Start` with an outcome that holds its arguments. The caller is the one that drives the sidecar.
"""

from __future__ import annotations

import sys
from typing import Any

import grpc.aio

from bench.bare.stubs import EXECUTE, ExecuteRequest, ExecuteResponse, Frame, Outcome, Result
from bench.baselines.server import serve_until_told
from bench.control import run


async def _execute(_requests: Any, context: Any) -> None:
    while isinstance(request := await context.read(), ExecuteRequest):
        frame = request.frames[0]
        outcome = Outcome(result=Result(json=frame.start.arguments))
        await context.write(ExecuteResponse(frames=[Frame(call=frame.call, outcome=outcome)]))


async def main(target: str) -> None:
    """Serves on `target` until stdin ends."""
    service, method = EXECUTE.strip("/").split("/")
    handler: grpc.RpcMethodHandler[ExecuteRequest, ExecuteResponse] = grpc.stream_stream_rpc_method_handler(
        _execute,
        request_deserializer=ExecuteRequest.FromString,
        response_serializer=ExecuteResponse.SerializeToString,
    )
    await serve_until_told(target, service, {method: handler})


if __name__ == "__main__":
    run(main(sys.argv[1]))
