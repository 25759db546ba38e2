"""Spans by OpenTelemetry, exported over OTLP. Imported only where tracing is configured.

A call's span is put together when the call ends, of what was noted when it began: the tracer of the SDK would cost
several times what the call itself does. The queue, the batches and the export are the SDK's.
"""

import asyncio
import logging
import random
import re
import threading
from time import time_ns
from typing import Any
from urllib.parse import urlsplit

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from sidecar._gen.pillion.v1.context_pb2 import Trace
from sidecar.telemetry.counters import Counters
from sidecar.telemetry.spans import Ended, Span

_log = logging.getLogger(__name__)

# As W3C has it: a later version may have more at its end, the one there is must not.
_TRACEPARENT = re.compile(r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_TRACEPARENT_BYTES = 64
_TRACESTATE_BYTES = 512
_SAMPLED = 1
_UNKNOWN = "unknown tool"
_EXPORT_SECONDS = 5.0
_QUEUED_SPANS = 8_192
_BATCH_SPANS = 512
_BATCH_MILLISECONDS = 1_000.0
_LOW_BITS = 2**64 - 1
_NO_PROXY: Any = (("grpc.enable_http_proxy", 0),)

_SCOPE = InstrumentationScope("pillion")
_FLAGS = TraceFlags(TraceFlags.SAMPLED)
_FINE = Status(StatusCode.UNSET)
_NO_ERRORS = frozenset(("RESULT", "PAUSED", "CANCELLED"))


class CallSpan:
    """The span of one call that is kept."""

    __slots__ = ("_began", "_id", "_joined", "_parent", "_state", "_trace", "_tracer")

    def __init__(self, tracer: "OtlpTracer", trace: int, parent: int, state: str) -> None:
        self._tracer = tracer
        self._trace = trace
        self._parent = parent
        self._state = state
        self._id = _new_id(64)
        self._joined: CallSpan | None = None
        self._began = time_ns()

    def carry(self, trace: Trace) -> None:
        """Puts this span in the place of the caller's; state and baggage go on as they came, if the trace does."""
        trace.traceparent = f"00-{self._trace:032x}-{self._id:016x}-01"
        if not self._parent:
            trace.ClearField("tracestate")

    def join(self, other: Span) -> None:
        """Links this span to the one of the call that it joined, where that is kept."""
        self._joined = other if isinstance(other, CallSpan) else None

    def end(self, how: Ended) -> None:
        """Gives the span to the exporter."""
        attributes: dict[str, str | bool] = {
            "pillion.outcome": how.kind,
            "pillion.execution_id": how.execution_id,
            "pillion.tool_call_id": how.tool_call_id,
        }
        if how.worker is not None:
            attributes["pillion.worker"] = how.worker
        if how.is_error:
            attributes["pillion.is_error"] = True
        parent = self._parent
        self._tracer.export(
            ReadableSpan(
                name=how.tool or _UNKNOWN,
                context=self.context(),
                parent=SpanContext(self._trace, parent, is_remote=True, trace_flags=_FLAGS) if parent else None,
                resource=self._tracer.resource,
                attributes=attributes,
                links=() if self._joined is None else (Link(self._joined.context()),),
                kind=SpanKind.SERVER,
                status=_FINE if how.kind in _NO_ERRORS else Status(StatusCode.ERROR, how.kind),
                start_time=self._began,
                end_time=max(time_ns(), self._began),
                instrumentation_scope=_SCOPE,
            )
        )

    def context(self) -> SpanContext:
        """What others refer to this span by."""
        state = TraceState.from_header([self._state]) if self._state else None
        return SpanContext(self._trace, self._id, is_remote=False, trace_flags=_FLAGS, trace_state=state)


class _Unkept:
    """The beginning of a trace that is not kept, which those that follow are told."""

    __slots__ = ("_trace",)

    def __init__(self, trace: int) -> None:
        self._trace = trace

    def carry(self, trace: Trace) -> None:
        trace.traceparent = f"00-{self._trace:032x}-{_new_id(64):016x}-00"
        trace.ClearField("tracestate")

    def join(self, other: Span) -> None:
        """There is nothing to link."""

    def end(self, how: Ended) -> None:
        """There is nothing to tell."""


class OtlpTracer:
    """Samples, keeps and exports the spans of calls.

    A trace that the caller has begun is kept if the caller keeps it, and a new one by `ratio`, as everyone with the
    same ratio decides. Finished spans wait in a bounded queue, from which a thread sends them in batches; when the
    collector does not take them the oldest give way. No call waits for a span, and none fails for one.
    """

    def __init__(self, endpoint: str, ratio: float, service: str, instance: str, counters: Counters) -> None:
        exporter = OTLPSpanExporter(
            endpoint,
            insecure=urlsplit(endpoint).scheme == "http",
            timeout=_EXPORT_SECONDS,
            channel_options=_NO_PROXY if _is_local(endpoint) else None,
        )
        self.resource = Resource.create({"service.name": service, "service.instance.id": instance})
        """What all spans are of."""
        self._processor = BatchSpanProcessor(
            exporter,
            max_queue_size=_QUEUED_SPANS,
            schedule_delay_millis=_BATCH_MILLISECONDS,
            max_export_batch_size=min(_BATCH_SPANS, _QUEUED_SPANS),
        )
        self._kept_below = round(ratio * (_LOW_BITS + 1))
        self._counters = counters

    def begin(self, trace: Trace) -> Span | None:
        """A call starts; its parent is what the caller sent, if that is a trace context.

        `None`: the caller does not keep the trace, and what it sent is to be passed on as it came.
        """
        traceparent = trace.traceparent
        sent = None
        if traceparent and len(traceparent) <= _TRACEPARENT_BYTES:
            sent = _TRACEPARENT.fullmatch(traceparent)
        if sent is None or (sent[1] == "00" and sent[5]):
            trace_id = _new_id(128)
            return CallSpan(self, trace_id, 0, "") if trace_id & _LOW_BITS < self._kept_below else _Unkept(trace_id)
        if not int(sent[4], 16) & _SAMPLED:
            return None
        state = trace.tracestate
        return CallSpan(
            self, int(sent[2], 16), int(sent[3], 16), state if len(state.encode()) <= _TRACESTATE_BYTES else ""
        )

    def export(self, span: ReadableSpan) -> None:
        """Queues a span that has ended."""
        try:
            self._processor.on_end(span)
        except Exception:
            self._counters.add("internal_errors")
            _log.exception("a span could not be queued")

    async def aclose(self, within: float = 2.0) -> None:
        """Exports what is left, for at most so many seconds; what is not exported by then is dropped."""
        loop = asyncio.get_running_loop()
        closed: asyncio.Future[None] = loop.create_future()

        def tell() -> None:
            if not closed.done():
                closed.set_result(None)

        def close() -> None:
            try:
                self._processor.shutdown()  # type: ignore[no-untyped-call]  # theirs
            finally:
                try:
                    loop.call_soon_threadsafe(tell)
                except RuntimeError:
                    # Nobody waits any more: the loop is closed.
                    return

        # A thread that the end of the process does not wait for.
        threading.Thread(target=close, name="last spans", daemon=True).start()
        done, _ = await asyncio.wait((closed,), timeout=within)
        if not done:
            _log.warning("the last spans were not taken within %g s and are dropped", within)


def _new_id(bits: int) -> int:
    """An id that is not zero. Unique, not secret."""
    return random.getrandbits(bits) or 1


def _is_local(endpoint: str) -> bool:
    host = urlsplit(endpoint).hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")
