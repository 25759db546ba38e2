"""What tools ask while they run: calls of other tools beside those of callers, and questions to the caller."""

from __future__ import annotations

from typing import Any

from bench import tools
from bench.measures import Found, Rounds, median, say
from bench.sidecar import sidecar

IN_FLIGHT = 64
"""As many calls as one tool may have open at once, and one instance has room for, by default."""
QUESTIONS_A_SECOND = 300
"""What a tool that asks one question at a time reaches at least: sizes a round in questions."""


async def calls(rounds: Rounds) -> Found:
    """The sidecar's CPU of a call that a tool makes, over that of the same call that a caller makes; by turns.

    Both are calls of the same tool on the same instance, with the same arguments and without progress, 64 at a time in
    a closed loop, and each passes two hops there and back: where the caller stands in the one, the worker of the outer
    tool stands in the other, in a process of its own. The outer tool opens and closes the window in which its calls are
    counted while it runs, so that its own call is not in it.
    """
    sets = {"bench": [tools.ECHO], "outer": [tools.NEST]}
    async with (
        sidecar(sets, bare=rounds.bare) as host,
        host.worker("bench", IN_FLIGHT),
        host.worker("outer", 1),
        host.caller() as caller,
    ):
        top, nested = [], []
        for number in range(rounds.count):
            top.append(
                await caller.ask(
                    "closed",
                    tool=tools.ECHO,
                    in_flight=IN_FLIGHT,
                    seconds=rounds.seconds,
                    arguments=tools.ARGUMENTS,
                    watch=host.pid,
                )
            )
            arguments = {"width": IN_FLIGHT, "seconds": rounds.seconds, "watch": host.pid}
            nested.append(await caller.ask("run", tool=tools.NEST, arguments=arguments))
            say(f"round {number + 1}: of a tool {_words(nested[-1])}; of a caller {_words(top[-1])}")
    ratio = median(
        inner["cpu_us_per_call"] / outer["cpu_us_per_call"] for inner, outer in zip(nested, top, strict=True)
    )
    return Found(
        figures={"nested_call_ratio_vs_top_level": ratio},
        behind={
            f"{side}_{field}": median(one[field] for one in found)
            for side, found in (("nested", nested), ("top_level", top))
            for field in ("calls_per_second", "cpu_us_per_call")
        },
    )


async def questions(rounds: Rounds) -> Found:
    """One question at a time of one tool, and a caller that answers at once: four hops and both peers."""
    count = int(rounds.seconds * QUESTIONS_A_SECOND)
    async with (
        sidecar({"bench": [tools.ASK]}, bare=rounds.bare) as host,
        host.worker("bench", 1),
        host.caller() as caller,
    ):
        found = []
        for number in range(rounds.count):
            found.append((await caller.ask("asked", count=count))["p50_ms"])
            say(f"round {number + 1}: p50 {found[-1]:.3f} ms over {count} questions")
    return Found(figures={"caller_request_p50_ms": median(found)})


def _words(answer: dict[str, Any]) -> str:
    return f"{answer['calls_per_second']:,.0f}/s {answer['cpu_us_per_call']:,.0f} us"
