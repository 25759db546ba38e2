"""Guarantee 11: blocked tools leave health checks and pings fast."""

import time
from collections.abc import Awaitable, Callable

import grpc.aio
from grpc_health.v1 import health_pb2

from tests.support import StartProcess, hosted, on_unix

BLOCKED = 100
P99_SECONDS = 0.05
PROBES = 100
ROUNDS = 8
LIMITS = "[limits.calls]\nworker_wait = 20\n[limits.workers]\nping_interval = 0.2\n"


async def is_fast(probe: Callable[[], Awaitable[object]]) -> None:
    """Passes if the p99 is within the bar in one of the rounds, as other programs may have the machine in some."""
    p99s: list[float] = []
    while not p99s or min(p99s) >= P99_SECONDS:
        assert len(p99s) < ROUNDS, p99s
        took: list[float] = []
        for _ in range(PROBES):
            begun = time.perf_counter()
            await probe()
            took.append(time.perf_counter() - begun)
        p99s.append(sorted(took)[PROBES * 99 // 100 - 1])


@on_unix
async def test_guarantee_11_blocked_tools_leave_health_and_pings_fast(start_process: StartProcess) -> None:
    process = await start_process(LIMITS + hosted("blocked", "block pid"))
    caller, other = await process.caller(), await process.caller()
    await caller.send(*(caller.starting("block", {"seconds": 50}) for _ in range(BLOCKED)))
    for call in range(1, BLOCKED + 1):
        await caller.next_of("progress", call)
    async with grpc.aio.insecure_channel(process.callers_at) as channel:
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            health_pb2.HealthCheckRequest.SerializeToString,
            health_pb2.HealthCheckResponse.FromString,
        )
        await is_fast(lambda: check(health_pb2.HealthCheckRequest()))
        await is_fast(caller.flush)
        await is_fast(other.flush)
        answer = await check(health_pb2.HealthCheckRequest(service="worker/blocked"))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    assert (await other.call("pid")).HasField("result")
    assert caller.bodies() == [], "all still block"
    assert all(caller.bodies(call) == ["started", "progress"] for call in range(1, BLOCKED + 1))
    # They would block for longer than anybody waits.
    await process.kill()
