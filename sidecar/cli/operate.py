"""`pillion calls`, `cancel`, `end-session`, `end-run`, `wait-ready` and `shutdown`."""

import argparse
import asyncio
import json

import grpc.aio
from grpc_health.v1 import health_pb2

from sidecar._gen.pillion.v1.admin_pb2 import (
    AdminServiceEndScopeRequest,
    CancelCallRequest,
    ListCallsRequest,
    ShutdownRequest,
)
from sidecar._gen.pillion.v1.admin_pb2_grpc import AdminServiceStub
from sidecar._gen.pillion.v1.context_pb2 import Identity
from sidecar.calls.context import set_seconds
from sidecar.cli.channel import Action, Way, with_channel
from sidecar.cli.console import say, tell
from sidecar.cli.main import USAGE
from sidecar.cli.reach import Unreachable
from sidecar.cli.running import facts_of, seconds, state_of, watch
from sidecar.config import ConfigRefused

_ANSWER_SECONDS = 10.0
_WATCH = "/grpc.health.v1.Health/Watch"
_SERVING = health_pb2.HealthCheckResponse.SERVING


def run(options: argparse.Namespace) -> int:
    """Does what was asked of the sidecar; answers the exit code."""
    actions: dict[str, Action] = {
        "calls": _calls,
        "cancel": _cancel,
        "end_scope": _end_scope,
        "wait_ready": _wait_ready,
        "shutdown": _shutdown,
    }
    try:
        return asyncio.run(with_channel(options, actions[options.action]))
    except (ConfigRefused, Unreachable) as error:
        tell(str(error))
        return USAGE


async def _calls(options: argparse.Namespace, way: Way) -> int:
    if options.watch:
        return await watch(options, way)
    request = ListCallsRequest(tool=options.tool)
    answer = await AdminServiceStub(way.channel).ListCalls(request, timeout=_ANSWER_SECONDS, metadata=way.metadata)
    if options.json:
        for call in answer.calls:
            say(json.dumps(facts_of(call)))
        return 0
    for call in answer.calls:
        say(
            f"{call.execution_id}  {call.tool}  {state_of(call)}  {seconds(call.age):.1f} s, "
            f"{seconds(call.remaining):.1f} s left  {call.reports} reports  {call.worker or '-'}"
        )
    if not answer.calls:
        tell("No calls are running.")
    elif answer.total > len(answer.calls):
        tell(f"… and {answer.total - len(answer.calls):,} more")
    return 0


async def _cancel(options: argparse.Namespace, way: Way) -> int:
    request = CancelCallRequest(execution_id=options.execution)
    answer = await AdminServiceStub(way.channel).CancelCall(request, timeout=_ANSWER_SECONDS, metadata=way.metadata)
    tell("It was asked to stop." if answer.found else "No such call is running; `pillion calls` lists those that are.")
    return 0 if answer.found else 1


async def _end_scope(options: argparse.Namespace, way: Way) -> int:
    request = AdminServiceEndScopeRequest(**{options.fact: options.id}, caller_principal=options.caller)
    if options.tenant is not None or options.principal is not None:
        request.identity.CopyFrom(Identity(tenant=options.tenant, principal=options.principal))
    # Its calls and cleanups have seconds, which the settings say.
    answer = await AdminServiceStub(way.channel).EndScope(request, metadata=way.metadata)
    if not (answer.fired or answer.failed or answer.cancelled):
        tell(
            "There was nothing to end: no call of it runs or waits, and nothing is kept for it. It is found by its id, "
            "with the --tenant and --principal that its calls name, or the --caller whose they are."
        )
        return 0
    tell(
        f"It has ended: {_count(answer.cancelled, 'call')} cancelled, {_count(answer.fired, 'cleanup')} run, "
        f"{answer.failed:,} of them failed."
    )
    return 1 if answer.failed else 0


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


async def _wait_ready(options: argparse.Namespace, way: Way) -> int:
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


async def _shutdown(options: argparse.Namespace, way: Way) -> int:
    request = ShutdownRequest()
    if options.grace is not None:
        set_seconds(request.grace, options.grace)
    answer = await AdminServiceStub(way.channel).Shutdown(request, timeout=_ANSWER_SECONDS, metadata=way.metadata)
    tell(f"It stops; {answer.running} calls are running.")
    return 0
