"""`/metrics`, scraped over HTTP: the values right after calls whose numbers are known, and a server that is bounded."""

import asyncio
import logging
import re
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from sidecar._gen.pillion.v1.execute_pb2 import EndScopeRequest
from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind
from sidecar.calls.outcome import kind_name
from sidecar.config import ConfigRefused, Metrics, Settings, read
from sidecar.telemetry import Counters, Durations, exposition
from sidecar.telemetry.lag import LoopLag
from sidecar.telemetry.metrics import Metrics as Measured
from sidecar.telemetry.metrics import render
from sidecar.telemetry.readings import Reading, SetReading, StreamsReading
from tests.integration.teardowns import kept
from tests.support import (
    CallLimits,
    Setup,
    SidecarProcess,
    SocketHost,
    attach,
    end_scope,
    failure,
    on_unix,
    progress,
    result,
    settings,
    tool,
)

ROOT = Path(__file__).resolve().parents[2]
_PATIENCE = 15.0
_LOOPBACK = Metrics(listen="127.0.0.1:0")
_STRICT = {"type": "object", "properties": {"n": {"type": "integer"}}}

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


class Response(NamedTuple):
    status: int
    headers: dict[str, str]
    body: str


class Scraper:
    """Reads the metrics at a port."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def exchange(self, request: bytes) -> bytes:
        """What comes for these bytes, to the end."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(request)
            async with asyncio.timeout(_PATIENCE):
                return await reader.read()
        finally:
            writer.close()

    async def request(self, line: str = "GET /metrics HTTP/1.1", *headers: str) -> Response:
        answer = await self.exchange("\r\n".join((line, "Host: here", *headers, "", "")).encode())
        head, _, body = answer.partition(b"\r\n\r\n")
        status, *lines = head.decode().split("\r\n")
        named = dict(each.lower().split(": ", 1) for each in lines)
        return Response(int(status.split()[1]), named, body.decode())

    async def scrape(self) -> Samples:
        response = await self.request()
        assert response.status == 200, response
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(response.body)
            for sample in family.samples
        }

    async def value(self, name: str, **labels: str) -> float:
        return (await self.scrape())[name, tuple(sorted(labels.items()))]

    async def comes_to(self, expected: float, name: str, **labels: str) -> None:
        """Returns once a value is there: what a sidecar sees of its peers' ends is not theirs to time."""
        await self.until(lambda value: value == expected, name, **labels)

    async def until(self, holds: Callable[[float], bool], name: str, **labels: str) -> None:
        """Likewise, once something holds of a value. A page tells of no change, so it is read again."""
        for _ in range(500):
            if holds(await self.value(name, **labels)):
                return
            await asyncio.sleep(0.03)
        raise AssertionError(f"{name} did not come to what was awaited")


class Measuring(Scraper):
    """A sidecar that serves its metrics, and who reads them."""

    def __init__(self, host: SocketHost, port: int) -> None:
        super().__init__(port)
        self.host = host
        self.closed = False

    async def aclose(self) -> None:
        if not self.closed:
            self.closed = True
            await self.host.aclose()


StartMeasuring = Callable[..., Awaitable[Measuring]]


@pytest.fixture
async def start_measuring(
    transport: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> AsyncIterator[StartMeasuring]:
    caplog.set_level(logging.INFO)
    started: list[Measuring] = []

    async def start(setup: Setup | None = None, **changes: object) -> Measuring:
        made = settings(setup or Setup(), transport, tmp_path).model_copy(update={"metrics": _LOOPBACK, **changes})
        host = SocketHost(transport, made)
        await host.open()
        [port] = re.findall(r"metrics at http://127\.0\.0\.1:(\d+)/metrics", caplog.text)
        started.append(Measuring(host, int(port)))
        return started[-1]

    yield start
    for measuring in started:
        await measuring.aclose()


@pytest.fixture
async def measuring(start_measuring: StartMeasuring) -> Measuring:
    return await start_measuring()


# --- what is told


@on_unix
async def test_every_call_is_in_the_numbers_as_soon_as_it_has_its_outcome(start_measuring: StartMeasuring) -> None:
    measuring = await start_measuring(Setup(calls=CallLimits(worker_wait=30.0)))
    worker = await attach(measuring.host, tool("echo", input_schema=_STRICT), tool("slow"), concurrency=2)
    caller = await measuring.host.caller()

    for answer in (result, failure):
        call = await caller.start("echo", {"n": 1})
        invocation = await worker.next_invoke()
        await worker.send(answer(invocation.call))
        await caller.outcome(call)
    await caller.call("echo", {"n": "not a number"})
    await caller.call("no-such-tool")
    running = [await caller.start("slow") for _ in range(3)]
    invocations = [await worker.next_invoke() for _ in range(2)]
    await caller.flush()

    found = await measuring.scrape()
    assert found["pillion_calls_total", ()] == 7
    outcomes = {
        dict(labels)["kind"]: value for (name, labels), value in found.items() if name == "pillion_outcomes_total"
    }
    assert {kind: value for kind, value in outcomes.items() if value} == {
        "RESULT": 1,
        "TOOL_FAILED": 1,
        "INVALID_ARGUMENTS": 1,
        "UNKNOWN_TOOL": 1,
    }
    assert outcomes.keys() == {"RESULT", "PAUSED", *(kind_name(kind) for kind in FailureKind.values() if kind)}
    assert found["pillion_call_duration_seconds_count", ()] == 4
    assert found["pillion_call_duration_seconds_bucket", (("le", "+Inf"),)] == 4
    assert found["pillion_call_duration_seconds_sum", ()] > 0
    assert found["pillion_calls_in_flight", ()] == 3
    main = (("worker", "main"),)
    assert found["pillion_calls_waiting", main] == 1
    assert found["pillion_calls_queued_total", ()] == 1
    assert found["pillion_slots", main] == found["pillion_slots_taken", main] == 2
    assert found["pillion_instances", (("state", "active"), *main)] == 1
    assert found["pillion_instances", (("state", "active"), ("worker", "other"))] == 0
    assert found["pillion_tools", ()] == 2
    assert found["pillion_streams_open", ()] == 2
    assert found["pillion_internal_errors_total", ()] == 0

    for invocation in invocations:
        await worker.result(invocation.call)
    await worker.result((await worker.next_invoke()).call)
    for call in running:
        await caller.outcome(call)
    found = await measuring.scrape()
    assert found["pillion_outcomes_total", (("kind", "RESULT"),)] == 4
    assert found["pillion_calls_in_flight", ()] == found["pillion_calls_waiting", main] == 0


@on_unix
async def test_late_large_and_lost_frames_are_told_while_their_streams_are_open(measuring: Measuring) -> None:
    worker, caller = await attach(measuring.host), await measuring.host.caller()
    call = await caller.start()
    invocation = await worker.next_invoke()
    await worker.send(progress(invocation.call, "x" * 100_000), result(invocation.call))
    await caller.outcome(call)
    await worker.send(progress(invocation.call), progress(invocation.call), result(invocation.call))
    await worker.send_bytes(b"\xff")
    await worker.flush()
    await caller.start(arguments=b"1" * 2_000_000)
    await caller.flush()
    found = await measuring.scrape()
    assert found["pillion_progress_coalesced_total", ()] == 1
    assert found["pillion_oversized_total", (("kind", "progress_out"),)] == 1
    assert found["pillion_oversized_total", (("kind", "frame"),)] == 1
    assert found["pillion_late_frames_total", (("kind", "progress"),)] == 2
    assert found["pillion_late_frames_total", (("kind", "outcomes"),)] == 1
    assert found["pillion_messages_malformed_total", ()] == 1

    caller.cut()
    worker.cut()
    await measuring.comes_to(0, "pillion_streams_open")
    assert await measuring.value("pillion_progress_coalesced_total") == 1
    assert await measuring.value("pillion_oversized_total", kind="progress_out") == 1
    await measuring.comes_to(1, "pillion_instances", worker="main", state="gone")


@on_unix
async def test_a_leaked_slot_is_told_and_so_is_its_end(start_measuring: StartMeasuring) -> None:
    measuring = await start_measuring(Setup(calls=CallLimits(cancel_grace=0.05)))
    worker, caller = await attach(measuring.host, concurrency=4), await measuring.host.caller()
    call = await caller.start()
    invocation = await worker.next_invoke()
    await caller.cancel(call)
    await caller.outcome(call)
    assert await measuring.value("pillion_slots_leaked_now", worker="main") == 1
    await worker.result(invocation.call)
    await worker.flush()
    found = await measuring.scrape()
    assert found["pillion_slots_leaked_now", (("worker", "main"),)] == 0
    assert found["pillion_slots_leaked_total", ()] == 1


@on_unix
async def test_what_is_kept_for_ends_and_what_became_of_it_is_told(measuring: Measuring) -> None:
    worker, caller = await attach(measuring.host), await measuring.host.caller()
    for name in "ab":
        await kept(worker, caller, name=name)
    assert await measuring.value("pillion_scopes_live") == 1
    assert await measuring.value("pillion_registrations") == 2
    ending = asyncio.ensure_future(end_scope(measuring.host, EndScopeRequest(session_id="s")))
    await worker.torn_down((await worker.next_teardown()).registration_id, error="It was gone.")
    await worker.torn_down((await worker.next_teardown()).registration_id)
    await ending
    assert await measuring.value("pillion_scopes_live") == 0
    assert await measuring.value("pillion_registrations") == 0
    assert await measuring.value("pillion_teardowns_total", reason="session-end") == 1
    assert await measuring.value("pillion_teardowns_total", reason="run-end") == 0
    assert await measuring.value("pillion_teardowns_failed_total") == 1
    assert await measuring.value("pillion_teardowns_lost_total") == 0


@on_unix
async def test_restarts_are_told_by_worker_set(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    process = SidecarProcess(tmp_path)
    with process.config.open("a") as config:
        config.write(
            f"""
            [metrics]
            listen = "127.0.0.1:{port}"
            [limits.workers]
            restart_first = 0.001
            restart_at_most = 0.01
            [[worker]]
            name = "failing"
            command = ["{sys.executable}", "-S", "-c", ""]
            """
        )
    await process.start()
    try:
        scraper = Scraper(port)
        await scraper.until(lambda value: value >= 2, "pillion_worker_restarts_total", worker="failing")
        assert await scraper.value("pillion_worker_restarts_total", worker="main") == 0
    finally:
        await process.aclose()


@on_unix
async def test_the_process_and_its_loop_are_told(measuring: Measuring) -> None:
    await measuring.until(bool, "pillion_event_loop_lag_seconds_count")
    found = await measuring.scrape()
    assert found["process_resident_memory_bytes", ()] > 1_000_000
    assert found["process_cpu_seconds_total", ()] > 0


@on_unix
async def test_labels_are_worker_sets_and_words_of_the_code(measuring: Measuring) -> None:
    before = {key for key in await measuring.scrape() if key[0].startswith("pillion_")}
    caller = await measuring.host.caller()
    for number in range(50):
        await caller.call(f"invented-{number}", {}, tool_call_id=f"id-{number}", run_id=f"run-{number}")
    after = {key for key in await measuring.scrape() if key[0].startswith("pillion_")}
    assert after == before


def _everything() -> Measured:
    counters = Counters()
    counters.add("reloads")
    counters.add("restarts.main")
    counters.add("late_progress")
    durations = Durations()
    durations.add(0.003)
    durations.add(1e6)
    sets = [SetReading("main", {"active": 1}, 2, 1, 0, 3)]
    reading = Reading(1, 2, 3, 4, 5, 6, sets, StreamsReading(1, 0, 10, 2, 1), 4)
    return Measured(counters, durations, Durations(), lambda: reading)


def test_what_is_counted_without_a_metric_of_its_own_is_told_as_an_event() -> None:
    _, text = render(_everything().page(), "")
    families = {family.name: family for family in text_string_to_metric_families(text.decode())}
    assert [(sample.labels, sample.value) for sample in families["pillion_events"].samples] == [
        ({"event": "reloads"}, 1)
    ]
    buckets = [sample.value for sample in families["pillion_call_duration_seconds"].samples if "le" in sample.labels]
    assert buckets == [0, 1, 1, 1, 1, 1, 1, 1, 1, 2]


def test_both_formats_are_well_formed() -> None:
    content_type, text = render(_everything().page(), "application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    names = {
        family.name
        for family in openmetrics.text_string_to_metric_families(text.decode())  # type: ignore[no-untyped-call]  # theirs
    }
    content_type, text = render(_everything().page(), "text/plain")
    assert content_type.startswith("text/plain")
    assert names == {family.name.removesuffix("_total") for family in text_string_to_metric_families(text.decode())}


def test_the_documentation_has_every_metric() -> None:
    _, text = render(_everything().page(), "")
    told = {
        f"{family.name}_total" if family.type == "counter" else family.name
        for family in text_string_to_metric_families(text.decode())
        if family.name.startswith("pillion_")
    }
    documented = set(re.findall(r"^\| `(pillion_\w+)", (ROOT / "docs" / "operate.md").read_text(), re.MULTILINE))
    assert documented == told


async def test_lag_is_what_a_timer_comes_too_late() -> None:
    times = iter((0.0, 1.25, 2.0, 3.0, 4.0, 9.0))
    lag = LoopLag(1.0, lambda: next(times))
    with pytest.raises(RuntimeError, match="StopIteration"):
        await lag.run()
    assert sum(lag.durations.counts) == 3
    assert lag.durations.total == 0.25 + 0 + 4


# --- how it is told


@on_unix
async def test_a_request_is_answered_by_what_it_asks(measuring: Measuring) -> None:
    whole = await measuring.request()
    assert whole.headers["content-type"].startswith("text/plain; version=")
    assert int(whole.headers["content-length"]) == len(whole.body.encode())
    head = await measuring.request("HEAD /metrics HTTP/1.1")
    assert (head.status, head.body) == (200, "")
    assert int(head.headers["content-length"]) > 1_000
    assert (await measuring.request("GET /metrics?name=x HTTP/1.0")).status == 200
    modern = await measuring.request("GET /metrics HTTP/1.1", "accept: application/openmetrics-text; version=1.0.0")
    assert modern.body.endswith("# EOF\n")
    refused = await measuring.request("POST /metrics HTTP/1.1", "Content-Length: 0")
    assert (refused.status, refused.headers["allow"]) == (405, "get, head")
    assert (await measuring.request("GET / HTTP/1.1")).status == 404
    assert (await measuring.request("GET /metrics")).status == 400
    assert (await measuring.request("nonsense")).status == 400
    assert (await measuring.request("GET /metrics HTTP/1.1", f"X: {'x' * 10_000}")).status == 431
    assert await measuring.exchange(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") != b""


@on_unix
async def test_who_says_nothing_is_hung_up_on(measuring: Measuring, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(exposition, "_SECONDS", 0.05)
        assert await measuring.exchange(b"") == b""
        assert await measuring.exchange(b"GET /metrics HTTP/1.1\r\n") == b""
    assert (await measuring.request()).status == 200


@on_unix
async def test_few_connections_are_open_at_once(measuring: Measuring) -> None:
    silent = [await asyncio.open_connection("127.0.0.1", measuring.port) for _ in range(16)]
    for _, writer in silent:
        writer.write(b"GET ")
        await writer.drain()
    with pytest.raises((ConnectionError, IndexError, ValueError)):
        await measuring.request()
    for _, writer in silent:
        writer.close()
    async with asyncio.timeout(_PATIENCE):
        while True:
            try:
                assert (await measuring.request()).status == 200
            except (ConnectionError, IndexError, ValueError):
                await asyncio.sleep(0.02)
            else:
                return


@on_unix
async def test_open_connections_do_not_hold_up_the_stop(measuring: Measuring) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", measuring.port)
    writer.write(b"GET /metrics HTTP/1.1\r\n")
    await writer.drain()
    await measuring.scrape()
    began = time.perf_counter()
    await measuring.aclose()
    assert time.perf_counter() - began < 4.0
    writer.close()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", measuring.port)


@on_unix
async def test_a_page_that_cannot_be_made_harms_no_call(
    measuring: Measuring, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: object) -> Reading:
        raise RuntimeError("a canary")

    with monkeypatch.context() as patched:
        patched.setattr("sidecar.wire.streams.Streams.reading", fail)
        response = await measuring.request()
    assert (response.status, response.body) == (500, "See the log.\n")
    assert "a canary" in caplog.text
    assert await measuring.value("pillion_internal_errors_total") == 1


# --- where it is told


def _load(tmp_path: Path, *lines: str) -> Settings:
    path = tmp_path / "pillion.toml"
    listen = ("[listen]", 'callers = "unix:/c"', 'workers = "unix:/w"')
    path.write_text("\n".join((f'state_dir = "{tmp_path}"', *listen, *lines)))
    return read(path, {})


@pytest.mark.parametrize("listen", ["127.0.0.1:9464", "[::1]:9464", "localhost:1"])
def test_loopback_is_listened_on(tmp_path: Path, listen: str) -> None:
    metrics = _load(tmp_path, "[metrics]", f'listen = "{listen}"').metrics
    assert metrics is not None
    host, port = metrics.place
    assert listen in (f"{host}:{port}", f"[{host}]:{port}")


@pytest.mark.parametrize("listen", ["0.0.0.0:9464", "[::]:9464", "10.0.0.1:9464", "example.org:9464"])
def test_off_loopback_is_refused_unless_it_is_meant(tmp_path: Path, listen: str) -> None:
    with pytest.raises(ConfigRefused, match=r":5: metrics listens off loopback, .*set public if that is meant"):
        _load(tmp_path, "[metrics]", f'listen = "{listen}"')
    assert _load(tmp_path, "[metrics]", f'listen = "{listen}"', "public = true").metrics is not None


@pytest.mark.parametrize("listen", ["9464", "127.0.0.1", "127.0.0.1:x", ":9464", "127.0.0.1:65536", "unix:/m"])
def test_what_is_no_address_is_refused(tmp_path: Path, listen: str) -> None:
    with pytest.raises(ConfigRefused, match=r":6: metrics\.listen is no address; write 127\.0\.0\.1:9464, say"):
        _load(tmp_path, "[metrics]", f'listen = "{listen}"')


@on_unix
async def test_a_port_in_use_is_refused_by_name(transport: str, tmp_path: Path) -> None:
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    made = settings(Setup(), transport, tmp_path)
    made = made.model_copy(update={"metrics": Metrics(listen=f"127.0.0.1:{port}")})
    with pytest.raises(ConfigRefused, match=rf"metrics\.listen 127\.0\.0\.1:{port} cannot be listened on"):
        await SocketHost(transport, made).open()
    server.close()


@on_unix
async def test_a_missing_package_is_named(transport: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    made = settings(Setup(), transport, tmp_path).model_copy(update={"metrics": _LOOPBACK})
    with pytest.raises(ConfigRefused, match=r"needs prometheus_client, .*pillion-sidecar\[metrics\]"):
        await SocketHost(transport, made).open()


def test_nothing_of_it_is_imported_where_it_is_not_configured() -> None:
    program = (
        "import sys, sidecar.app; "
        "print([name for name in sys.modules if name.startswith(('prometheus_client', 'opentelemetry'))])"
    )
    ran = subprocess.run((sys.executable, "-c", program), capture_output=True, text=True, check=True, cwd=ROOT)
    assert ran.stdout.strip() == "[]"
