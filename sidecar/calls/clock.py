"""The clocks of a call: its absolute timeout, its idle timeout, and the time that people have to answer."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind
from sidecar.calls.facts import CallFacts
from sidecar.calls.outcome import Refusal
from sidecar.calls.ports import Caller, Sink
from sidecar.calls.state import BOUNDED, CANCELLING, ENDED, GATES, RUNNING
from sidecar.calls.tool import Tool

if TYPE_CHECKING:
    from sidecar.calls.call import Call
    from sidecar.calls.pipeline import Pipeline


class People:
    """How much longer people may take to answer in one call, and since when one is asked. Times are in seconds."""

    __slots__ = ("asking", "left", "since")

    def __init__(self, left: float) -> None:
        self.left = left
        """What was left when the first of the open questions was asked, or is left while none is."""
        self.asking = 0
        """How many questions are open."""
        self.since = 0.0
        """When the first of them was asked."""


class CallClock(CallFacts, ABC):
    """The clocks of one call. While people are asked, its own stand still, as long as people may take."""

    __slots__ = ("_people", "_pipeline", "_progressed_at", "_until", "due_slot", "state")

    def __init__(
        self,
        pipeline: "Pipeline",
        tool_call_id: str,
        caller: Caller,
        sink: Sink,
        now: float,
        parent: "Call | None",
    ) -> None:
        levels = pipeline.limits.nesting_depth if parent is None else parent.levels - 1
        CallFacts.__init__(self, pipeline.ids.execution(), tool_call_id, caller, sink, now, parent, levels)
        self.state = GATES
        self.due_slot: float | None = None
        self._pipeline = pipeline
        self._people: People | None = None
        self._progressed_at = 0.0
        self._until = 0.0
        """When what it waits for is to be over, in the states in which it waits for something."""

    @property
    def remaining(self) -> float:
        """Seconds until its tool has to have ended, whatever becomes of it."""
        until = self._until if self.state is CANCELLING else self._latest
        return until - self._pipeline.loop.time()

    @property
    def people_left(self) -> float:
        """Seconds that people may take from now to answer its tool."""
        if self.state is CANCELLING:
            return self.remaining
        people = self._people
        if people is None:
            if self.human_timeout is not None:
                return self.human_timeout
            return self._pipeline.limits.human_timeout if self.parent is None else self.parent.people_left
        return people.left - (self._pipeline.loop.time() - people.since if people.asking else 0.0)

    @property
    def ends_by(self) -> float:
        """When its outcome is told at the latest, by the loop's clock."""
        limits = self._pipeline.limits
        return self._latest + limits.cancel_grace + limits.teardown_grace

    def limit_time(self, tool: Tool | None) -> None:
        """Fixes the deadline from what the caller wishes and the tool allows.

        :raises Refusal: if it has passed.
        """
        timeout = self.timeout
        if timeout is None:
            timeout = self._pipeline.limits.timeout
            if tool is not None and tool.default_timeout is not None:
                timeout = tool.default_timeout
        if tool is not None and tool.max_timeout is not None:
            timeout = min(timeout, tool.max_timeout)
        if self.parent is not None:
            timeout = min(timeout, self.parent.remaining)
        self.deadline = self.started_at + timeout
        if timeout <= 0:
            raise Refusal(FailureKind.FAILURE_KIND_TIMEOUT, "The call's time was up before it started.")

    @abstractmethod
    def due(self, now: float) -> None:
        """A time of the call may have come."""

    def keep_alive(self) -> None:
        """A call that its tool waits for reports, so the tool is not idle, nor is any that waits for it in turn."""
        self._progressed_at = self._pipeline.loop.time()
        if self.parent is not None:
            self.parent.keep_alive()

    def ask_people(self) -> None:
        """Somebody is about to be asked: until all have answered, the call's clocks stand still."""
        if self._people is None:
            self._people = People(self.people_left)
        people = self._people
        if not people.asking:
            people.since = self._pipeline.loop.time()
        people.asking += 1
        if self.state not in ENDED:
            self._set_due(people.since)

    def people_answered(self) -> None:
        """One that was asked has answered, or is waited for no more."""
        people = self._people
        if people is None:
            return
        people.asking -= 1
        if people.asking:
            return
        now = self._pipeline.loop.time()
        waited = min(now - people.since, people.left)
        people.left -= waited
        self.deadline += waited
        self._progressed_at = now
        if self.state not in ENDED:
            self._set_due(now)

    @property
    def _latest(self) -> float:
        """When its time is up. Who is asked has time beside it."""
        people = self._people
        return self.deadline if people is None or not people.asking else self.deadline + people.left

    def _is_idle(self, now: float) -> bool:
        if self.idle_timeout is None or (self._people is not None and self._people.asking):
            return False
        return now >= self._progressed_at + self.idle_timeout

    def _set_due(self, now: float) -> None:
        when = self.deadline if self._people is None else self._latest
        state = self.state
        if state is RUNNING:
            if self.idle_timeout is not None and (self._people is None or not self._people.asking):
                when = min(when, self._progressed_at + self.idle_timeout)
        elif state in BOUNDED:
            when = self._until
        self._pipeline.clocks.set(self, when, now)
