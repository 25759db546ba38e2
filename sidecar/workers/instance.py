"""One attached worker process, and the calls it runs."""

import asyncio
import hmac
import secrets
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from sidecar._gen.pillion.v1.context_pb2 import CancelReason, TeardownReason
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.worker_pb2 import TeardownDone
from sidecar.calls.call import Call
from sidecar.calls.ports import KeeperLost
from sidecar.calls.tool import Tool
from sidecar.scope import KeptInstance, digest_of_secret
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


_ACTIVE: Final = InstanceState.ACTIVE
_DRAINING: Final = InstanceState.DRAINING


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
        earlier: tuple[str, str] | None = None,
    ) -> None:
        """`earlier`: the id and the secret of the instance that it is again."""
        self.holder = holder
        """Whom its token was given to: the process that the sidecar started, or nobody in particular."""
        self.id, self.secret = earlier or (f"ins_{secrets.token_hex(8)}", secrets.token_urlsafe(32))
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
        self.running: dict[int, Assignment] = {}
        """Taken slots by call id, leaked ones too."""
        self.nested = 0
        """How many of them are in the headroom for calls that other calls wait for."""
        self.leaked = 0
        self.drain_timer: asyncio.TimerHandle | None = None
        """When a draining instance is given up."""
        self.told_to_leave = False
        """Whether it was asked to say goodbye. One that keeps something is, once it does not any more."""
        self._firing: dict[str, asyncio.Future[str | None]] = {}
        """The cleanups that it runs now, by registration."""
        self._cleanups: Lane | None = None
        """Where it is told to run them: behind the replies that told it of their ids."""
        self._running_by_tool: dict[str, int] = {}
        """Of the tools that it runs but so many calls of."""
        self._last_call = 0
        self._idle: asyncio.Future[None] | None = None

    @property
    def kept(self) -> KeptInstance:
        """What is stored of it: what the sidecar has started does not come back once that has ended."""
        return KeptInstance(self.workers.name, self.id, digest_of_secret(self.secret), returns=not self.holder)

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

    def fire(
        self, registration_id: str, reason: "TeardownReason.ValueType", timeout: float
    ) -> "asyncio.Future[str | None]":
        """Has it run a cleanup; the answer is what went wrong, or `None`. Fails with `KeeperLost` if it is lost."""
        future: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._firing[registration_id] = future
        future.add_done_callback(lambda _: self._firing.pop(registration_id, None))
        if self._cleanups is None:
            self._cleanups = Lane(self.stream.outbox, 0)
        frame = Frame()
        run = frame.run_teardown
        run.registration_id = registration_id
        run.reason = reason
        run.timeout.FromNanoseconds(int(timeout * 1e9))
        self._cleanups.send(frame)
        return future

    def fired(self, done: TeardownDone) -> bool:
        """A cleanup is over. False: it was not to run, or its time was up."""
        future = self._firing.get(done.registration_id)
        if future is None or future.done():
            return False
        future.set_result(done.error if done.HasField("error") else None)
        return True

    def end(self) -> list[Assignment]:
        """Takes the instance out of use; answers what it ran."""
        self.state = InstanceState.GONE
        if self.drain_timer is not None:
            self.drain_timer.cancel()
        running = list(self.running.values())
        # The stream's session looks calls up here: what still comes of them is late.
        self.running.clear()
        self.nested = 0
        for future in tuple(self._firing.values()):
            if not future.done():
                future.set_exception(KeeperLost())
        self.tell_idle()
        return running

    def until_idle(self) -> "asyncio.Future[None]":
        """Done once it runs nothing, and keeps and holds nothing, or is gone."""
        idle = self._idle = self._idle or asyncio.get_running_loop().create_future()
        if self.state is InstanceState.GONE or not (self.running or self.workers.is_needed(self)):
            self.tell_idle()
        return asyncio.shield(idle)

    def _emptied(self) -> None:
        """It runs nothing any more."""
        if self.state is not _ACTIVE:
            # What its last call has kept for its end is fired first.
            asyncio.get_running_loop().call_soon(self.workers.wind_up, self)

    def tell_idle(self) -> None:
        """It runs and keeps nothing any more."""
        idle, self._idle = self._idle, None
        if idle is not None:
            idle.set_result(None)
