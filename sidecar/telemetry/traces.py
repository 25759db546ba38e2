"""Spans by OpenTelemetry, exported over OTLP. Imported only where tracing is configured."""

import asyncio
import logging
import threading
from typing import Any
from urllib.parse import urlsplit

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from sidecar._gen.pillion.v1.context_pb2 import Trace
from sidecar.telemetry.counters import Counters
from sidecar.telemetry.spans import Ended

_log = logging.getLogger(__name__)

_TRACEPARENT_BYTES = 64
_TRACESTATE_BYTES = 512
_UNKNOWN = "unknown tool"
_EXPORT_SECONDS = 5.0
_QUEUED_SPANS = 8_192
_BATCH_SPANS = 512
_BATCH_MILLISECONDS = 1_000.0
_NO_ERRORS = frozenset(("RESULT", "CANCELLED"))

_NO_PROXY: Any = (("grpc.enable_http_proxy", 0),)
_ROOT = Context()
_W3C = TraceContextTextMapPropagator()


class CallSpan:
    """One call's span."""

    __slots__ = ("_continues", "_counters", "_span")

    def __init__(self, span: Span, counters: Counters, *, continues: bool) -> None:
        self._span = span
        self._counters = counters
        self._continues = continues

    def carry(self, trace: Trace) -> None:
        """Puts this span in the place of the caller's; state and baggage go on as they came, if the trace does."""
        context = self._span.get_span_context()
        trace.traceparent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
        if not self._continues:
            trace.ClearField("tracestate")

    def end(self, how: Ended) -> None:
        """Tells what became of the call, and gives the span to the exporter."""
        span = self._span
        if not span.is_recording():
            return
        try:
            span.update_name(how.tool or _UNKNOWN)
            span.set_attribute("pillion.outcome", how.kind)
            span.set_attribute("pillion.execution_id", how.execution_id)
            span.set_attribute("pillion.tool_call_id", how.tool_call_id)
            if how.worker is not None:
                span.set_attribute("pillion.worker", how.worker)
            if how.is_error:
                span.set_attribute("pillion.is_error", value=True)
            if how.kind not in _NO_ERRORS:
                span.set_status(Status(StatusCode.ERROR, how.kind))
            span.end()
        except Exception:
            self._counters.add("internal_errors")
            _log.exception("a span could not be ended")


class OtlpTracer:
    """Samples, keeps and exports the spans of calls.

    A trace that the caller has begun is sampled as the caller says, and a new one by `ratio`. Finished spans wait in a
    bounded queue, from which a thread sends them in batches; when the collector does not take them the oldest give way.
    No call waits for a span, and none fails for one.
    """

    def __init__(self, endpoint: str, ratio: float, service: str, instance: str, counters: Counters) -> None:
        exporter = OTLPSpanExporter(
            endpoint,
            insecure=urlsplit(endpoint).scheme == "http",
            timeout=_EXPORT_SECONDS,
            channel_options=_NO_PROXY if _is_local(endpoint) else None,
        )
        self._processor = BatchSpanProcessor(
            exporter,
            max_queue_size=_QUEUED_SPANS,
            schedule_delay_millis=_BATCH_MILLISECONDS,
            max_export_batch_size=_BATCH_SPANS,
        )
        provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(ratio)),
            resource=Resource.create({"service.name": service, "service.instance.id": instance}),
            # At the exit of the process nobody would bound how long it takes.
            shutdown_on_exit=False,
        )
        provider.add_span_processor(self._processor)
        self._tracer = provider.get_tracer("pillion")
        self._counters = counters

    def begin(self, trace: Trace) -> CallSpan | None:
        """A call starts; its parent is what the caller sent, if that is a trace context."""
        try:
            parent = _parent(trace)
            span = self._tracer.start_span("call", parent, SpanKind.SERVER)
            return CallSpan(span, self._counters, continues=parent is not _ROOT)
        except Exception:
            self._counters.add("internal_errors")
            _log.exception("a span could not be begun")
            return None

    async def aclose(self, within: float = 2.0) -> None:
        """Exports what is left, for at most so many seconds; what is not exported by then is dropped."""
        loop = asyncio.get_running_loop()
        closed: asyncio.Future[None] = loop.create_future()

        def tell() -> None:
            if not closed.done():
                closed.set_result(None)

        def close() -> None:
            try:
                self._processor.shutdown()  # type: ignore[no-untyped-call]
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


def _is_local(endpoint: str) -> bool:
    host = urlsplit(endpoint).hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")


def _parent(trace: Trace) -> Context:
    """The context that a caller sent; the empty one where that is none, or over its limits."""
    traceparent = trace.traceparent
    if not traceparent or len(traceparent) > _TRACEPARENT_BYTES:
        return _ROOT
    carrier = {"traceparent": traceparent}
    if 0 < len(trace.tracestate.encode()) <= _TRACESTATE_BYTES:
        carrier["tracestate"] = trace.tracestate
    parent = _W3C.extract(carrier, _ROOT)
    return parent if get_current_span(parent).get_span_context().is_valid else _ROOT
