"""Which instance each run and session is pinned to: what of one worker set's tools hold something for it."""

from collections.abc import Callable, Container, Mapping
from functools import partial

from sidecar.calls import holding
from sidecar.calls.call import Call
from sidecar.calls.teardowns import Teardowns
from sidecar.calls.tool import Tool
from sidecar.scope import ScopeKey
from sidecar.workers.instance import Instance, InstanceState


class Pins:
    """The pins of one worker set, as the live scopes have them: a scope that ends or grows cold drops its own."""

    def __init__(self, worker: str, teardowns: Callable[[], Teardowns]) -> None:
        self._worker = worker
        self._teardowns = teardowns
        self._pinning: dict[ScopeKey, Call] = {}
        """The running calls that scopes were pinned by, to take it back if they turn out not to be invoked."""

    def of(self, call: Call, tool: Tool) -> str | None:
        """The instance that a call of a tool that holds something goes to; `None`: it may be any.

        :raises Refusal: as INVALID_ARGUMENTS if the call does not name what the tool holds something for.
        """
        key = self._key(call, tool)
        return self._teardowns().registry.pinned(key, self._worker) if key is not None else None

    def instance_for(
        self, call: Call, tool: Tool, instances: Mapping[str, Instance], away: Container[str]
    ) -> Instance | None:
        """The instance that the call goes to, and to no other; `None`: it may be any.

        :raises Refusal: if that one cannot take it.
        """
        pinned = self.of(call, tool)
        if pinned is None:
            return None
        instance = instances.get(pinned)
        if instance is None and pinned in away:
            raise holding.pinned_is_away(tool)
        if instance is None or instance.state is InstanceState.LEAVING:
            if not call.attempts:
                # One that was lost with the instance learns that, and the next call what else was.
                self._drop(self._key(call, tool))
            raise holding.pinned_is_lost(tool)
        if instance.tools.get(tool.name) != tool.digest:
            raise holding.pinned_has_not(tool)
        if not instance.can_take(tool, nested=call.parent is not None, pinned=True):
            raise holding.pinned_is_full(tool)
        return instance

    def pin(self, call: Call, tool: Tool, instance: Instance) -> None:
        """A call was given to an instance: what its tool holds is there from now on."""
        if call.assignment is None or (key := self._key(call, tool)) is None:
            return
        self._pinning[key] = call
        call.at_end(partial(self._settle, key, call))
        self._teardowns().registry.pin(key, self._worker, instance.id)

    def take_back(self, call: Call) -> None:
        """A call is not run where it was to be: if its scope was pinned by it, nothing is held there."""
        if self._pinning and call.tool is not None and call.tool.holds:
            key = self._key(call, call.tool)
            if key is not None and self._pinning.get(key) is call:
                self._drop(key)

    def _settle(self, key: ScopeKey, call: Call) -> None:
        if self._pinning.get(key) is call:
            del self._pinning[key]

    @staticmethod
    def _key(call: Call, tool: Tool) -> ScopeKey | None:
        """The scope that the tool holds something for; `None`: the call is in none, as cleanup calls are."""
        key = holding.scope_held(call, tool)
        return key if key in call.lasting_scopes() else None

    def _drop(self, key: ScopeKey | None) -> None:
        if key is not None:
            self._teardowns().registry.unpin(key, self._worker)
