"""A worker on the SDK: two tools, one asynchronous and one in a thread."""

import argparse
import asyncio
import collections
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field

import pillion

WORDS_A_REPORT = 20_000


class Count(BaseModel):
    """How often a word occurs."""

    word: str
    times: int


@pillion.tool(effects=pillion.READ, timeout=60)
def common_words(
    path: Annotated[Path, Field(description="A text file that the worker can read.")],
    ctx: pillion.ToolContext,
    most: Annotated[int, Field(ge=1, le=1_000, description="How many words at most.")] = 10,
) -> list[Count]:
    """Lists the commonest words of a text file with their numbers. Use it to see what a long text is about."""
    try:
        words = path.read_text(errors="replace").lower().split()
    except OSError as error:
        raise pillion.ToolError(f"The file cannot be read: {error.strerror}.") from None
    counts: collections.Counter[str] = collections.Counter()
    for done in range(0, len(words), WORDS_A_REPORT):
        ctx.raise_if_cancelled()
        counts.update(words[done : done + WORDS_A_REPORT])
        ctx.progress({"message": f"{done:,} of {len(words):,} words", "done": done, "total": len(words)})
    return [Count(word=word, times=times) for word, times in counts.most_common(most)]


@pillion.tool(effects=pillion.READ)
async def countdown(
    ctx: pillion.ToolContext,
    start: Annotated[int, Field(ge=1, le=60)] = 3,
    pause: Annotated[float, Field(ge=0, le=10, description="Seconds between two numbers.")] = 1.0,
) -> str:
    """Counts down aloud. Use it to try out progress and cancelling."""
    for number in range(start, 0, -1):
        ctx.progress({"message": f"{number}…"})
        await asyncio.sleep(pause)  # A cancel of the call ends the tool here.
    return "lift-off"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A worker with the tools common_words and countdown.")
    parser.add_argument("--target", help="the sidecar's worker listener, such as unix:/run/workers.sock")
    parser.add_argument("--name", help="the configured name of the worker set")
    parser.add_argument("--token-file", help="the file that holds the set's token")
    options = parser.parse_args()
    # What is not given comes from the environment, as a sidecar that starts this program sets it.
    pillion.run_worker(
        [common_words, countdown], target=options.target, worker=options.name, token_file=options.token_file
    )
