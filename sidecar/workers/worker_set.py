"""The instances of one configured worker name, and the calls that wait for them."""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from sidecar._gen.pillion.v1.context_pb2 import CancelReason
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind
from sidecar.calls import holding
from sidecar.calls.call import Call
from sidecar.calls.limits import CallLimits
from sidecar.calls.outcome import Refusal
from sidecar.calls.tool import Tool
from sidecar.scope import ScopeKey
from sidecar.telemetry import Counters
from sidecar.telemetry.readings import SetReading
from sidecar.workers.grant import Grant
from sidecar.workers.instance import Instance, InstanceState
from sidecar.workers.limits import WorkerLimits
from sidecar.workers.pins import Pins
from sidecar.workers.queue import FairQueue

_RETRY_AFTER = 1.0


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
        pins: Pins,
        on_change: Callable[[], None],
    ) -> None:
        self.name = grant.name
        self.grant = grant
        self.counters = counters
        self.tools: dict[str, Tool] = {}
        """The current version of each tool."""
        self.instances: dict[str, Instance] = {}
        """Those whose stream is open, by id."""
        self._gone: dict[str, tuple[Instance, asyncio.TimerHandle]] = {}
        self._limits = limits
        self._call_limits = call_limits
        self._pins = pins
        self._pinning: dict[ScopeKey, Call] = {}
        """The running calls that their scopes were pinned by, to take it back if they turn out not to be invoked."""
        self._on_change = on_change
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
        states[InstanceState.GONE.name.lower()] = len(self._gone)
        return SetReading(self.name, states, slots, taken, leaked, len(self._waiting))

    def version_for(self, call: Call, tool: Tool) -> Tool:
        """The version of a tool that holds something that the call's run or session is bound to.

        :raises Refusal: as INVALID_ARGUMENTS if the call does not name what it holds something for.
        """
        pinned = self._pins.of(holding.scope_held(call, tool), self.name)
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
        if tool is not None and tool.holds and self._place_where_pinned(call, tool, now):
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
                if tool is not None and tool.holds and self._pins.of(holding.scope_held(first, tool), self.name):
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

    def _give(self, call: Call, tool: Tool, instance: Instance, now: float) -> None:
        """Gives a call to an instance. What the tool holds for the call's scope is there from now on."""
        call.placed(instance.assign(call, tool), now)
        if tool.holds and call.assignment is not None:
            key = holding.scope_held(call, tool)
            self._pinning[key] = call
            call.at_end(partial(self._pinned_for_good, key, call))
            self._pins.pin(key, self.name, instance.id)

    def _pinned_for_good(self, key: ScopeKey, call: Call) -> None:
        if self._pinning.get(key) is call:
            del self._pinning[key]

    def _place_where_pinned(self, call: Call, tool: Tool, now: float) -> bool:
        """Gives a call to the instance that its scope is pinned to; answers whether it is pinned to any.

        :raises Refusal: if that cannot take it. It never goes to another one.
        """
        key = holding.scope_held(call, tool)
        pinned = self._pins.of(key, self.name)
        if pinned is None:
            return False
        instance = self.instances.get(pinned)
        if instance is None and pinned in self._gone:
            raise holding.pinned_is_away(tool)
        if instance is None or instance.state is InstanceState.LEAVING:
            if not call.attempts:
                # One that was lost with the instance learns that, and the next call what else was.
                self._pins.drop(key, self.name)
            raise holding.pinned_is_lost(tool)
        if instance.tools.get(tool.name) != tool.digest:
            raise holding.pinned_has_not(tool)
        if not instance.can_take(tool, nested=call.parent is not None, pinned=True):
            raise holding.pinned_is_full(tool)
        call.placed(instance.assign(call, tool), now)
        return True

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
        """Lets an instance finish what it runs and gives it nothing more, but what is pinned to it."""
        if instance.state is not InstanceState.ACTIVE:
            return
        instance.state = InstanceState.DRAINING
        free = self._pins.free(instance.id)
        if free.done():
            self.dismiss(instance, self._limits.drain)
        else:
            free.add_done_callback(lambda _: self.dismiss(instance, self._limits.drain))
        self._limit_drain(instance)
        self._changed()

    def dismiss(self, instance: Instance, grace: float) -> None:
        """Tells an instance that drains to finish within so many seconds, and to say goodbye, if it was not told."""
        if instance.state is not InstanceState.DRAINING or instance.dismissed:
            return
        instance.dismissed = True
        frame = Frame()
        frame.drain.grace.FromNanoseconds(int(grace * 1e9))
        # Behind what it was given already: a worker that leaves at once must not leave an invoke unread.
        instance.stream.farewell(frame)

    async def until_free(self, instance: Instance) -> None:
        """Waits until an instance runs nothing and no scope is pinned to it."""
        while instance.running or not (free := self._pins.free(instance.id)).done():
            await (instance.until_idle() if instance.running else free)

    def leave(self, instance: Instance) -> None:
        """An instance says goodbye: it finishes what it runs, and its stream ends."""
        if instance.state in (InstanceState.ACTIVE, InstanceState.DRAINING):
            instance.state = InstanceState.LEAVING
            self._limit_drain(instance)
            self._changed()
        instance.finish_when_idle()

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
            timer = asyncio.get_running_loop().call_later(self._limits.reattach_window, self._forget, instance.id)
            self._gone[instance.id] = (instance, timer)
        self._changed()
        for assignment in running:
            if (call := assignment.assigned) is not None:
                if self._pinning and not assignment.invoked:
                    self._take_back_pin(call)
                call.lost()

    def quarantine(self, instance: Instance) -> None:
        """An instance is of no use any more: it is lost, and whoever started its process is to end it."""
        self._quarantined.add(instance.holder)
        self.lose(instance)

    def bury(self, holder: str) -> None:
        """The process that this holder's token was given to has ended: none of its instances comes back."""
        for instance in [*self.instances.values(), *(instance for instance, _ in self._gone.values())]:
            if instance.holder == holder:
                self.lose(instance)
                self._forget(instance.id)

    def of_holder(self, holder: str) -> Instance | None:
        """The attached instance whose token was given to this holder."""
        return next((instance for instance in self.instances.values() if instance.holder == holder), None)

    def was_quarantined(self, holder: str) -> bool:
        """Whether an instance of this holder was given up. Told once."""
        if holder in self._quarantined:
            self._quarantined.discard(holder)
            return True
        return False

    def earlier(self, instance_id: str) -> Instance | None:
        """The instance of this id, open or lost within the window."""
        if instance_id in self.instances:
            return self.instances[instance_id]
        gone = self._gone.get(instance_id)
        return gone[0] if gone is not None else None

    def replace(self, earlier: Instance) -> None:
        """An instance came back: its old stream, if it is still open, is over."""
        self.lose(earlier)
        earlier.stream.close()
        self._forget(earlier.id)

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
        for _, timer in self._gone.values():
            timer.cancel()
        for timer in self._unlisting.values():
            timer.cancel()
        self._gone.clear()
        self._unlisting.clear()

    # --- parts of the above

    def _take_back_pin(self, call: Call) -> None:
        """A call is not run where it was to be: if its scope was pinned for it, nothing is held there."""
        if call.tool is not None and call.tool.holds:
            key = holding.scope_held(call, call.tool)
            if self._pinning.get(key) is call:
                self._pins.drop(key, self.name)

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
        self.dismiss(instance, self._call_limits.cancel_grace)
        instance.drain_timer = asyncio.get_running_loop().call_later(
            self._call_limits.cancel_grace, self._end, instance
        )

    def _end(self, instance: Instance) -> None:
        self.lose(instance)
        instance.stream.close()

    def _forget(self, instance_id: str) -> None:
        gone = self._gone.pop(instance_id, None)
        if gone is not None:
            gone[1].cancel()


def _bring(instance: Instance, tools: Mapping[str, Tool]) -> None:
    instance.tools = {name: tool.digest for name, tool in tools.items()}
    instance.holding = {name: tool for name, tool in tools.items() if tool.holds}
