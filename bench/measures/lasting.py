"""What lasts longer than a call: cleanups that are registered, and tools that hold something for a session."""

from __future__ import annotations

from bench import tools
from bench.measures import Found, Rounds, median, say
from bench.measures.latency import CALLS_A_SECOND
from bench.sidecar import sidecar

REGISTRATIONS = 50
"""In each session: fewer than a scope may have."""


async def registrations(rounds: Rounds) -> Found:
    """A tool registers one cleanup after the other for its session, and waits until each is acknowledged.

    Each is new, and so is on the disk before that.
    """
    sessions = max(int(rounds.seconds * 4), 2)
    async with (
        sidecar({"bench": [tools.KEEP]}, bare=rounds.bare) as host,
        host.worker("bench", 1),
        host.caller() as caller,
    ):
        found = []
        for number in range(rounds.count):
            took = []
            for session in range(sessions):
                answer = await caller.ask(
                    "run",
                    tool=tools.KEEP,
                    arguments={"count": REGISTRATIONS},
                    session=f"session-{number}-{session}",
                )
                took.append(answer["p50_ms"])
            found.append(median(took))
            say(f"round {number + 1}: p50 {found[-1]:.3f} ms over {sessions * REGISTRATIONS} registrations")
    return Found(figures={"teardown_register_p50_ms": median(found)})


async def sticky(rounds: Rounds) -> Found:
    """One call at a time of a tool that holds something for its session, less the same of one that does not.

    Both name the session, and both return their arguments. The session is pinned already, but for its first call.
    """
    calls = int(rounds.seconds * CALLS_A_SECOND)
    sets = {"bench": [tools.ECHO, tools.HELD]}
    async with (
        sidecar(sets, bare=rounds.bare) as host,
        host.worker("bench", 256),
        host.worker("bench", 256),
        host.caller() as caller,
    ):
        plain: list[float] = []
        held: list[float] = []
        for number in range(rounds.count):
            for tool, found in ((tools.ECHO, plain), (tools.HELD, held)):
                answer = await caller.ask(
                    "latency", tool=tool, calls=calls, arguments=tools.ARGUMENTS, session=f"session-{number}"
                )
                found.append(answer["p50_ms"])
            say(f"round {number + 1}: p50 {held[-1]:.3f} ms; without what it holds {plain[-1]:.3f} ms")
    return Found(
        figures={"sticky_overhead_us": median(pin - none for pin, none in zip(held, plain, strict=True)) * 1e3},
        behind={"sticky_p50_ms": median(held)},
    )
