"""`python -m tests.soak [--minutes N] [--seed N] [--rate N]`: soaks a sidecar, and says what it saw.

What goes on is told every few seconds; the last line on standard output is the summary as JSON. Ends with code 0 if
all held that must.
"""

import argparse
import asyncio
import json
import random
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pillion
from tests.soak.disturbance import Disturbance
from tests.soak.load import Load
from tests.soak.readings import Readings
from tests.soak.served import Broken, Served, served
from tests.soak.verdict import verdict

RATE = 25.0
SETTLE_SECONDS = 30.0
INTERRUPTED = 130


async def soak(minutes: float, seed: int, rate: float) -> dict[str, Any]:
    """Runs it, and answers the summary."""
    seconds = minutes * 60
    with tempfile.TemporaryDirectory(prefix="pillion-soak-") as directory:
        async with served(Path(directory)) as soaked:
            async with pillion.connect(soaked.address, outcome_grace=60.0) as host:
                load = Load(host, random.Random(seed), rate)  # noqa: S311  # drawn again by its seed, and guards nothing
                chance = random.Random(seed)  # noqa: S311  # likewise
                disturbance = Disturbance(soaked, chance, every=between(1.0, seconds / 20, 8.0))
                readings = Readings(soaked.sidecar.pid)
                calm, metrics = readings.take(), await soaked.metrics()
                async with asyncio.TaskGroup() as group:
                    running = [group.create_task(load.run()), group.create_task(disturbance.run())]
                    await watch(soaked, seconds, readings, load, disturbance)
                    for task in running:
                        task.cancel()
                say("settling: the last calls end, and the settings are those of the beginning again")
                await load.settle()
                await disturbance.calm()
                after = await settled(soaked, metrics)
                summary = verdict(load, readings, (calm, readings.take()), (metrics, after), disturbance.done)
            summary["wrong"] += await soaked.stop()
            summary["ok"] = not summary["wrong"]
            if summary["wrong"]:
                sys.stderr.write(f"--- the end of the sidecar's log\n{soaked.log()}\n")
    return summary


async def watch(soaked: Served, seconds: float, readings: Readings, load: Load, disturbance: Disturbance) -> None:
    """Takes readings for some time, and tells of them."""
    every = between(1.0, seconds / 100, 10.0)
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        await asyncio.sleep(min(every, left))
        if soaked.sidecar.returncode is not None:
            raise Broken(f"The sidecar ended with code {soaked.sidecar.returncode}.")
        seen = readings.take()
        say(
            f"{seen.seconds:6.0f} s: {load.decided} calls decided, {load.in_flight} in flight; "
            f"{seen.rss_mib:.1f} MiB, {seen.threads} threads, {seen.files} files; "
            f"{disturbance.done.total()} disturbances; {len(load.wrong)} wrong"
        )


async def settled(soaked: Served, before: Mapping[str, float]) -> Mapping[str, float]:
    """What the sidecar says of itself once its workers are attached and nothing else is, or that took too long.

    No tool holds a slot then, and instances whose settings were replaced have left.
    """
    await soaked.ready()
    end = time.monotonic() + SETTLE_SECONDS
    while True:
        told = await soaked.metrics()
        is_quiet = not told["pillion_slots_taken"] + told["pillion_calls_in_flight"]
        have_left = told["pillion_streams_open"] <= before["pillion_streams_open"]
        if (is_quiet and have_left) or time.monotonic() > end:
            return told
        await asyncio.sleep(0.2)


def between(least: float, wanted: float, most: float) -> float:
    """A number within bounds."""
    return min(max(wanted, least), most)


def say(text: str) -> None:
    """Prints a line of progress at once."""
    print(text, flush=True)


async def interruptible(minutes: float, seed: int, rate: float) -> dict[str, Any]:
    """The soak, which SIGTERM ends as Ctrl-C does."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await soak(minutes, seed, rate)


def main() -> int:
    """Reads the command line and soaks."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description="Soaks a sidecar.")
    parser.add_argument("--minutes", type=float, default=30.0, help="how long (30)")
    parser.add_argument("--seed", type=int, default=1, help="of what happens when (1)")
    parser.add_argument("--rate", type=float, default=RATE, help=f"calls a second ({RATE:g})")
    options = parser.parse_args()
    try:
        summary = asyncio.run(interruptible(options.minutes, options.seed, options.rate))
    except (KeyboardInterrupt, asyncio.CancelledError):
        return INTERRUPTED
    for sentence in summary["wrong"]:
        say(f"WRONG: {sentence}")
    say(json.dumps({"seed": options.seed, "rate": options.rate, **summary}))
    return 0 if summary["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
