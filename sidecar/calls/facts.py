"""What is known of a call: what its caller asked for, and what was found for it."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar.calls.paused import Resumption
from sidecar.calls.ports import Caller, Sink
from sidecar.calls.tool import Tool
from sidecar.scope import Scope, ScopeKey, lasting_scopes

if TYPE_CHECKING:
    from sidecar.calls.call import Call


class CallFacts:
    """The facts of one call. They are filled in gate by gate; what is not known yet, or was not named, is absent."""

    __slots__ = (
        "anchor",
        "arguments",
        "caller",
        "deadline",
        "execution_id",
        "generation",
        "human_timeout",
        "idle_timeout",
        "instance_id",
        "invocation",
        "kept_for",
        "key",
        "levels",
        "parent",
        "resumption",
        "run_id",
        "run_of",
        "scope",
        "session_id",
        "sink",
        "started_at",
        "timeout",
        "tool",
        "tool_call_id",
        "tool_name",
    )

    def __init__(
        self,
        execution_id: str,
        tool_call_id: str,
        caller: Caller,
        sink: Sink,
        now: float,
        parent: "Call | None",
        levels: int,
    ) -> None:
        self.execution_id = execution_id
        self.tool_call_id = tool_call_id or "call_" + execution_id[4:]
        self.caller = caller
        self.sink = sink
        self.started_at = now
        self.parent = parent
        """The call whose tool made it; `None`: a caller did."""
        self.resumption: Resumption | None = None
        """What it goes on from; `None`: it is new."""
        self.levels = levels
        """How many levels of calls may be made below it."""
        self.tool_name = ""
        self.tool: Tool | None = None
        """The version it is pinned to, once it is resolved."""
        self.scope: Scope | None = None
        """Its storage scope, once it is decoded."""
        self.run_id: str | None = None
        self.run_of: str | None = None
        """The id that its run goes by, where that is another than the caller named."""
        self.session_id: str | None = None
        self.key: str | None = None
        """Its idempotency key."""
        self.timeout: float | None = None
        """The absolute timeout that the caller wishes."""
        self.idle_timeout: float | None = None
        self.human_timeout: float | None = None
        """How long people may take to answer, in all, as the caller wishes."""
        self.deadline = 0.0
        self.generation = 0
        """The catalogue generation it is pinned to."""
        self.invocation: Frame | None = None
        """What an instance is sent; none once the outcome is known."""
        self.arguments: bytes | None = None
        """Its arguments, where they are kept for the audit."""
        self.anchor: str | None = None
        """The caller's anchor, if it is carried."""
        self.instance_id: str | None = None
        """The newest instance that ran it."""
        self.kept_for: ScopeKey | None = None
        """Its own teardown scope, once its tool has registered something for it, or where it goes on from a pause."""

    def lasting_scopes(self) -> list[ScopeKey]:
        """The run and the session that it is in, where the caller named them: those of the call that made it."""
        if self.parent is not None:
            return self.parent.lasting_scopes()
        return [] if self.scope is None else lasting_scopes(self.scope.owner, self.run, self.session_id)

    @property
    def run(self) -> str | None:
        """The id that its run goes by, before and after a pause."""
        return self.run_of or self.run_id

    def ancestors(self) -> "Iterator[Call]":
        """The calls that wait for it, from the one that made it outwards."""
        outer = self.parent
        while outer is not None:
            yield outer
            outer = outer.parent
