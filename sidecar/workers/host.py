"""Hosts the streams of workers."""

from sidecar.telemetry import Counters
from sidecar.telemetry.redaction import NoRedaction, Redaction
from sidecar.wire.ending import Ending, EndingReason
from sidecar.wire.limits import WireLimits
from sidecar.wire.stream import FrameStream
from sidecar.wire.streams import Streams
from sidecar.wire.transport import Transport
from sidecar.workers.attach import AttachSession, Refusals
from sidecar.workers.catalogue import Catalogue
from sidecar.workers.limits import WorkerLimits


class WorkerHost:
    """Runs `Attach` streams over whatever transport they come by."""

    def __init__(
        self,
        catalogue: Catalogue,
        streams: Streams,
        limits: WorkerLimits,
        wire_limits: WireLimits,
        counters: Counters,
        *,
        redaction: Redaction | None = None,
        refusals: Refusals | None = None,
    ) -> None:
        """`redaction`: of what workers log. `refusals`: is told of what they are refused."""
        self._catalogue = catalogue
        self._streams = streams
        self._limits = limits
        self._wire_limits = wire_limits
        self._counters = counters
        self._redaction = redaction or NoRedaction()
        self._refusals = refusals

    async def attach(self, transport: Transport) -> Ending | None:
        """Runs one worker's stream to its end; answers what the worker is told of it, if the sidecar ended it."""
        if self._streams.full:
            self._counters.add("refused_streams")
            return Ending(EndingReason.FULL, "Too many streams are open; try again later.")
        stream = FrameStream(transport, self._wire_limits, self._counters, ping_interval=self._limits.ping_interval)
        session = AttachSession(
            stream,
            self._catalogue,
            self._limits,
            self._wire_limits,
            self._counters,
            redaction=self._redaction,
            refusals=self._refusals,
        )
        with self._streams.keeping(stream):
            await stream.run(session)
        if stream.stalled:
            return Ending(EndingReason.STALLED, "The worker stopped reading.")
        return session.ending
