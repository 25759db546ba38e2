"""A call in few words, as operators see it."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from sidecar._gen.pillion.v1 import admin_pb2
from sidecar._gen.pillion.v1.admin_pb2 import CallSummary
from sidecar.calls.context import set_seconds
from sidecar.calls.state import CallState

if TYPE_CHECKING:
    from sidecar.calls.call import Call

_STATES = {
    CallState.GATES: admin_pb2.CallState.CALL_STATE_WAITING,
    CallState.WAITING: admin_pb2.CallState.CALL_STATE_WAITING,
    CallState.JOINED: admin_pb2.CallState.CALL_STATE_WAITING,
    CallState.RUNNING: admin_pb2.CallState.CALL_STATE_RUNNING,
    CallState.CANCELLING: admin_pb2.CallState.CALL_STATE_CANCELLING,
    CallState.SETTLING: admin_pb2.CallState.CALL_STATE_RUNNING,
}


def summary_of(call: "Call", now: float, redact: Callable[[str], str] | None) -> CallSummary:
    """The call as it is now, by the loop's clock. `redact` takes secrets out of what its caller calls it."""
    summary = CallSummary(
        execution_id=call.execution_id,
        tool_call_id=call.tool_call_id if redact is None else redact(call.tool_call_id),
        tool=call.tool_name,
        state=_STATES.get(call.state, admin_pb2.CallState.CALL_STATE_UNSPECIFIED),
        reports=call.reports,
    )
    set_seconds(summary.age, max(now - call.started_at, 0.0))
    set_seconds(summary.remaining, max(call.deadline - now, 0.0))
    if call.worker_set is not None:
        summary.worker = call.worker_set.name
    if call.worker_instance_id is not None:
        summary.worker_instance_id = call.worker_instance_id
    return summary
