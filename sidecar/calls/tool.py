"""A tool of the catalogue, as a call sees it."""

from dataclasses import dataclass

from sidecar._gen.pillion.v1.context_pb2 import TeardownScope
from sidecar._gen.pillion.v1.tool_pb2 import Effects, ToolDescriptor
from sidecar.calls.ports import WorkerSet
from sidecar.calls.schema import Schema


@dataclass(frozen=True, slots=True, eq=False)
class Tool:
    """One version of one tool: immutable, so a call that holds it is pinned to it."""

    name: str
    descriptor: ToolDescriptor
    """As admitted. Never changed."""
    digest: bytes
    """Tells versions apart: of the whole descriptor."""
    workers: WorkerSet
    arguments: Schema
    result: Schema | None
    """`None`: results are not parsed."""
    effects: "Effects.ValueType"
    """READ, IDEMPOTENT or UNSAFE."""
    default_timeout: float | None
    max_timeout: float | None
    concurrency: int | None
    """How many calls of it one instance runs at once; `None`: as many as the instance."""
    ceiling: int | None
    """The largest result in bytes; `None`: as large as a frame."""
    declares: tuple[str, ...]
    """Which of `wants` and `needs` it declares, in the order of their gates."""
    places: bool
    """Whether a large result goes to an artifact."""
    holds: "TeardownScope.ValueType"
    """What it holds something for, RUN or SESSION, whose calls all go to one instance; 0: nothing."""
