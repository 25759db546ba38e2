"""Traces: a span for each call, at its place between the caller's and the worker's, exported over OTLP."""

import asyncio
import contextlib
import logging
import re
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace import SpanKind, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from pydantic import ValidationError

from sidecar._gen.pillion.v1.context_pb2 import Trace
from sidecar.config import ConfigRefused, Tracing
from tests.support import READ, CallLimits, MemoryHost, Setup, SocketHost, attach, failure, on_unix, settings, tool
from tests.support.collector import Sink

_PATIENCE = 15.0
_PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
_UNSAMPLED = f"{_PARENT[:-2]}00"
_W3C = TraceContextTextMapPropagator()


@pytest.fixture
async def sink(transport: str) -> AsyncIterator[Sink]:
    made = Sink()
    await made.open()
    yield made
    await made.aclose()


StartTracing = Callable[..., Awaitable[SocketHost]]


@pytest.fixture
async def start_tracing(transport: str, tmp_path: Path) -> AsyncIterator[StartTracing]:
    hosts: list[SocketHost] = []

    async def start(port: int, ratio: float = 1.0, setup: Setup | None = None) -> SocketHost:
        tracing = Tracing(endpoint=f"http://127.0.0.1:{port}", ratio=ratio)
        made = settings(setup or Setup(), transport, tmp_path).model_copy(update={"tracing": tracing})
        hosts.append(SocketHost(transport, made))
        await hosts[-1].open()
        return hosts[-1]

    yield start
    for host in hosts:
        await host.aclose()


@contextlib.contextmanager
def peer(service: str, sink: Sink) -> Iterator[TracerProvider]:
    """A caller or worker that traces too, into the same collector."""
    exporter = OTLPSpanExporter(f"http://127.0.0.1:{sink.port}", insecure=True)
    provider = TracerProvider(resource=Resource({"service.name": service}), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield provider
    exporter.shutdown()


def attributes(span: Span) -> dict[str, str]:
    return {each.key: each.value.string_value for each in span.attributes}


def context_of(trace: Trace) -> tuple[str, str, bool]:
    """Trace id, span id, and whether it is sampled."""
    found = re.fullmatch(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})", trace.traceparent)
    assert found is not None, trace.traceparent
    return found[1], found[2], bool(int(found[3], 16) & 1)


@on_unix
async def test_a_trace_goes_from_the_caller_through_the_sidecar_to_the_worker(
    sink: Sink, start_tracing: StartTracing
) -> None:
    host = await start_tracing(sink.port)
    worker, caller = await attach(host), await host.caller()
    with peer("agent", sink) as agent, peer("tools", sink) as tools:
        asking = agent.get_tracer("agent").start_span("ask")
        carrier: dict[str, str] = {}
        _W3C.inject(carrier, set_span_in_context(asking))
        call = await caller.start(trace=Trace(traceparent=carrier["traceparent"]))
        invocation = await worker.next_invoke()
        passed_on = {"traceparent": invocation.context.trace.traceparent}
        working = tools.get_tracer("tools").start_span("work", _W3C.extract(passed_on), SpanKind.SERVER)
        await asyncio.to_thread(working.end)
        await worker.result(invocation.call)
        await caller.outcome(call)
        await asyncio.to_thread(asking.end)
        [asked], [called], [worked] = await sink.of("agent"), await sink.of("pillion"), await sink.of("tools")

    assert asked.trace_id == called.trace_id == worked.trace_id
    assert not asked.parent_span_id
    assert called.parent_span_id == asked.span_id
    assert worked.parent_span_id == called.span_id
    assert asked.start_time_unix_nano <= called.start_time_unix_nano <= worked.start_time_unix_nano
    assert worked.end_time_unix_nano <= called.end_time_unix_nano <= asked.end_time_unix_nano
    assert (called.name, called.kind) == ("echo", Span.SPAN_KIND_SERVER)
    assert called.status.code == Status.STATUS_CODE_UNSET
    assert attributes(called) == {
        "pillion.outcome": "RESULT",
        "pillion.worker": "main",
        "pillion.execution_id": invocation.context.execution_id,
        "pillion.tool_call_id": invocation.context.tool_call_id,
    }


@on_unix
async def test_state_and_baggage_go_on_as_they_came(sink: Sink, start_tracing: StartTracing) -> None:
    host = await start_tracing(sink.port)
    worker, caller = await attach(host), await host.caller()
    sent = Trace(traceparent=_PARENT, tracestate="b=2, a=1 ", baggage="user=x;p=1")
    await caller.start(trace=sent)
    trace = (await worker.next_invoke()).context.trace
    assert (trace.tracestate, trace.baggage) == (sent.tracestate, sent.baggage)
    assert context_of(trace)[0] == _PARENT.split("-")[1]
    assert context_of(trace)[1] != _PARENT.split("-")[2]


@on_unix
@pytest.mark.parametrize(
    "traceparent",
    ["", "nonsense", "00-" + "0" * 32 + "-b7ad6b7169203331-01", "ff" + _PARENT[2:], "0" * 65],
    ids=["empty", "nonsense", "of zeros", "of no version", "too long"],
)
async def test_what_is_no_parent_begins_a_trace(sink: Sink, start_tracing: StartTracing, traceparent: str) -> None:
    host = await start_tracing(sink.port)
    worker, caller = await attach(host), await host.caller()
    call = await caller.start(trace=Trace(traceparent=traceparent, tracestate="a=1", baggage="user=x"))
    invocation = await worker.next_invoke()
    await worker.result(invocation.call)
    await caller.outcome(call)
    [span] = await sink.of("pillion")
    assert not span.parent_span_id
    trace = invocation.context.trace
    assert context_of(trace) == (span.trace_id.hex(), span.span_id.hex(), True)
    # State belongs to a trace, baggage does not.
    assert not trace.HasField("tracestate")
    assert trace.baggage == "user=x"


@on_unix
async def test_a_callers_sampling_is_kept_and_the_ratio_is_of_new_traces(
    sink: Sink, start_tracing: StartTracing
) -> None:
    host = await start_tracing(sink.port, ratio=0.0)
    worker, caller = await attach(host), await host.caller()
    for sent, sampled in ((None, False), (Trace(traceparent=_UNSAMPLED), False), (Trace(traceparent=_PARENT), True)):
        call = await caller.start(trace=sent)
        invocation = await worker.next_invoke()
        await worker.result(invocation.call)
        await caller.outcome(call)
        assert context_of(invocation.context.trace)[2] is sampled
    [span] = await sink.of("pillion")
    assert span.parent_span_id.hex() == _PARENT.split("-")[2]


@on_unix
async def test_every_call_has_one_span_that_says_how_it_ended_and_quotes_nothing(
    sink: Sink, start_tracing: StartTracing
) -> None:
    host = await start_tracing(sink.port, setup=Setup(calls=CallLimits(cancel_grace=0.05)))
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    tools = (tool("echo", input_schema=schema), tool("read", effects=READ), tool("send"))
    worker, caller = await attach(host, *tools), await host.caller()
    canary = "canary" * 3

    call = await caller.start("echo", {"text": canary}, idempotency_key=canary, run_id=canary)
    await worker.result((await worker.next_invoke()).call, {"text": canary}, is_error=True)
    await caller.outcome(call)
    call = await caller.start("echo", {"text": canary})
    await worker.send(failure((await worker.next_invoke()).call, message=canary))
    await caller.outcome(call)
    await caller.call("echo", {"n": canary})
    await caller.call(canary)
    await caller.call("echo", canary.encode())
    call = await caller.start("echo")
    await worker.next_invoke()
    await caller.cancel(call)
    await caller.outcome(call)
    read, send = await caller.start("read"), await caller.start("send")
    await worker.next_invoke()
    await worker.next_invoke()
    worker.cut()
    await caller.outcome(send)
    other = await attach(host, *tools)
    await other.result((await other.next_invoke()).call)
    await caller.outcome(read)

    ends = [
        (span.name, attributes(span)["pillion.outcome"], span.status.code == Status.STATUS_CODE_ERROR)
        for span in await sink.of("pillion", 8)
    ]
    assert sorted(ends) == [
        ("echo", "CANCELLED", False),
        ("echo", "INVALID_ARGUMENTS", True),
        ("echo", "RESULT", False),
        ("echo", "TOOL_FAILED", True),
        ("read", "RESULT", False),
        ("send", "OUTCOME_UNKNOWN", True),
        ("unknown tool", "INVALID_ARGUMENTS", True),
        ("unknown tool", "UNKNOWN_TOOL", True),
    ]
    [returned_as_error] = [span for _, span in sink.spans if any(a.key == "pillion.is_error" for a in span.attributes)]
    assert returned_as_error.status.code == Status.STATUS_CODE_UNSET
    assert not any(canary.encode() in request for request in sink.requests)


@on_unix
@pytest.mark.parametrize("leaves", [False, True], ids=["both stay", "the first leaves"])
async def test_a_call_that_joined_another_links_to_it(sink: Sink, start_tracing: StartTracing, leaves: bool) -> None:
    host = await start_tracing(sink.port)
    worker, first, second = await attach(host), await host.caller(), await host.caller()
    other_trace = _PARENT.replace("0af7", "1bf8")
    call = await first.start(idempotency_key="k", tool_call_id="first", trace=Trace(traceparent=_PARENT))
    invocation = await worker.next_invoke()
    joined = await second.start(
        idempotency_key="k", tool_call_id="second", trace=Trace(traceparent=other_trace, tracestate="a=1")
    )
    await second.flush()
    if leaves:
        await first.cancel(call)
        await first.outcome(call)
    await worker.result(invocation.call)
    await second.outcome(joined)
    if not leaves:
        await first.outcome(call)

    spans = {attributes(span)["pillion.tool_call_id"]: span for span in await sink.of("pillion", 2)}
    assert spans["first"].trace_id.hex() == _PARENT.split("-")[1]
    assert spans["second"].trace_id.hex() == other_trace.split("-")[1]
    assert attributes(spans["first"])["pillion.outcome"] == ("CANCELLED" if leaves else "RESULT")
    assert attributes(spans["second"])["pillion.outcome"] == "RESULT"
    # The tool runs in the trace of the first.
    assert context_of(invocation.context.trace)[1] == spans["first"].span_id.hex()
    [link] = spans["second"].links
    assert (link.trace_id, link.span_id) == (spans["first"].trace_id, spans["first"].span_id)
    assert not spans["first"].links


@on_unix
async def test_a_call_that_joined_one_whose_trace_is_not_kept_has_no_link(
    sink: Sink, start_tracing: StartTracing
) -> None:
    host = await start_tracing(sink.port, ratio=0.0)
    worker, caller = await attach(host), await host.caller()
    await caller.start(idempotency_key="k")
    invocation = await worker.next_invoke()
    joined = await caller.start(idempotency_key="k", trace=Trace(traceparent=_PARENT))
    await caller.flush()
    await worker.result(invocation.call)
    await caller.outcome(joined)
    [span] = await sink.of("pillion")
    assert not span.links


@on_unix
async def test_spans_are_flushed_at_the_stop(sink: Sink, tmp_path: Path, transport: str) -> None:
    tracing = Tracing(endpoint=f"http://127.0.0.1:{sink.port}", service="mine")
    host = SocketHost(transport, settings(Setup(), transport, tmp_path).model_copy(update={"tracing": tracing}))
    await host.open()
    caller = await host.caller()
    for _ in range(600):
        await caller.start("no-such-tool")
    await caller.outcome(caller.last_call)
    await host.aclose()
    assert len(sink.spans) == 600
    assert {name for name, _ in sink.spans} == {"mine"}


@on_unix
@pytest.mark.parametrize("collector", ["absent", "silent"])
async def test_a_collector_that_is_of_no_use_harms_neither_calls_nor_the_stop(
    sink: Sink, tmp_path: Path, transport: str, collector: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sidecar.telemetry.traces._QUEUED_SPANS", 600)
    sink.held = asyncio.Event()
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        unused = reserved.getsockname()[1]
    tracing = Tracing(endpoint=f"http://127.0.0.1:{sink.port if collector == 'silent' else unused}")
    host = SocketHost(transport, settings(Setup(), transport, tmp_path).model_copy(update={"tracing": tracing}))
    await host.open()
    worker, caller = await attach(host), await host.caller()
    slowest = 0.0
    for _ in range(4):
        began = time.perf_counter()
        # More in all than the queue holds.
        await caller.send(*(caller.starting("no-such-tool") for _ in range(500)))
        call = await caller.start()
        await worker.result((await worker.next_invoke()).call)
        await caller.outcome(call)
        slowest = max(slowest, time.perf_counter() - began)
    assert slowest < 5.0
    began = time.perf_counter()
    await host.aclose()
    assert time.perf_counter() - began < 6.0


async def test_without_tracing_the_callers_trace_is_passed_on_unchanged(memory_host: MemoryHost) -> None:
    worker, caller = await attach(memory_host), await memory_host.caller()
    for sent in (
        Trace(traceparent=_PARENT, tracestate="b=2, a=1 ", baggage="user=x"),
        Trace(traceparent="not one at all"),
        Trace(),
    ):
        await caller.start(trace=sent)
        assert (await worker.next_invoke()).context.trace == sent
    await caller.start()
    assert not (await worker.next_invoke()).context.HasField("trace")


@pytest.mark.parametrize(
    "endpoint",
    [
        "127.0.0.1:4317",
        "http://127.0.0.1",
        "grpc://a:1",
        "http://:4317",
        "http://a:x",
        "http://u:canary@a:1",
        "http://a:1/v1",
    ],
)
def test_what_is_no_endpoint_is_refused_and_not_quoted(endpoint: str) -> None:
    with pytest.raises(ValidationError, match="write http://127") as refusal:
        Tracing(endpoint=endpoint)
    assert "canary" not in refusal.value.errors()[0]["msg"]


@pytest.mark.parametrize("ratio", [-0.1, 1.1])
def test_a_ratio_is_a_share(ratio: float) -> None:
    with pytest.raises(ValueError, match="ratio"):
        Tracing(endpoint="http://127.0.0.1:4317", ratio=ratio)


@on_unix
async def test_a_missing_package_is_named(
    transport: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.grpc", None)
    tracing = Tracing(endpoint="http://127.0.0.1:4317")
    made = settings(Setup(), transport, tmp_path).model_copy(update={"tracing": tracing})
    with pytest.raises(ConfigRefused, match=r"needs opentelemetry\..*pillion-sidecar\[telemetry\]"):
        await SocketHost(transport, made).open()
