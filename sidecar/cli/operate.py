"""`pillion calls`, `cancel`, `wait-ready` and `shutdown`."""

import argparse
import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import grpc
import grpc.aio
from google.protobuf.duration_pb2 import Duration
from grpc_health.v1 import health_pb2

from sidecar._gen.pillion.v1.admin_pb2 import (
    CallState,
    CancelCallRequest,
    ListCallsRequest,
    ShutdownRequest,
)
from sidecar._gen.pillion.v1.admin_pb2_grpc import AdminServiceStub
from sidecar.calls.context import set_seconds
from sidecar.cli.console import say, tell
from sidecar.cli.main import USAGE
from sidecar.cli.reach import Reach, Unreachable, reach_of
from sidecar.config import ConfigRefused
from sidecar.doors.address import UNIX, is_loopback
from sidecar.private_files import tokens_in

_ANSWER_SECONDS = 10.0
_OPTIONS = (
    # A proxy is never between this machine's programs.
    ("grpc.enable_http_proxy", 0),
    # A sidecar that is starting is there within a second, so look for it often.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
)
_WATCH = "/grpc.health.v1.Health/Watch"
_SERVING = health_pb2.HealthCheckResponse.SERVING
_STATE = "CALL_STATE_"

_Action = Callable[[argparse.Namespace, "_Way"], Awaitable[int]]
_Metadata = tuple[tuple[str, str], ...]


class _Way(NamedTuple):
    """A channel to the sidecar, and what goes with each request."""

    channel: grpc.aio.Channel
    metadata: _Metadata


def run(options: argparse.Namespace) -> int:
    """Does what was asked of the sidecar; answers the exit code."""
    actions: dict[str, _Action] = {
        "calls": _calls,
        "cancel": _cancel,
        "wait_ready": _wait_ready,
        "shutdown": _shutdown,
    }
    try:
        return asyncio.run(_with_channel(options, actions[options.action]))
    except (ConfigRefused, Unreachable) as error:
        tell(str(error))
        return USAGE


async def _with_channel(options: argparse.Namespace, action: _Action) -> int:
    reach = reach_of(options)
    token, channel = _opened(reach)
    async with channel:
        try:
            return await action(options, _Way(channel, token))
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                raise Unreachable(reach.target) from None
            if error.code() is grpc.StatusCode.UNAUTHENTICATED:
                raise Unreachable(reach.target, refusal=error.details() or "") from None
            tell(error.details() or error.code().name)
            return 1


def _opened(reach: Reach) -> tuple[_Metadata, grpc.aio.Channel]:
    token: _Metadata = ()
    if reach.token_file is not None:
        if not (reach.is_encrypted or reach.target.startswith(UNIX) or is_loopback(reach.target.rpartition(":")[0])):
            raise ConfigRefused("A token would go over the network in the clear: name certificates by --tls-ca.")
        token = (("authorization", f"Bearer {tokens_in(reach.token_file, 'The token file')[0]}"),)
    if not reach.is_encrypted:
        return token, grpc.aio.insecure_channel(reach.target, options=_OPTIONS)
    pem: list[bytes | None] = []
    for path in (reach.ca, reach.key, reach.certificate):
        try:
            pem.append(None if path is None else path.read_bytes())
        except OSError as error:
            raise ConfigRefused(f"{path} cannot be read: {error.strerror}.") from None
    name = (("grpc.ssl_target_name_override", reach.server_name),) if reach.server_name else ()
    credentials = grpc.ssl_channel_credentials(*pem)
    return token, grpc.aio.secure_channel(reach.target, credentials, options=(*_OPTIONS, *name))


async def _calls(options: argparse.Namespace, way: _Way) -> int:
    answer = await AdminServiceStub(way.channel).ListCalls(
        ListCallsRequest(), timeout=_ANSWER_SECONDS, metadata=way.metadata
    )
    if options.json:
        for call in answer.calls:
            facts = {
                "execution_id": call.execution_id,
                "tool_call_id": call.tool_call_id,
                "tool": call.tool,
                "state": CallState.Name(call.state).removeprefix(_STATE).lower(),
                "worker": call.worker if call.HasField("worker") else None,
                "instance": call.worker_instance_id if call.HasField("worker_instance_id") else None,
                "age_seconds": _seconds(call.age),
                "remaining_seconds": _seconds(call.remaining),
                "reports": call.reports,
            }
            say(json.dumps(facts))
        return 0
    for call in answer.calls:
        state = CallState.Name(call.state).removeprefix(_STATE).lower()
        say(
            f"{call.execution_id}  {call.tool}  {state}  {_seconds(call.age):.1f} s, {_seconds(call.remaining):.1f} s "
            f"left  {call.reports} reports  {call.worker or '-'}"
        )
    if not answer.calls:
        tell("No calls are running.")
    elif answer.total > len(answer.calls):
        tell(f"… and {answer.total - len(answer.calls):,} more")
    return 0


async def _cancel(options: argparse.Namespace, way: _Way) -> int:
    request = CancelCallRequest(execution_id=options.execution)
    answer = await AdminServiceStub(way.channel).CancelCall(request, timeout=_ANSWER_SECONDS, metadata=way.metadata)
    tell("It was asked to stop." if answer.found else "No such call is running; `pillion calls` lists those that are.")
    return 0 if answer.found else 1


async def _wait_ready(options: argparse.Namespace, way: _Way) -> int:
    try:
        async with asyncio.timeout(options.timeout):
            for service in ("", *(f"worker/{worker}" for worker in options.worker)):
                await _until_serving(way.channel, service)
    except TimeoutError:
        tell(f"Not ready within {options.timeout:g} s; the sidecar's log says why.")
        return 1
    return 0


async def _until_serving(channel: grpc.aio.Channel, service: str) -> None:
    watch: grpc.aio.UnaryStreamMultiCallable[bytes, health_pb2.HealthCheckResponse] = channel.unary_stream(
        _WATCH, response_deserializer=health_pb2.HealthCheckResponse.FromString
    )
    request = health_pb2.HealthCheckRequest(service=service).SerializeToString()
    while True:
        try:
            async for answer in watch(request, wait_for_ready=True):
                if answer.status == _SERVING:
                    return
        except grpc.aio.AioRpcError as error:
            # It may be starting, or starting again.
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise


async def _shutdown(options: argparse.Namespace, way: _Way) -> int:
    request = ShutdownRequest()
    if options.grace is not None:
        set_seconds(request.grace, options.grace)
    answer = await AdminServiceStub(way.channel).Shutdown(request, timeout=_ANSWER_SECONDS, metadata=way.metadata)
    tell(f"It stops; {answer.running} calls are running.")
    return 0


def _seconds(duration: Duration) -> float:
    return round(duration.seconds + duration.nanos / 1e9, 3)
