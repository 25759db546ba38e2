"""The figures: what each says, and the bar it is held to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of the report. Without a bar it is only reported."""

    name: str
    meaning: str
    at_least: float | None = None
    at_most: float | None = None

    @property
    def bar(self) -> float | None:
        """The bar, whichever way it holds."""
        return self.at_most if self.at_least is None else self.at_least

    def ok(self, value: float) -> bool | None:
        """Whether `value` meets the bar; None where there is none."""
        if self.at_least is not None:
            return value >= self.at_least
        return value <= self.at_most if self.at_most is not None else None


FIGURES: Final = (
    Figure("throughput_ratio_vs_mcp", "calls/s at 256 in flight, over the MCP SDK server's best", at_least=20),
    Figure("mcp_cpu_ratio", "the MCP server's CPU per call over the sidecar's", at_least=25),
    Figure("cpu_ratio_vs_unary_echo", "sidecar CPU per call over a bare unary echo's", at_most=0.25),
    Figure("latency_ratio_vs_unary_echo", "p50 of one call at a time over the bare echo's", at_most=2.0),
    Figure("streams_128x1_ratio", "calls/s over 128 streams, over a bare bidi host's", at_least=0.7),
    Figure("noisy_neighbour_p99_ratio", "p99 beside 10,000 progress/s over p99 alone", at_most=3),
    Figure("noisy_neighbour_1mib_p99_ratio", "the same with ten 1 MiB calls/s added", at_most=6),
    Figure("artifact_download_ratio_vs_stream", "bytes/s of a download over a bare byte stream's", at_least=0.5),
    Figure("artifact_1gib_rss_growth_mib", "sidecar growth while one GiB is put and read", at_most=32),
    Figure("stalled_reader_rss_growth_mib", "sidecar growth while a caller does not read 1 M progress", at_most=10),
    Figure("nested_call_ratio_vs_top_level", "sidecar CPU of a call that a tool makes over a caller's", at_most=1.2),
    Figure("start_seconds", "start of pillion serve to health SERVING", at_most=1),
    Figure("idle_rss_mib", "sidecar and guardian, one supervised worker, no calls", at_most=80),
    Figure("calls_per_second", "at 256 in flight, three progress each"),
    Figure("sidecar_cpu_us_per_call", "in that run"),
    Figure("keyed_call_overhead_us", "p50 of one call at a time with an idempotency key, less without"),
    Figure("credential_push_overhead_us", "p50 of one call at a time with a credential it needs, less without"),
    Figure("caller_request_p50_ms", "from a tool's question to its caller's answer, which comes at once"),
    Figure("teardown_register_p50_ms", "from a tool's registration for its session until that is on the disk"),
    Figure("sticky_overhead_us", "p50 of one call at a time of a tool that holds a session, less of one that does not"),
    Figure("added_p50_ms_at_1000_qps", "p50 over 16 streams with 1 KiB, less a bare host's"),
    Figure("cancel_to_tool_p99_ms", "from the caller's cancel to the tool"),
    Figure("inflight_1000_rss_mib", "sidecar with 1,000 calls in flight on four instances"),
    Figure("idle_streams_1000_rss_growth_mib", "for 1,000 idle streams over one connection"),
    Figure("idle_connections_1000_rss_growth_mib", "for 1,000 idle streams over 1,000 connections"),
)
"""Every figure of the report, ratios first."""


def report(values: Mapping[str, float]) -> dict[str, dict[str, Any]]:
    """The measured `values` with their bars, in the order of `FIGURES`."""
    return {
        figure.name: {
            "value": round(values[figure.name], 4),
            "bar": figure.bar,
            "ok": figure.ok(values[figure.name]),
        }
        for figure in FIGURES
        if figure.name in values
    }


def table(figures: Mapping[str, Mapping[str, Any]]) -> str:
    """The report for people."""
    lines = []
    for figure in FIGURES:
        if figure.name not in figures:
            continue
        entry = figures[figure.name]
        sign = "" if figure.bar is None else f"{'>=' if figure.at_least is not None else '<='} {figure.bar:g}"
        verdict = {True: "ok", False: "MISSED", None: ""}[entry["ok"]]
        lines.append(f"{figure.name:38} {entry['value']:>12,.3f}  {sign:8} {verdict:7} {figure.meaning}")
    return "\n".join(lines)
