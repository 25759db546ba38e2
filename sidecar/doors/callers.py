"""Hosts the streams of callers."""

from sidecar.calls.pipeline import Pipeline
from sidecar.doors.execute import ExecuteSession
from sidecar.scope import Principal
from sidecar.telemetry import Counters
from sidecar.wire.ending import Ending, EndingReason
from sidecar.wire.limits import WireLimits
from sidecar.wire.stream import FrameStream
from sidecar.wire.streams import Streams
from sidecar.wire.transport import Transport


class CallerHost:
    """Runs `Execute` streams over whatever transport they come by."""

    def __init__(self, pipeline: Pipeline, streams: Streams, wire_limits: WireLimits, counters: Counters) -> None:
        self._pipeline = pipeline
        self._streams = streams
        self._wire_limits = wire_limits
        self._counters = counters
        self._sessions: set[ExecuteSession] = set()

    async def execute(self, transport: Transport, principal: Principal, until: float | None = None) -> Ending | None:
        """Runs one caller's stream to its end; answers what the caller is told of it, if the sidecar ended it.

        `until` is when what the caller has shown expires, in seconds since the Unix epoch: it takes no calls then.
        """
        if self._streams.full:
            self._counters.add("refused_streams")
            return Ending(EndingReason.FULL, "Too many streams are open; try again later.")
        audit = self._pipeline.audit
        stream = FrameStream(
            transport, self._wire_limits, self._counters, before_write=audit.flush if audit is not None else None
        )
        session = ExecuteSession(stream, self._pipeline, principal, self._wire_limits, until)
        self._sessions.add(session)
        try:
            with self._streams.keeping(stream):
                await stream.run(session)
        finally:
            self._sessions.discard(session)
        return Ending(EndingReason.STALLED, "The caller stopped reading.") if stream.stalled else None

    def drain(self, grace: float) -> None:
        """Tells every caller that the sidecar is about to stop."""
        for session in self._sessions:
            session.drain(grace)
