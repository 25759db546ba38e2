"""The instances of one configured worker name, and the calls that wait for them."""

import asyncio
from collections.abc import Callable

from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind
from sidecar.calls.call import Call
from sidecar.calls.limits import CallLimits
from sidecar.calls.outcome import Refusal
from sidecar.calls.tool import Tool
from sidecar.telemetry import Counters
from sidecar.workers.grant import Grant
from sidecar.workers.instance import Instance, InstanceState
from sidecar.workers.limits import WorkerLimits
from sidecar.workers.queue import FairQueue

_RETRY_AFTER = 1.0


class WorkerSet:
    """One worker name. Balances by calls in flight; when all is full, calls wait in order and fair by subject."""

    def __init__(
        self,
        grant: Grant,
        limits: WorkerLimits,
        call_limits: CallLimits,
        counters: Counters,
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
        self._on_change = on_change
        self._waiting = FairQueue()
        self._unlisting: dict[str, asyncio.TimerHandle] = {}

    @property
    def attached(self) -> bool:
        """Whether any instance takes calls."""
        return any(instance.state is InstanceState.ACTIVE for instance in self.instances.values())

    @property
    def waiting(self) -> int:
        """How many calls wait."""
        return len(self._waiting)

    def place(self, call: Call) -> None:
        """Gives the call an instance, now or when one is free.

        :raises Refusal: as OVERLOADED if too many wait already.
        """
        tool = call.tool
        if tool is not None and not self._waiting:
            instance = self._choose(tool)
            if instance is not None:
                call.placed(instance.assign(call, tool))
                return
        if len(self._waiting) >= self._call_limits.waiting_per_set:
            raise Refusal(
                FailureKind.FAILURE_KIND_OVERLOADED,
                f"{len(self._waiting):,} calls wait for this tool's worker, which is the most; try again later.",
                retryable=True,
                retry_after=_RETRY_AFTER,
            )
        self.counters.add("waits")
        self._waiting.push(call)
        self.serve()

    def withdraw(self, call: Call) -> None:
        """Takes back a call that waits, if it does."""
        self._waiting.remove(call)

    def slot_freed(self) -> None:
        """A slot became free."""
        if self._waiting:
            self.serve()

    def serve(self) -> None:
        """Gives waiting calls what has become free, or the newer version of their tool."""
        if self._waiting:
            self._waiting.serve(self._ready, self._take)

    # --- instances come and go

    def attach(self, instance: Instance, tools: dict[str, Tool]) -> None:
        """An instance is there with these tools. Those that host another version of one of them drain."""
        self.instances[instance.id] = instance
        self.change_tools(instance, tools)

    def change_tools(self, instance: Instance, tools: dict[str, Tool]) -> None:
        """An instance has these tools from now on."""
        dropped = instance.tools.keys() - tools.keys()
        instance.tools = {name: tool.digest for name, tool in tools.items()}
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
        """Lets an instance finish what it runs and gives it nothing more."""
        if instance.state is not InstanceState.ACTIVE:
            return
        instance.state = InstanceState.DRAINING
        frame = Frame()
        frame.drain.grace.FromNanoseconds(int(self._limits.drain * 1e9))
        instance.stream.control(frame)
        instance.drain_timer = asyncio.get_running_loop().call_later(self._limits.drain, self._give_up, instance)
        self._changed()

    def leave(self, instance: Instance) -> None:
        """An instance says goodbye: it finishes what it runs, and its stream ends."""
        if instance.state in (InstanceState.ACTIVE, InstanceState.DRAINING):
            instance.state = InstanceState.LEAVING
            self._changed()
        instance.finish_when_idle()

    def lose(self, instance: Instance) -> None:
        """An instance's stream is over: what it ran is decided, and it may come back within the window."""
        if instance.state is InstanceState.GONE:
            return
        running = instance.end()
        self.instances.pop(instance.id, None)
        timer = asyncio.get_running_loop().call_later(self._limits.reattach_window, self._forget, instance.id)
        self._gone[instance.id] = (instance, timer)
        self._changed()
        for assignment in running:
            if assignment.call is not None:
                assignment.call.lost()

    def earlier(self, instance_id: str) -> Instance | None:
        """The instance of this id, open or lost within the window."""
        if instance_id in self.instances:
            return self.instances[instance_id]
        gone = self._gone.get(instance_id)
        return gone[0] if gone is not None else None

    def replace(self, earlier: Instance) -> None:
        """An instance came back: its old stream, if it is still open, is over."""
        self.lose(earlier)
        earlier.stream.finish()
        self._forget(earlier.id)

    def close(self) -> None:
        """Drops all timers, at the end of the sidecar."""
        for _, timer in self._gone.values():
            timer.cancel()
        for timer in self._unlisting.values():
            timer.cancel()
        self._gone.clear()
        self._unlisting.clear()

    # --- parts of the above

    def _choose(self, tool: Tool) -> Instance | None:
        """The least loaded instance that can take a call of the tool."""
        best: Instance | None = None
        best_load = 0.0
        for instance in self.instances.values():
            if instance.can_take(tool):
                load = len(instance.running) / instance.concurrency
                if best is None or load < best_load:
                    best, best_load = instance, load
        return best

    def _ready(self, call: Call) -> bool:
        current = self.tools.get(call.tool_name)
        if call.tool is not current:
            return current is not None
        return current is not None and self._choose(current) is not None

    def _take(self, call: Call) -> None:
        tool = call.tool
        if tool is None or tool is not self.tools.get(call.tool_name):
            call.resolve_again()
            return
        instance = self._choose(tool)
        if instance is not None:
            call.placed(instance.assign(call, tool))

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

    def _give_up(self, instance: Instance) -> None:
        """A draining instance had its time."""
        self.lose(instance)
        instance.stream.close()

    def _forget(self, instance_id: str) -> None:
        gone = self._gone.pop(instance_id, None)
        if gone is not None:
            gone[1].cancel()
