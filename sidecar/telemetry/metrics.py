"""What is measured, as families of Prometheus. Imported only where metrics are configured."""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from prometheus_client import Metric, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from sidecar._gen.pillion.v1.context_pb2 import TeardownReason
from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind
from sidecar.telemetry.counters import Counters
from sidecar.telemetry.durations import Durations
from sidecar.telemetry.readings import Reading

_NAMESPACE = "pillion_"
_PREFIX = "FAILURE_KIND_"
_FAILURES = "failures."
_RESTARTS = "restarts."
_KINDS = tuple(name.removeprefix(_PREFIX) for name in FailureKind.keys() if FailureKind.Value(name))  # noqa: SIM118  # no dict
_TEARDOWNS = "teardowns."
_REASON_PREFIX = "TEARDOWN_REASON_"
_REASONS = tuple(
    name.removeprefix(_REASON_PREFIX).lower().replace("_", "-")
    for name in TeardownReason.keys()  # noqa: SIM118  # no dict
    if TeardownReason.Value(name)
)
_LATE = "late_"

_COUNTERS: Mapping[str, tuple[str, str]] = {
    "calls": ("calls", "Calls that came, refused ones too."),
    "joined_calls": ("calls_joined", "Calls that followed another one with the same idempotency key."),
    "replayed_calls": ("calls_replayed", "Calls that were answered from the record of their idempotency key."),
    "retries": ("calls_retried", "Calls that were given to a second instance when the first was lost."),
    "waits": ("calls_queued", "Calls that had to wait for an instance."),
    "unrecorded_outcomes": ("outcomes_unrecorded", "Outcomes that could not be recorded for their key or ticket."),
    "dropped_anchors": ("anchors_dropped", "Parent anchors that nobody vouched for, or that were too long."),
    "leaked_slots": ("slots_leaked", "Slots that a tool kept though its call was cancelled."),
    "quarantined_instances": ("instances_quarantined", "Instances that were given up as hung or broken."),
    "refused_callers": ("callers_refused", "Requests of callers that showed no valid token or certificate."),
    "refused_workers": ("workers_refused", "Workers that showed no valid token, secret or certificate."),
    "refused_tools": ("tools_refused", "Tools that were not admitted to the catalogue."),
    "dropped_log_lines": ("log_lines_dropped", "Log frames of workers over the lines that they have a second."),
    "refused_streams": ("streams_refused", "Streams that were refused because too many were open."),
    "stalled_streams": ("streams_stalled", "Streams that were given up because their peer stopped reading."),
    "unresponsive_peers": ("peers_unresponsive", "Workers that answered none of the last pings."),
    "malformed_messages": ("messages_malformed", "Messages that were no batch of frames."),
    "unknown_frames": ("frames_unknown", "Frames of a kind that this sidecar does not know."),
    "failed_teardowns": ("teardowns_failed", "Cleanups that failed, or of which it is not known that they ran."),
    "lost_teardowns": ("teardowns_lost", "Cleanups that were lost with the instance that kept them."),
    "internal_errors": ("internal_errors", "Failures of the sidecar itself; its log says more."),
}
"""The counters that are metrics by themselves: name and help of the metric."""

_OVERSIZED = {
    "oversized_frames": "frame",
    "oversized_messages": "message",
    "oversized_reports": "progress_in",
    "oversized_progress": "progress_out",
}
_LATE_KINDS = ("progress", "outcomes", "requests", "teardowns", "replies")
_OTHERWISE = {*_COUNTERS, *_OVERSIZED, "results", "restarts", "coalesced_progress", "teardowns"}


class Page(NamedTuple):
    """The measurements of one moment, to be rendered anywhere."""

    families: tuple[Metric, ...]
    process: Collector

    def collect(self) -> Iterator[Metric]:
        """The families, and those of the process."""
        yield from self.families
        yield from self.process.collect()


class Metrics:
    """Turns what the sidecar counts into pages. Label values are names of worker sets and words of the code."""

    def __init__(self, counters: Counters, calls: Durations, lag: Durations, read: Callable[[], Reading]) -> None:
        self._counters = counters
        self._calls = calls
        self._lag = lag
        self._read = read
        self._process = ProcessCollector(registry=None)

    def page(self) -> Page:
        """The measurements of this moment. To be called on the event loop, where they change."""
        return Page(tuple(self._families()), self._process)

    def _families(self) -> Iterator[Metric]:
        counts = self._counters.snapshot()
        reading = self._read()
        yield from self._calls_of(counts, reading)
        yield from self._workers_of(counts, reading)
        yield from self._wire_of(counts, reading)
        yield _gauge("scopes_live", "Runs, sessions and calls that something is kept for, or in use.", reading.scopes)
        yield _gauge("registrations", "Cleanups that wait for an end.", reading.registrations)
        ran = {reason: counts.get(_TEARDOWNS + reason, 0) for reason in _REASONS}
        yield _counters_by("teardowns", "Cleanups that ran well, by why.", "reason", ran)
        yield _counter("log_lines_lost", "Lines of the log that nobody read in time.", reading.lost_log_lines)
        for name, (metric, help_) in _COUNTERS.items():
            yield _counter(metric, help_, counts.get(name, 0))
        yield _counters_by(
            "events",
            "Whatever else is counted, by the word for it.",
            "event",
            {name: count for name, count in counts.items() if not _has_its_own(name)},
        )

    def _calls_of(self, counts: Mapping[str, int], reading: Reading) -> Iterator[Metric]:
        outcomes = {"RESULT": counts.get("results", 0), "PAUSED": counts.get("pauses", 0)}
        outcomes |= {kind: counts.get(_FAILURES + kind, 0) for kind in _KINDS}
        yield _counters_by("outcomes", "Outcomes, by kind.", "kind", outcomes)
        yield _histogram("call_duration_seconds", "From a call's start to its outcome.", self._calls)
        yield _gauge("calls_in_flight", "Calls without an outcome.", reading.in_flight)

    def _workers_of(self, counts: Mapping[str, int], reading: Reading) -> Iterator[Metric]:
        sets = reading.sets
        gauges = (
            ("calls_waiting", "Calls that wait for an instance.", [one.waiting for one in sets]),
            ("slots", "How many calls the instances run at once at most.", [one.slots for one in sets]),
            ("slots_taken", "Slots that are taken, leaked ones too.", [one.taken for one in sets]),
            ("slots_leaked_now", "Slots that cancelled tools still hold.", [one.leaked for one in sets]),
        )
        for name, help_, values in gauges:
            by_set = GaugeMetricFamily(_NAMESPACE + name, help_, labels=("worker",))
            for one, value in zip(sets, values, strict=True):
                by_set.add_metric((one.name,), value)
            yield by_set
        by_state = GaugeMetricFamily(f"{_NAMESPACE}instances", "Instances, by state.", labels=("worker", "state"))
        for one in sets:
            for state, count in one.instances.items():
                by_state.add_metric((one.name, state), count)
        yield by_state
        yield _counters_by(
            "worker_restarts",
            "Starts of worker processes after one had ended.",
            "worker",
            {one.name: counts.get(_RESTARTS + one.name, 0) for one in sets},
        )
        yield _gauge("tools", "Tools in the catalogue.", reading.tools)
        yield _gauge("catalogue_generation", "Grows with every change of the catalogue.", reading.generation)

    def _wire_of(self, counts: Mapping[str, int], reading: Reading) -> Iterator[Metric]:
        streams = reading.streams
        yield _gauge("streams_open", "Open streams of callers and workers.", streams.open)
        yield _gauge("streams_lingering", "Streams given up that wait for their peer.", streams.lingering)
        yield _gauge("undelivered_bytes", "Bytes that wait for peers to read.", streams.undelivered_bytes)
        coalesced = counts.get("coalesced_progress", 0) + streams.coalesced
        yield _counter("progress_coalesced", "Progress that gave way to newer, or was dropped.", coalesced)
        late = {kind: counts.get(_LATE + kind, 0) for kind in _LATE_KINDS}
        yield _counters_by("late_frames", "Frames that came after their call had ended.", "kind", late)
        oversized = {kind: counts.get(name, 0) for name, kind in _OVERSIZED.items()}
        oversized["progress_out"] += streams.oversized
        yield _counters_by("oversized", "What was refused or dropped for its size.", "kind", oversized)
        yield _gauge("tasks", "Tasks of the event loop.", reading.tasks)
        yield _histogram("event_loop_lag_seconds", "How much too late a timer fires.", self._lag)


def render(page: Page, accept: str) -> tuple[str, bytes]:
    """A page as a scraper that accepts these types wants it: content type and text. Any thread may do it."""
    encode, content_type = choose_encoder(accept)
    return content_type, encode(page)


def _has_its_own(name: str) -> bool:
    return (
        name in _OTHERWISE
        or name.startswith((_FAILURES, _RESTARTS, _TEARDOWNS))
        or (name.startswith(_LATE) and name.removeprefix(_LATE) in _LATE_KINDS)
    )


def _counter(name: str, help_: str, value: int) -> Metric:
    return CounterMetricFamily(_NAMESPACE + name, help_, value)


def _gauge(name: str, help_: str, value: int) -> Metric:
    return GaugeMetricFamily(_NAMESPACE + name, help_, value)


def _counters_by(name: str, help_: str, label: str, values: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(_NAMESPACE + name, help_, labels=(label,))
    for value, count in values.items():
        family.add_metric((value,), count)
    return family


def _histogram(name: str, help_: str, durations: Durations) -> Metric:
    buckets: list[tuple[str, float]] = []
    total = 0
    for bound, count in zip((*map(str, durations.bounds), "+Inf"), durations.counts, strict=True):
        total += count
        buckets.append((bound, total))
    return HistogramMetricFamily(_NAMESPACE + name, help_, buckets, durations.total)
