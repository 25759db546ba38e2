"""Calls that follow another with the same idempotency key: its later progress and its outcome are theirs too."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from sidecar._gen.pillion.v1.frame_pb2 import Frame

if TYPE_CHECKING:
    from sidecar.calls.call import Call

_OF_THE_CALLER = (
    "caller",
    "deadline",
    "human_timeout",
    "idle_timeout",
    "joins",
    "sink",
    "span",
    "started_sent",
    "timeout",
    "tool_call_id",
)


def report(joiners: "Iterable[Call]", frame: Frame) -> None:
    """Gives those that have joined a call what its tool reported."""
    for joiner in joiners:
        copy = Frame()
        copy.progress.CopyFrom(frame.progress)
        copy.coalesced = frame.coalesced
        joiner.progressed(copy)


def settle(call: "Call", frame: Frame) -> None:
    """Ends those that have joined a call with its outcome."""
    joiners, call.joiners = call.joiners, None
    for joiner in joiners or ():
        copy = Frame()
        copy.outcome.CopyFrom(frame.outcome)
        joiner.settle(copy)


def hand_over(call: "Call", outcome: Frame) -> None:
    """Lets the caller of the first that has joined have the call, and ends the part of the one that had it.

    From then on the call has the time that its new caller wished for. `outcome` is for the caller that leaves.
    """
    heir = (call.joiners or []).pop(0)
    call.caller.leaves(call)
    for name in _OF_THE_CALLER:
        mine, its = getattr(call, name), getattr(heir, name)
        setattr(call, name, its)
        setattr(heir, name, mine)
    call.caller.took_over(call)
    call.retime()
    heir.joined = None
    heir.settle(outcome)
