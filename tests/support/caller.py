"""A caller in a test's hands."""

from typing import Any

from sidecar._gen.pillion.v1.call_pb2 import Start, Started
from sidecar._gen.pillion.v1.context_pb2 import CancelReason
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outcome_pb2 import Outcome
from tests.support.links import Link
from tests.support.peer import Peer
from tests.support.tools import seconds, text

_DURATIONS = ("timeout", "idle_timeout", "human_timeout")


def start_of(tool: str = "echo", arguments: Any = None, **fields: Any) -> Start:
    """A `Start`. Arguments are bytes or a value; durations are seconds; other fields are as in the proto."""
    for name in _DURATIONS:
        if name in fields:
            fields[name] = seconds(fields[name])
    start = Start(tool=tool, **fields)
    if arguments is not None:
        start.arguments = text(arguments)
    return start


class CallerPeer(Peer):
    """Opens calls on one `Execute` stream and sees what comes of them."""

    def __init__(self, link: Link, *, virtual: bool) -> None:
        super().__init__(link, virtual=virtual)
        self.last_call = 0
        """The newest call id that was used."""

    async def start(self, tool: str = "echo", arguments: Any = None, **fields: Any) -> int:
        """Opens a call; answers its id."""
        frame = self.starting(tool, arguments, **fields)
        await self.send(frame)
        return frame.call

    def starting(self, tool: str = "echo", arguments: Any = None, **fields: Any) -> Frame:
        """The frame that opens a call on the next id, to be sent by `send`."""
        self.last_call += 1
        return Frame(call=self.last_call, start=start_of(tool, arguments, **fields))

    async def cancel(
        self, call: int, reason: "CancelReason.ValueType" = CancelReason.CANCEL_REASON_UNSPECIFIED
    ) -> None:
        """Asks a call to stop."""
        frame = Frame(call=call)
        frame.cancel.reason = reason
        await self.send(frame)

    async def started(self, call: int) -> Started:
        """The `Started` of a call."""
        return (await self.next_of("started", call)).started

    async def outcome(self, call: int) -> Outcome:
        """The outcome of a call, once it is there; frames before it are passed over."""
        return (await self.next_of("outcome", call)).outcome

    async def call(self, tool: str = "echo", arguments: Any = None, **fields: Any) -> Outcome:
        """Runs a call to its outcome."""
        return await self.outcome(await self.start(tool, arguments, **fields))

    def outcomes(self, call: int) -> list[Outcome]:
        """All outcomes that came for a call so far: there must never be two."""
        return [frame.outcome for frame in self.frames[call] if frame.HasField("outcome")]
