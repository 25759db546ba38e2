"""How many calls a second, and what each costs: beside the MCP server and the bare unary echo."""

from __future__ import annotations

import json
import tempfile
from contextlib import AsyncExitStack
from typing import Any

from bench import tools
from bench.measures import Found, Rounds, median, say
from bench.processes import Child, ProcessError, child
from bench.sidecar import sidecar

IN_FLIGHT = 256
ECHO_IN_FLIGHT = 32
MCP_IN_FLIGHT = (1, 8, 32, 128)


async def measure(rounds: Rounds) -> Found:
    """Three sides with the same tool and arguments, one after the other in every round; ratios are taken by round."""
    async with AsyncExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="pillion-bench-"))
        target = f"unix:{directory}/echo.sock"
        mcp_server = await stack.enter_async_context(child("bench.baselines.mcp_server"))
        mcp_client = await stack.enter_async_context(child("bench.baselines.mcp_client", mcp_server.ready["url"]))
        echo_server = await stack.enter_async_context(child("bench.baselines.echo", "server", target))
        echo_client = await stack.enter_async_context(child("bench.baselines.echo", "client", target))
        host = await stack.enter_async_context(sidecar({"bench": [tools.REPORT]}, bare=rounds.bare))
        await stack.enter_async_context(host.worker("bench", IN_FLIGHT))
        caller = await stack.enter_async_context(host.caller())
        mcp, echo, ours = [], [], []
        for number in range(rounds.count):
            mcp.append(await _mcp_best(mcp_client, rounds.seconds / 2, mcp_server.pid))
            echo.append(
                await echo_client.ask(
                    "unary",
                    in_flight=ECHO_IN_FLIGHT,
                    seconds=rounds.seconds,
                    payload=json.dumps(tools.ARGUMENTS),
                    watch=echo_server.pid,
                )
            )
            ours.append(
                await caller.ask(
                    "closed",
                    tool=tools.REPORT,
                    in_flight=IN_FLIGHT,
                    seconds=rounds.seconds,
                    arguments=tools.ARGUMENTS,
                    watch=host.pid,
                )
            )
            if mcp[-1]["progress"] != ours[-1]["progress"]:
                raise ProcessError(f"progress was lost: {mcp[-1]['progress']} and {ours[-1]['progress']} a call")
            say(
                f"round {number + 1}: sidecar {_words(ours[-1])}; echo {_words(echo[-1])}; "
                f"MCP {_words(mcp[-1])} at {mcp[-1]['in_flight']} in flight"
            )
    return Found(
        figures={
            "throughput_ratio_vs_mcp": _ratio(ours, mcp, "calls_per_second"),
            "mcp_cpu_ratio": _ratio(mcp, ours, "cpu_us_per_call"),
            "cpu_ratio_vs_unary_echo": _ratio(ours, echo, "cpu_us_per_call"),
            "calls_per_second": median(one["calls_per_second"] for one in ours),
            "sidecar_cpu_us_per_call": median(one["cpu_us_per_call"] for one in ours),
        },
        behind={
            f"{side}_{field}": median(one[field] for one in found)
            for side, found in (("mcp", mcp), ("unary_echo", echo))
            for field in ("calls_per_second", "cpu_us_per_call")
        },
    )


async def _mcp_best(client: Child, seconds: float, watch: int) -> dict[str, Any]:
    """The MCP server at whichever number in flight serves most calls a second."""
    answers = []
    for in_flight in MCP_IN_FLIGHT:
        answer = await client.ask(
            "closed", in_flight=in_flight, seconds=seconds, arguments=tools.ARGUMENTS, watch=watch
        )
        answers.append(answer | {"in_flight": in_flight})
    return max(answers, key=lambda answer: float(answer["calls_per_second"]))


def _ratio(above: list[dict[str, Any]], below: list[dict[str, Any]], field: str) -> float:
    return median(one[field] / other[field] for one, other in zip(above, below, strict=True))


def _words(answer: dict[str, Any]) -> str:
    return f"{answer['calls_per_second']:,.0f}/s {answer['cpu_us_per_call']:,.0f} us"
