"""What must hold at the end of a soak."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from tests.soak.load import Load
from tests.soak.readings import Reading, Readings

WARM_UP = 0.3
"""The share of the run in which a sidecar still fills its caches and thread pools, and is not judged."""
GROWTH_MIB_PER_10_MINUTES = 4.0
"""What the memory may grow by. At the default rate that is less than 300 bytes kept of each call."""
GROWTH_MIB_AT_LEAST = 4.0
"""What it may grow by in any case: in a short run the heap's steps are larger than any line through them."""
MORE_THREADS, MORE_FILES, MORE_TASKS = 8, 4, 2
"""Over the first calm reading: gRPC's pool grows with what the machine does beside it, and a connection may linger."""
_FINDINGS = 20


def verdict(
    load: Load,
    readings: Readings,
    calm: tuple[Reading, Reading],
    metrics: tuple[Mapping[str, float], Mapping[str, float]],
    done: Counter[str],
) -> dict[str, Any]:
    """The summary, with all that is wrong in `wrong`. `calm` and `metrics` are of before the load and of after it."""
    (before, after), (told_before, told) = calm, metrics
    minutes = after.seconds / 60
    growth = readings.growth_per_second(WARM_UP) * 600
    judged_minutes = minutes * (1 - WARM_UP)
    allowed = max(GROWTH_MIB_PER_10_MINUTES, GROWTH_MIB_AT_LEAST * 10 / judged_minutes)
    told_outcomes = told["pillion_outcomes_total"]
    wrong = list(load.wrong)

    def must(holds: bool, otherwise: str) -> None:  # it reads as a sentence
        if not holds:
            wrong.append(otherwise)

    must(load.decided == load.begun, f"{load.begun} calls were begun, and {load.decided} ended here.")
    must(told["pillion_calls_total"] == load.begun, f"The sidecar counts {told['pillion_calls_total']:g} calls.")
    must(told_outcomes == load.begun, f"The sidecar counts {told_outcomes:g} outcomes.")
    for name in ("calls_in_flight", "calls_waiting", "slots_taken", "slots_leaked_now", "internal_errors_total"):
        must(not told[f"pillion_{name}"], f"At the end pillion_{name} is {told[f'pillion_{name}']:g}.")
    must(growth <= allowed, f"The memory grows by {growth:.1f} MiB in 10 minutes.")
    must(after.threads <= before.threads + MORE_THREADS, f"Threads: {before.threads} before, {after.threads} after.")
    must(after.files <= before.files + MORE_FILES, f"Open files: {before.files} before, {after.files} after.")
    tasks = told_before["pillion_tasks"], told["pillion_tasks"]
    must(tasks[1] <= tasks[0] + MORE_TASKS, f"Tasks: {tasks[0]:g} before, {tasks[1]:g} after.")
    must(not readings.lasting_zombies, f"{len(readings.lasting_zombies)} ended processes were waited for by nobody.")
    return {
        "ok": not wrong,
        "wrong": wrong[:_FINDINGS] + ([f"and {len(wrong) - _FINDINGS} more"] if len(wrong) > _FINDINGS else []),
        "minutes": round(minutes, 2),
        "calls": load.begun,
        "ended": {kind: dict(ends.most_common()) for kind, ends in load.ended.items()},
        "latest_decision_seconds_after_timeout": round(load.slowest_decision, 2),
        "disturbances": dict(done),
        "worker_restarts": int(told["pillion_worker_restarts_total"]),
        "rss_mib": [round(before.rss_mib, 1), round(after.rss_mib, 1)],
        "rss_growth_mib_per_10_minutes": round(growth, 2),
        "rss_growth_allowed": round(allowed, 2),
        "threads": [before.threads, after.threads],
        "files": [before.files, after.files],
        "tasks": [int(tasks[0]), int(tasks[1])],
        "sidecar_cpu_share": round((after.cpu_seconds - before.cpu_seconds) / (after.seconds - before.seconds), 3),
    }
