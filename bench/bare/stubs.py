"""The generated messages that the load generators use, and the paths of the two streaming methods."""

from __future__ import annotations

from typing import Final

from sidecar._gen.pillion.v1.attach_pb2 import AttachRequest, AttachResponse
from sidecar._gen.pillion.v1.call_pb2 import CallerHello, Start
from sidecar._gen.pillion.v1.context_pb2 import CANCEL_REASON_CALLER, TEARDOWN_SCOPE_SESSION
from sidecar._gen.pillion.v1.execute_pb2 import ExecuteRequest, ExecuteResponse
from sidecar._gen.pillion.v1.frame_pb2 import Frame, Pong
from sidecar._gen.pillion.v1.outbound_pb2 import CallerAnswer, CallerAsk, OutboundRequest, Reply, ToolsCall
from sidecar._gen.pillion.v1.outcome_pb2 import FAILURE_KIND_CANCELLED, Failure, Outcome, Result
from sidecar._gen.pillion.v1.tool_pb2 import ToolDescriptor
from sidecar._gen.pillion.v1.worker_pb2 import Cancel, Goodbye, Progress, RegisterTeardown, TeardownDone, WorkerHello

EXECUTE: Final = "/pillion.v1.ToolHostService/Execute"
ATTACH: Final = "/pillion.v1.WorkerHostService/Attach"

__all__ = (
    "ATTACH",
    "CANCEL_REASON_CALLER",
    "EXECUTE",
    "FAILURE_KIND_CANCELLED",
    "TEARDOWN_SCOPE_SESSION",
    "AttachRequest",
    "AttachResponse",
    "CallerAnswer",
    "CallerAsk",
    "CallerHello",
    "Cancel",
    "ExecuteRequest",
    "ExecuteResponse",
    "Failure",
    "Frame",
    "Goodbye",
    "OutboundRequest",
    "Outcome",
    "Pong",
    "Progress",
    "RegisterTeardown",
    "Reply",
    "Result",
    "Start",
    "TeardownDone",
    "ToolDescriptor",
    "ToolsCall",
    "WorkerHello",
)
