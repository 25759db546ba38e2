"""How long one call takes when nothing else runs: beside the bare echo, with a key, at a fixed rate, to a cancel."""

from __future__ import annotations

import json
import tempfile
from contextlib import AsyncExitStack
from typing import Any

from bench import tools
from bench.control import quantile
from bench.measures import Found, Rounds, median, say
from bench.processes import Child, child
from bench.sidecar import sidecar

CALLS_A_SECOND = 500
"""What a sequential caller reaches at least: sizes a round in calls."""

ARGUMENTS_1_KIB = {"name": "x" * 1000, "count": 3}
RATE = 1000
STREAMS = 16


async def single(rounds: Rounds) -> Found:
    """One call at a time without progress, bare echo, keyed calls and calls that need a credential alternating.

    Transport, payload and loop are the same. The credential is from a variable of the sidecar, which is read each time.
    """
    calls = int(rounds.seconds * CALLS_A_SECOND)
    async with AsyncExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="pillion-bench-"))
        target = f"unix:{directory}/echo.sock"
        await stack.enter_async_context(child("bench.baselines.echo", "server", target))
        echo_client = await stack.enter_async_context(child("bench.baselines.echo", "client", target))
        sets = {"bench": [tools.ECHO], "signing": [tools.SIGNED]}
        host = await stack.enter_async_context(sidecar(sets, bare=rounds.bare))
        for name in sets:
            await stack.enter_async_context(host.worker(name, 256))
        caller = await stack.enter_async_context(host.caller())
        echo, plain, keyed, signed = [], [], [], []
        for number in range(rounds.count):
            answer = await echo_client.ask("latency", calls=calls, payload=json.dumps(tools.ARGUMENTS))
            echo.append(answer["p50_ms"])
            answer = await caller.ask("latency", tool=tools.ECHO, calls=calls, arguments=tools.ARGUMENTS)
            plain.append(answer["p50_ms"])
            answer = await caller.ask(
                "latency", tool=tools.ECHO, calls=calls, arguments=tools.ARGUMENTS, keys=f"round-{number}"
            )
            keyed.append(answer["p50_ms"])
            answer = await caller.ask("latency", tool=tools.SIGNED, calls=calls, arguments=tools.ARGUMENTS)
            signed.append(answer["p50_ms"])
            say(
                f"round {number + 1}: p50 {plain[-1]:.3f} ms; keyed {keyed[-1]:.3f} ms; with a credential "
                f"{signed[-1]:.3f} ms; echo {echo[-1]:.3f} ms"
            )
    return Found(
        figures={
            "latency_ratio_vs_unary_echo": median(ours / theirs for ours, theirs in zip(plain, echo, strict=True)),
            "keyed_call_overhead_us": median(key - none for key, none in zip(keyed, plain, strict=True)) * 1e3,
            "credential_push_overhead_us": median(need - none for need, none in zip(signed, plain, strict=True)) * 1e3,
        },
        behind={"p50_ms": median(plain), "unary_echo_p50_ms": median(echo)},
    )


async def at_rate(rounds: Rounds) -> Found:
    """What the sidecar adds to the median of 1 KiB calls at 1,000/s over 16 streams, against a bare host."""
    async with AsyncExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="pillion-bench-"))
        target = f"unix:{directory}/host.sock"
        await stack.enter_async_context(child("bench.baselines.host", target))
        bare_caller = await stack.enter_async_context(child("bench.bare.caller", target))
        host = await stack.enter_async_context(sidecar({"bench": [tools.ECHO]}, bare=rounds.bare))
        await stack.enter_async_context(host.worker("bench", 256))
        caller = await stack.enter_async_context(host.caller())
        added, through = [], []
        for number in range(rounds.count):
            direct = await _drive(bare_caller, rounds.seconds)
            ours = await _drive(caller, rounds.seconds)
            through.append(ours["p50_ms"])
            added.append(ours["p50_ms"] - direct["p50_ms"])
            say(f"round {number + 1}: p50 {ours['p50_ms']:.3f} ms; direct {direct['p50_ms']:.3f} ms")
    return Found(figures={"added_p50_ms_at_1000_qps": median(added)}, behind={"p50_ms_at_1000_qps": median(through)})


async def _drive(caller: Child, seconds: float) -> dict[str, Any]:
    return await caller.ask(
        "paced", tool=tools.ECHO, arguments=ARGUMENTS_1_KIB, streams=STREAMS, per_second=RATE, seconds=seconds
    )


async def cancel(rounds: Rounds) -> Found:
    """From a caller's cancel to its arrival at the tool: both read the one monotonic clock."""
    calls = int(rounds.seconds * 100)
    async with (
        sidecar({"bench": [tools.HOLD]}, bare=rounds.bare) as host,
        host.worker("bench", 256) as worker,
        host.caller() as caller,
    ):
        found = []
        for number in range(rounds.count):
            sent = (await caller.ask("cancels", calls=calls))["at"]
            arrived = (await worker.ask("cancels"))["at"]
            found.append(quantile([end - begin for begin, end in zip(sent, arrived, strict=True)], 0.99) * 1e3)
            say(f"round {number + 1}: p99 {found[-1]:.3f} ms over {calls} cancels")
    return Found(figures={"cancel_to_tool_p99_ms": median(found)})
