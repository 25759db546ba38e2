"""Running calls as operators are shown them, once or as they go on."""

import argparse
import json
from datetime import datetime
from typing import Any

import grpc
import grpc.aio
from google.protobuf.duration_pb2 import Duration

from sidecar._gen.pillion.v1.admin_pb2 import (
    CallEventKind,
    CallState,
    CallSummary,
    WatchCallsRequest,
    WatchCallsResponse,
)
from sidecar._gen.pillion.v1.admin_pb2_grpc import AdminServiceStub
from sidecar._gen.pillion.v1.context_pb2 import CancelReason
from sidecar.calls.outcome import kind_name
from sidecar.cli.channel import Way
from sidecar.cli.console import say, tell

_STATE, _EVENT, _REASON = "CALL_STATE_", "CALL_EVENT_KIND_", "CANCEL_REASON_"


def state_of(call: CallSummary) -> str:
    """Where it stands, as a word."""
    if call.state == CallState.CALL_STATE_UNSPECIFIED:
        return "ended"
    return CallState.Name(call.state).removeprefix(_STATE).lower()


def facts_of(call: CallSummary) -> dict[str, Any]:
    """What is known of a call, for JSON."""
    return {
        "execution_id": call.execution_id,
        "tool_call_id": call.tool_call_id,
        "tool": call.tool,
        "state": state_of(call),
        "worker": call.worker if call.HasField("worker") else None,
        "instance": call.worker_instance_id if call.HasField("worker_instance_id") else None,
        "age_seconds": seconds(call.age),
        "remaining_seconds": seconds(call.remaining),
        "reports": call.reports,
    }


def seconds(duration: Duration) -> float:
    """A duration in seconds, to the millisecond."""
    return round(duration.seconds + duration.nanos / 1e9, 3)


async def watch(options: argparse.Namespace, way: Way) -> int:
    """Shows what happens to calls until the sidecar stops or the person leaves."""
    events = AdminServiceStub(way.channel).WatchCalls(WatchCallsRequest(tool=options.tool), metadata=way.metadata)
    begun = False
    try:
        # Answered at once, though no call runs: from now on nothing is missed.
        await events.initial_metadata()
        begun = True
        if not options.json:
            tell("Watching; Ctrl-C leaves.")
        async for event in events:
            say(json.dumps(_told(event)) if options.json else _line(event))
    except grpc.aio.AioRpcError as error:
        if not begun or error.code() is not grpc.StatusCode.UNAVAILABLE:
            raise
    tell("The sidecar has stopped.")
    return 0


def _told(event: WatchCallsResponse) -> dict[str, Any]:
    told: dict[str, Any] = {
        "event": CallEventKind.Name(event.kind).removeprefix(_EVENT).lower(),
        "time_unix_nano": event.time_unix_nano,
        **facts_of(event.call),
    }
    if event.call.HasField("line"):
        told["line"] = event.call.line
    if event.failure:
        told["failure"] = kind_name(event.failure)
    if event.reason:
        told["reason"] = CancelReason.Name(event.reason).removeprefix(_REASON)
    if event.lost:
        told["lost"] = event.lost
    return told


def _line(event: WatchCallsResponse) -> str:
    kind = CallEventKind.Name(event.kind).removeprefix(_EVENT).lower()
    call = event.call
    when = datetime.fromtimestamp(event.time_unix_nano / 1e9).astimezone()
    more = ""
    if call.HasField("line"):
        more = call.line
    elif event.failure:
        more = kind_name(event.failure)
    elif event.reason:
        more = CancelReason.Name(event.reason).removeprefix(_REASON)
    elif event.kind == CallEventKind.CALL_EVENT_KIND_ENDED:
        more = f"{'paused ' if state_of(call) == 'paused' else ''}after {seconds(call.age):g} s"
    lost = f"({event.lost:,} lost) " if event.lost else ""
    at = when.isoformat(timespec="milliseconds")[11:23]
    return f"{lost}{at}  {kind:<9}  {call.tool}  {call.execution_id}  {more}".rstrip()
