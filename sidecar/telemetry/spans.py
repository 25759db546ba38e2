"""What a call tells a tracer. The one that exports is in `traces`, and is loaded only where it is configured."""

from typing import NamedTuple, Protocol

from sidecar._gen.pillion.v1.context_pb2 import Trace


class Ended(NamedTuple):
    """What is told of a call when it ends. Nothing of its arguments, its result or its messages."""

    tool: str | None
    """`None` where there is no such tool: the name is then the caller's invention."""
    worker: str | None
    """The worker set that has the tool."""
    kind: str
    """The kind of its outcome: RESULT, PAUSED, or that of the failure."""
    is_error: bool
    """Whether the tool returned its result as an error."""
    execution_id: str
    tool_call_id: str


class Span(Protocol):
    """One call in a trace. Nothing here raises or waits."""

    def carry(self, trace: Trace) -> None:
        """Puts this span in the place of the caller's, in what the caller sent: it is the parent of what follows."""
        ...

    def join(self, other: "Span") -> None:
        """The call gets what another one with the same idempotency key gets, and its tool runs in that one's trace."""
        ...

    def end(self, how: Ended) -> None:
        """The call has its outcome."""
        ...


class Tracer(Protocol):
    """Makes a span for each call. Nothing here raises or waits."""

    def begin(self, trace: Trace) -> Span | None:
        """A call starts; its parent is what the caller sent, if that is a trace context."""
        ...
