"""One attached worker process, and the calls it runs."""

import asyncio
import hmac
import secrets
from enum import Enum, auto
from typing import TYPE_CHECKING

from sidecar._gen.pillion.v1.context_pb2 import CancelReason
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar.calls.call import Call
from sidecar.calls.tool import Tool
from sidecar.telemetry.redaction import RedactedText, Redaction
from sidecar.wire.outbox import Lane
from sidecar.wire.stream import FrameStream

if TYPE_CHECKING:
    from sidecar.workers.worker_set import WorkerSet


class InstanceState(Enum):
    """Whether an instance takes calls."""

    ACTIVE = auto()
    """It does."""
    DRAINING = auto()
    """It was asked to finish what it has, and to say goodbye."""
    LEAVING = auto()
    """It said goodbye, and finishes what it has."""
    GONE = auto()
    """Its stream is over; it may come back with its secret."""


_ACTIVE = InstanceState.ACTIVE
_DRAINING = InstanceState.DRAINING


class Assignment(Lane):
    """One call on one instance: a slot, and the lane of the frames that go to the tool."""

    __slots__ = ("_instance", "_log_text", "assigned", "limited", "nested")

    def __init__(self, instance: "Instance", number: int, assigned: Call, limited: str | None) -> None:
        Lane.__init__(self, instance.stream.outbox, number)
        self._instance = instance
        self._log_text: RedactedText | None = None
        self.assigned: Call | None = assigned
        """The call; `None` once it was given up while the tool still runs."""
        self.limited = limited
        """The name of its tool, if an instance runs but so many calls of that."""
        self.nested = assigned.parent is not None
        """Whether it takes a slot of those for calls that other calls wait for."""

    @property
    def instance_id(self) -> str:
        """The instance."""
        return self._instance.id

    @property
    def invoked(self) -> bool:
        """Whether the message that holds the invoke was handed to the transport."""
        return self.handed_over > 0

    def knows(self, secret: str) -> bool:
        """Whether this is the instance's own secret. Takes the same time for each wrong one."""
        return self._instance.knows(secret)

    def cancel(self, reason: "CancelReason.ValueType") -> None:
        """Asks the tool to stop."""
        frame = Frame()
        frame.cancel.reason = reason
        self.send(frame)

    def log_text(self, redaction: Redaction) -> RedactedText:
        """What the tool logs, one text after another."""
        if self._log_text is None:
            self._log_text = redaction.stream()
        return self._log_text

    def release(self) -> None:
        """Gives the slot back: the tool has ended."""
        self._instance.free(self)

    def leak(self) -> None:
        """Gives the call up while the tool still runs: the slot stays taken until the tool ends."""
        self.assigned = None
        self._instance.leak()


class Instance:
    """One process of a worker set, by the stream it is attached with."""

    def __init__(
        self,
        workers: "WorkerSet",
        stream: FrameStream,
        holder: str,
        concurrency: int,
        headroom: int,
        earlier: "Instance | None" = None,
    ) -> None:
        self.holder = holder
        """Whom its token was given to: the process that the sidecar started, or nobody in particular."""
        self.id: str = earlier.id if earlier is not None else f"ins_{secrets.token_hex(8)}"
        self.secret: str = earlier.secret if earlier is not None else secrets.token_urlsafe(32)
        self._secret_bytes = self.secret.encode()
        self.workers = workers
        self.stream = stream
        self.concurrency = concurrency
        self.headroom = headroom
        self.state = InstanceState.ACTIVE
        self.tools: dict[str, bytes] = {}
        """Digest of each tool's version, by name."""
        self.holding: dict[str, Tool] = {}
        """Those of them that hold something for runs or sessions."""
        self.dismissed = False
        """Whether it was told to finish."""
        self.running: dict[int, Assignment] = {}
        """Taken slots by call id, leaked ones too."""
        self.nested = 0
        """How many of them are in the headroom for calls that other calls wait for."""
        self.leaked = 0
        self.drain_timer: asyncio.TimerHandle | None = None
        """When a draining instance is given up."""
        self._running_by_tool: dict[str, int] = {}
        """Of the tools that it runs but so many calls of."""
        self._last_call = 0
        self._idle: asyncio.Future[None] | None = None

    def knows(self, secret: str) -> bool:
        """Whether this is the secret to come back with. Takes the same time for each wrong one."""
        return hmac.compare_digest(self._secret_bytes, secret.encode())

    def can_take(self, tool: Tool, *, nested: bool = False, pinned: bool = False) -> bool:
        """Whether it has a free slot for a call of the tool.

        `nested`: which another call waits for. `pinned`: of a scope that is pinned to it, for which it is there until
        its drain ends.
        """
        outbox = self.stream.outbox
        taken = self.nested
        if (
            (self.state is not _ACTIVE and not (pinned and self.state is _DRAINING))
            or (taken >= self.headroom if nested else len(self.running) - taken >= self.concurrency)
            or self.tools.get(tool.name) != tool.digest
            or outbox.undelivered_bytes > outbox.soft
        ):
            return False
        limit = tool.concurrency
        return limit is None or self._running_by_tool.get(tool.name, 0) < limit

    def assign(self, call: Call, tool: Tool) -> Assignment:
        """Takes a slot for a call."""
        self._last_call = number = self._last_call + 1
        limited = None
        if tool.concurrency is not None:
            limited = tool.name
            self._running_by_tool[limited] = self._running_by_tool.get(limited, 0) + 1
        assignment = self.running[number] = Assignment(self, number, call, limited)
        if assignment.nested:
            self.nested += 1
        return assignment

    def in_the_way(self, tool: Tool) -> list[Call | None]:
        """The calls that hold the slots which a nested call of the tool could have; `None`: one that was given up."""
        headroom_is_full = self.nested >= self.headroom
        return [
            assignment.assigned
            for assignment in self.running.values()
            if (assignment.nested if headroom_is_full else assignment.limited == tool.name)
        ]

    def free(self, assignment: Assignment) -> None:
        """Frees a slot, and lets the next waiting call have it."""
        if self.running.pop(assignment.call, None) is None:
            return
        if assignment.assigned is None:
            self.leaked -= 1
        if assignment.nested:
            self.nested -= 1
        if assignment.limited is not None:
            self._running_by_tool[assignment.limited] -= 1
        if not self.running:
            self._emptied()
        self.workers.slot_freed()

    def leak(self) -> None:
        """Counts a slot whose tool ignores its cancel. At half the slots the instance takes no more calls."""
        self.leaked += 1
        self.workers.counters.add("leaked_slots")
        if self.leaked * 2 >= self.concurrency and self.state is InstanceState.ACTIVE:
            self.workers.drain(self)

    def end(self) -> list[Assignment]:
        """Takes the instance out of use; answers what it ran."""
        self.state = InstanceState.GONE
        if self.drain_timer is not None:
            self.drain_timer.cancel()
        running = list(self.running.values())
        # The stream's session looks calls up here: what still comes of them is late.
        self.running.clear()
        self.nested = 0
        self._tell_idle()
        return running

    async def until_idle(self) -> None:
        """Waits until it runs nothing."""
        if self.running:
            self._idle = self._idle or asyncio.get_running_loop().create_future()
            await asyncio.shield(self._idle)

    def _emptied(self) -> None:
        """It runs nothing any more."""
        if self.state is InstanceState.LEAVING:
            self.finish_when_idle()
        self._tell_idle()

    def _tell_idle(self) -> None:
        idle, self._idle = self._idle, None
        if idle is not None:
            idle.set_result(None)

    def finish_when_idle(self) -> None:
        """Ends the stream of an instance that leaves, once it runs nothing."""
        if not self.running:
            self.stream.finish()
