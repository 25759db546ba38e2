"""The instances of one configured worker name, and the calls that wait for them."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from sidecar._gen.pillion.v1.context_pb2 import CancelReason
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind
from sidecar.calls import holding
from sidecar.calls.call import Call
from sidecar.calls.limits import CallLimits
from sidecar.calls.outcome import Refusal
from sidecar.calls.teardowns import Teardowns
from sidecar.calls.tool import Tool
from sidecar.scope import KeptInstance
from sidecar.telemetry import Counters
from sidecar.telemetry.readings import SetReading
from sidecar.workers.away import Away
from sidecar.workers.grant import Grant
from sidecar.workers.instance import Instance, InstanceState
from sidecar.workers.limits import WorkerLimits
from sidecar.workers.pins import Pins
from sidecar.workers.queue import FairQueue

_RETRY_AFTER: Final = 1.0


class _Line(NamedTuple):
    """A line that calls wait in."""

    tool: str
    nested: bool
    """Whether they are calls that other calls wait for, which have slots of their own."""


def _line(call: Call) -> _Line:
    return _Line(call.tool_name, call.parent is not None)


class WorkerSet:
    """One worker name. Balances by calls in flight; when all is full, calls wait in order and fair by subject."""

    def __init__(
        self,
        grant: Grant,
        limits: WorkerLimits,
        call_limits: CallLimits,
        counters: Counters,
        on_change: Callable[[], None],
        teardowns: Callable[[], Teardowns],
    ) -> None:
        """`teardowns` answers who knows what instances keep."""
        self.name = grant.name
        self.grant = grant
        self.counters = counters
        self.tools: dict[str, Tool] = {}
        """The current version of each tool."""
        self.instances: dict[str, Instance] = {}
        """Those whose stream is open, by id."""
        self.away = Away(limits.reattach_window, self._give_up_on)
        """Those that have none, and may come back."""
        self._limits = limits
        self._call_limits = call_limits
        self._on_change = on_change
        self._teardowns = teardowns
        self._pins = Pins(grant.name, teardowns)
        self._waiting: dict[_Line, FairQueue] = {}
        """Calls that wait, by tool and whether other calls wait for them. No queue in here is empty."""
        self._serving: set[_Line] = set()
        self._quarantined: set[str] = set()
        self._unlisting: dict[str, asyncio.TimerHandle] = {}

    @property
    def attached(self) -> bool:
        """Whether any instance takes calls."""
        return any(instance.state is InstanceState.ACTIVE for instance in self.instances.values())

    @property
    def is_empty(self) -> bool:
        """Whether no instance is there, or may come back."""
        return not self.instances and not self.away

    @property
    def last_grace(self) -> float:
        """How much longer than its drain time an instance may stay that keeps something, in seconds."""
        limits = self._call_limits
        return limits.cancel_grace + limits.teardown_grace

    @property
    def waiting(self) -> int:
        """How many calls wait."""
        return sum(map(len, self._waiting.values()))

    def brings(self, tool_name: str) -> bool:
        """Whether an instance that takes calls has a tool of this name."""
        return any(
            instance.state is InstanceState.ACTIVE and tool_name in instance.tools
            for instance in self.instances.values()
        )

    def reading(self) -> SetReading:
        """How it is at this moment."""
        states = {state.name.lower(): 0 for state in InstanceState}
        slots = taken = leaked = 0
        for instance in self.instances.values():
            states[instance.state.name.lower()] += 1
            slots += instance.concurrency
            taken += len(instance.running)
            leaked += instance.leaked
        # Those that may still come back have no stream and no slots.
        states[InstanceState.GONE.name.lower()] = len(self.away)
        return SetReading(self.name, states, slots, taken, leaked, len(self._waiting))

    def version_for(self, call: Call, tool: Tool) -> Tool:
        """The version of a tool that holds something that the call's run or session is bound to.

        :raises Refusal: as INVALID_ARGUMENTS if the call does not name what it holds something for.
        """
        pinned = self._pins.of(call, tool)
        instance = self.instances.get(pinned) if pinned is not None else None
        version = instance.holding.get(tool.name) if instance is not None else None
        return version if version is not None and version.holds == tool.holds else tool

    def place(self, call: Call, now: float) -> None:
        """Gives the call an instance, now or when one is free.

        :raises Refusal: as OVERLOADED if too many wait already, or if it could only wait for calls that wait for it;
            if it is pinned to an instance that cannot take it, as that is.
        """
        tool = call.tool
        nested = call.parent is not None
        if tool is not None and call.resumption is not None:
            keeper = self._keeper_of(call, tool)
            if keeper is not None:
                self._give(call, tool, keeper, now)
                return
        if tool is not None and tool.holds:
            pinned = self._pins.instance_for(call, tool, self.instances, self.away)
            if pinned is not None:
                call.placed(pinned.assign(call, tool), now)
                return
        if tool is not None and (not self._waiting or (tool.name, nested) not in self._waiting):
            instance = self._choose(tool, nested=nested)
            if instance is not None:
                self._give(call, tool, instance, now)
                return
        if nested and tool is not None:
            self._look_for_deadlock(call, tool)
        self._make_room(call)
        self.counters.add("waits")
        line = _line(call)
        self._waiting.setdefault(line, FairQueue()).push(call)
        self._serve(line)

    def _give(self, call: Call, tool: Tool, instance: Instance, now: float) -> None:
        """Gives a call to an instance; what its tool holds is there from now on."""
        call.placed(instance.assign(call, tool), now)
        if tool.holds:
            self._pins.pin(call, tool, instance)

    def _keeper_of(self, call: Call, tool: Tool) -> Instance | None:
        """The instance that keeps something for the end of a call that goes on; `None`: it may be any.

        :raises Refusal: if that one cannot take it just now.
        """
        kept = self._teardowns().registry.kept_for(call.kept_for) if call.kept_for is not None else ()
        for instance_id in {registration.instance_id for registration in kept}:
            instance = self.instances.get(instance_id)
            if instance is None and instance_id in self.away:
                raise holding.keeper_is_away(tool)
            if instance is not None and instance.tools.get(tool.name) == tool.digest:
                if instance.can_take(tool, nested=call.parent is not None, pinned=True):
                    return instance
                if instance.state is not InstanceState.LEAVING:
                    raise holding.keeper_is_full(tool)
        return None

    def withdraw(self, call: Call) -> None:
        """Takes back a call that waits, if it does."""
        line = _line(call)
        queue = self._waiting.get(line)
        if queue is not None and queue.remove(call):
            self._drop_if_empty(line, queue)

    def slot_freed(self) -> None:
        """A slot became free, or an instance can be written to again."""
        if self._waiting:
            self.serve()

    def serve(self) -> None:
        """Gives waiting calls what has become free, or the newer version of their tool. Tools take turns."""
        for line in tuple(self._waiting):
            self._serve(line)

    def _serve(self, line: "_Line") -> None:
        """Serves the calls that wait in one line, up to the first that still has to."""
        if line in self._serving:
            # A call that is served came back to wait; the walk under way meets it again.
            return
        self._serving.add(line)
        try:
            while (queue := self._waiting.get(line)) is not None:
                first = queue.first()
                tool = first.tool
                current = self.tools.get(line.tool)
                if tool is not None and tool.holds and self._pins.of(first, tool) is not None:
                    # Another call of its scope was first, and this one goes where that went.
                    tool = None
                instance = self._choose(current, nested=line.nested) if current is not None else None
                if current is None or (tool is current and instance is None):
                    return
                call = queue.pop()
                self._drop_if_empty(line, queue)
                if tool is not current:
                    call.resolve_again()
                elif instance is not None:
                    self._give(call, current, instance, asyncio.get_running_loop().time())
        finally:
            self._serving.discard(line)

    def _make_room(self, call: Call) -> None:
        """Sees to it that a call may wait: when all places are taken, the tool with the most waiting calls gives one.

        :raises Refusal: if there is no place, and this call's tool has as many as any.
        """
        most = self._call_limits.waiting_per_set
        if self.waiting < most:
            return
        largest = max(self._waiting.values(), key=len)
        mine = self._waiting.get(_line(call))
        refusal = Refusal(
            FailureKind.FAILURE_KIND_OVERLOADED,
            f"{most:,} calls wait for this tool's worker, which is the most; try again later.",
            retryable=True,
            retry_after=_RETRY_AFTER,
        )
        if len(largest) - 1 <= (len(mine) if mine is not None else 0):
            raise refusal
        largest.pop_newest().refused(refusal.failure)

    def _look_for_deadlock(self, call: Call, tool: Tool) -> None:
        """Sees to it that a nested call does not wait for slots that are all its own ancestors'.

        :raises Refusal: as OVERLOADED if it would.
        """
        ancestors = set(call.ancestors())
        bringing = [instance for instance in self.instances.values() if instance.tools.get(tool.name) == tool.digest]
        if bringing and all(ancestors.issuperset(instance.in_the_way(tool) or (None,)) for instance in bringing):
            raise Refusal(
                FailureKind.FAILURE_KIND_OVERLOADED,
                f"Every slot that could run {tool.name} is held by the calls that wait for it; let it run more calls "
                "at once, or nest less.",
            )

    def _drop_if_empty(self, line: "_Line", queue: FairQueue) -> None:
        if not queue and self._waiting.get(line) is queue:
            del self._waiting[line]

    # --- instances come and go

    def attach(self, instance: Instance, tools: dict[str, Tool], *, again: bool) -> None:
        """An instance is there with these tools; `again`: it was lost, and came back.

        Those that host another version of one of them drain: a new instance's version is the newer one. One that came
        back with a version that others have left behind drains itself.
        """
        self.instances[instance.id] = instance
        outdated = again and any(
            (current := self.tools.get(name)) is not None and current is not tool and self._has_active(current)
            for name, tool in tools.items()
        )
        if outdated:
            _bring(instance, tools)
            self.drain(instance)
        else:
            self.change_tools(instance, tools)

    def change_tools(self, instance: Instance, tools: dict[str, Tool]) -> None:
        """An instance that takes calls has these tools from now on."""
        dropped = instance.tools.keys() - tools.keys()
        _bring(instance, tools)
        self.tools.update(tools)
        for name in dropped:
            # Taken back by its worker, which is another thing than an outage.
            if not any(name in other.tools for other in self.instances.values()):
                self.tools.pop(name, None)
        for other in tuple(self.instances.values()):
            if other is not instance and any(
                other.tools.get(name, tool.digest) != tool.digest for name, tool in tools.items()
            ):
                self.drain(other)
        self._changed()

    def drain(self, instance: Instance) -> None:
        """Lets an instance finish what it runs and gives it nothing more, but what is pinned to it.

        One that keeps or holds something for a run or session stays until that has ended, or its drain time is up: it
        is told to leave when there is nothing of that any more.
        """
        if instance.state is not InstanceState.ACTIVE:
            return
        instance.state = InstanceState.DRAINING
        if not self.is_needed(instance):
            self._tell_to_leave(instance, self._limits.drain)
        elif not instance.running:
            self.wind_up(instance)
        self._limit_drain(instance)
        self._changed()

    def leave(self, instance: Instance) -> None:
        """An instance says goodbye: it finishes what it runs, and its stream ends."""
        if instance.state in (InstanceState.ACTIVE, InstanceState.DRAINING):
            instance.state = InstanceState.LEAVING
            self._limit_drain(instance)
            self._changed()
        self.wind_up(instance)

    def wind_up(self, instance: Instance) -> None:
        """Goes on with an instance that drains or leaves: once it runs nothing, what it keeps is seen to.

        What it keeps for runs and sessions, and the sidecar's end, fires as evicted where the instance wants to leave;
        else it may wait for their ends.
        """
        if instance.state not in (InstanceState.DRAINING, InstanceState.LEAVING) or instance.running:
            return
        teardowns = self._teardowns()
        may_wait = instance.state is InstanceState.DRAINING and not instance.told_to_leave
        if may_wait and teardowns.outlasts(instance.id):
            return
        teardowns.evict(instance.id)
        if self.keeps(instance):
            # It comes here again when that is over.
            return
        instance.tell_idle()
        if instance.state is InstanceState.LEAVING:
            instance.stream.finish()
        elif not instance.told_to_leave:
            left = self._limits.drain
            if instance.drain_timer is not None:
                left = max(instance.drain_timer.when() - asyncio.get_running_loop().time(), 0.0)
            self._tell_to_leave(instance, left)

    def is_needed(self, instance: Instance) -> bool:
        """Whether an instance keeps cleanups, or holds what scopes are pinned to it for."""
        teardowns = self._teardowns()
        return teardowns.keeps(instance.id) or teardowns.holds(instance.id)

    def keeps(self, instance: Instance) -> bool:
        """Whether an instance keeps cleanups, or is to run any."""
        return self._teardowns().keeps(instance.id)

    def relieved(self, instance_id: str) -> None:
        """An instance keeps less than it did."""
        instance = self.instances.get(instance_id)
        if instance is not None:
            self.wind_up(instance)

    def lose(self, instance: Instance) -> None:
        """An instance's stream is over: what it ran is decided.

        It may come back within the window, unless it said goodbye.
        """
        if instance.state is InstanceState.GONE:
            return
        # What was not written yet is not run: its calls go elsewhere.
        instance.stream.outbox.abandon_calls()
        has_left = instance.state is InstanceState.LEAVING
        running = instance.end()
        self.instances.pop(instance.id, None)
        if not has_left:
            self.away.add(instance.kept, instance.holder)
        self._changed()
        for assignment in running:
            if (call := assignment.assigned) is not None:
                if not assignment.invoked:
                    self._pins.take_back(call)
                call.lost()
        if has_left:
            self._give_up_on(instance.id)

    def quarantine(self, instance: Instance) -> None:
        """An instance is of no use any more: it is lost, and whoever started its process is to end it."""
        self._quarantined.add(instance.holder)
        self.lose(instance)

    def ended(self, holder: str) -> None:
        """The process that a token was given to has ended: its instances will not come back."""
        for instance in tuple(self.instances.values()):
            if instance.holder == holder:
                self.lose(instance)
        self.away.give_up(holder)

    def may_return(self, instance_id: str) -> bool:
        """Whether an instance is lost and may still come back."""
        return instance_id in self.away

    def kept(self, instance_id: str) -> KeptInstance | None:
        """What is to be stored of an instance, open or away."""
        instance = self.instances.get(instance_id)
        return instance.kept if instance is not None else self.away.find(instance_id)

    def of_holder(self, holder: str) -> Instance | None:
        """The attached instance whose token was given to this holder."""
        return next((instance for instance in self.instances.values() if instance.holder == holder), None)

    def was_quarantined(self, holder: str) -> bool:
        """Whether an instance of this holder was given up. Told once."""
        if holder in self._quarantined:
            self._quarantined.discard(holder)
            return True
        return False

    def replace(self, instance_id: str) -> None:
        """An instance came back: its old stream, if it is still open, is over."""
        earlier = self.instances.get(instance_id)
        if earlier is not None:
            self.lose(earlier)
            earlier.stream.close()
        self.away.back(instance_id)

    def regrant(self, grant: Grant) -> None:
        """Has other rights from now on: instances drain, and tools that went are listed no more."""
        self.grant = grant
        for name in [name for name in self.tools if not grant.permits(name)]:
            del self.tools[name]
        for instance in tuple(self.instances.values()):
            self.drain(instance)

    def retire(self) -> None:
        """Is configured no more: its tools are listed no more, what runs finishes, and what waits is refused."""
        self.tools.clear()
        for instance in tuple(self.instances.values()):
            self.drain(instance)
        waiting, self._waiting = self._waiting, {}
        for queue in waiting.values():
            while queue:
                queue.pop().resolve_again()

    def close(self) -> None:
        """Drops all timers, at the end of the sidecar."""
        self.away.close()
        for timer in self._unlisting.values():
            timer.cancel()
        self._unlisting.clear()

    # --- parts of the above

    def _choose(self, tool: Tool, *, nested: bool) -> Instance | None:
        """The least loaded instance that can take a call of the tool."""
        best: Instance | None = None
        best_load = 0.0
        for instance in self.instances.values():
            if instance.can_take(tool, nested=nested):
                load = len(instance.running) / instance.concurrency
                if best is None or load < best_load:
                    best, best_load = instance, load
        return best

    def _changed(self) -> None:
        hosted = {name for instance in self.instances.values() for name in instance.tools}
        loop = asyncio.get_running_loop()
        for name in self.tools:
            if name in hosted:
                timer = self._unlisting.pop(name, None)
                if timer is not None:
                    timer.cancel()
            elif name not in self._unlisting:
                self._unlisting[name] = loop.call_later(self._limits.unlist_after, self._unlist, name)
        self._on_change()
        self.serve()

    def _unlist(self, name: str) -> None:
        self._unlisting.pop(name, None)
        self.tools.pop(name, None)
        self._on_change()

    def _limit_drain(self, instance: Instance) -> None:
        if instance.drain_timer is None:
            loop = asyncio.get_running_loop()
            instance.drain_timer = loop.call_later(self._limits.drain, self._give_up, instance)

    def _has_active(self, tool: Tool) -> bool:
        return any(
            instance.state is InstanceState.ACTIVE and instance.tools.get(tool.name) == tool.digest
            for instance in self.instances.values()
        )

    def _give_up(self, instance: Instance) -> None:
        """A draining instance had its time: what it still runs is asked to stop, and then the instance is lost."""
        for assignment in tuple(instance.running.values()):
            if assignment.assigned is not None:
                assignment.assigned.cancel(CancelReason.CANCEL_REASON_DRAIN)
        instance.drain_timer = asyncio.get_running_loop().call_later(
            self._call_limits.cancel_grace, self._evict, instance
        )

    def _evict(self, instance: Instance) -> None:
        """What a draining instance still keeps fires now. It is told to leave, if it was not, and then given up."""
        self._teardowns().evict(instance.id)
        limits = self._call_limits
        grace = limits.cancel_grace
        if self.keeps(instance):
            grace += limits.teardown_grace
        elif instance.told_to_leave or instance.state is not InstanceState.DRAINING:
            self._end(instance)
            return
        else:
            self._tell_to_leave(instance, grace)
        instance.drain_timer = asyncio.get_running_loop().call_later(grace, self._end, instance)

    def _tell_to_leave(self, instance: Instance, grace: float) -> None:
        instance.told_to_leave = True
        frame = Frame()
        frame.drain.grace.FromNanoseconds(int(grace * 1e9))
        # Behind what it was given already: a worker that leaves at once must not leave an invoke unread.
        instance.stream.farewell(frame)

    def _end(self, instance: Instance) -> None:
        self.lose(instance)
        instance.stream.close()

    def _give_up_on(self, instance_id: str) -> None:
        """A lost instance does not come back."""
        self._teardowns().lost(instance_id)


def _bring(instance: Instance, tools: Mapping[str, Tool]) -> None:
    instance.tools = {name: tool.digest for name, tool in tools.items()}
    instance.holding = {name: tool for name, tool in tools.items() if tool.holds}
