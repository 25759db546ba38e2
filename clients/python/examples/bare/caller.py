"""One call over bare gRPC stubs: progress on standard error, the result as JSON on standard output."""

import argparse
import asyncio
import json
import sys
from contextlib import suppress

from grpc import aio

from pillion._gen.pillion.v1 import call_pb2, execute_pb2, execute_pb2_grpc, frame_pb2


async def call(target: str, tool: str, arguments: str) -> str | None:
    """Runs the tool and prints what comes of it. Returns a sentence if it failed."""
    start = frame_pb2.Frame(call=1, start=call_pb2.Start(tool=tool, arguments=arguments.encode()))
    request = execute_pb2.ExecuteRequest(frames=[start])
    async with aio.insecure_channel(target) as channel:
        try:
            async for message in execute_pb2_grpc.ToolHostServiceStub(channel).Execute(iter([request])):
                for frame in message.frames:
                    if frame.HasField("progress"):
                        report = frame.progress.payload.decode(errors="replace")
                        with suppress(ValueError, TypeError, LookupError, RecursionError):  # It has no message.
                            report = str.strip(json.loads(report)["message"])
                        print(report, file=sys.stderr)
                    elif frame.outcome.HasField("result"):
                        print(frame.outcome.result.json.decode())
                        return "The tool says that this is an error." if frame.outcome.result.is_error else None
                    elif frame.HasField("outcome"):
                        return frame.outcome.failure.message or "The call ended without a result."
            return "The stream ended without an outcome."
        except aio.AioRpcError as lost:
            return f"The stream was lost: {lost.code().name}: {lost.details()}"


parser = argparse.ArgumentParser(usage="%(prog)s TARGET TOOL ARGUMENTS")
parser.add_argument("call", nargs=3)
sys.exit(asyncio.run(call(*parser.parse_args().call)))
