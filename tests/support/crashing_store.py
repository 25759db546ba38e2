"""A program that keeps artifacts in files and is killed at each step of it: `crashing_store.py DIRECTORY`.

It does the same work again and again, each time in a process and a directory of its own, `DIRECTORY/<number>`. The
first process is killed by SIGKILL at the first thing that it does to the disk, the next one at the second, and so on,
until one gets to its end. What each has acknowledged is in the file `said` of its directory, a line each.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, NoReturn

from sidecar.artifacts import ArtifactInput, ArtifactLimits
from sidecar.artifacts.files import FileArtifactStore
from sidecar.scope import Owner, Scope
from sidecar.storage import Database

LIMITS = ArtifactLimits(count_per_scope=2)
SCOPE = Scope(Owner("acme", "named:ann"), "run:1")
STATED = ArtifactInput("note", "text/plain", digest=True)
FIRST, SECOND, THIRD = b"first", b"second" * 40_000, b"third" * 1_000
CHUNK = 100_000


class Killer:
    """Counts what is done to the disk, and kills the process at one of those steps."""

    def __init__(self, at: int, said: int) -> None:
        self._at = at
        self._said = said
        self._steps = 0

    def say(self, **what: Any) -> None:
        """Acknowledges something."""
        os.write(self._said, (json.dumps(what) + "\n").encode())

    def step(self, name: str) -> None:
        """Comes to a step, and perhaps no further."""
        self._steps += 1
        if self._steps == self._at:
            self.say(killed=name)
            os.kill(os.getpid(), signal.SIGKILL)

    def around(self, holder: Any, name: str) -> None:
        """Makes a step of what is before a function has done its work, and of what is after it."""
        function: Callable[..., Any] = getattr(holder, name)

        def stepping(*arguments: Any, **keywords: Any) -> Any:
            self.step(f"before {name}")
            result = function(*arguments, **keywords)
            self.step(f"after {name}")
            return result

        setattr(holder, name, stepping)


async def work(directory: Path, killer: Killer) -> None:
    """Puts, uploads, evicts and deletes, and acknowledges each when it is done."""
    async with Database(directory / "pillion.db") as database:
        store = FileArtifactStore(database, directory / "artifacts", LIMITS)
        await store.open()
        for name in ("pwrite", "fsync", "rename", "unlink"):
            killer.around(os, name)
        killer.around(Database, "_commit")
        killer.say(begins="put")
        first = await store.put(SCOPE, STATED, FIRST)
        killer.say(ends="put", stored=first.meta.reference)
        killer.say(begins="upload")
        upload = await store.begin(SCOPE, STATED, len(SECOND))
        for offset in range(0, len(SECOND), CHUNK):
            await upload.append(SECOND[offset : offset + CHUNK])
        second = await upload.finish()
        killer.say(ends="upload", stored=second.meta.reference)
        killer.say(begins="evict", gone=first.meta.reference)
        third = await store.put(SCOPE, STATED, THIRD)
        killer.say(ends="evict", stored=third.meta.reference, gone=third.evicted[0].reference)
        killer.say(begins="delete", gone=second.meta.reference)
        await store.delete(SCOPE, second.meta.reference)
        killer.say(ends="delete", gone=second.meta.reference)
        await store.aclose()


def run(directory: Path, at: int) -> NoReturn:
    """Works in this process until it is killed, or done."""
    directory.mkdir()
    said = os.open(directory / "said", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    asyncio.run(work(directory, Killer(at, said)))
    os._exit(0)


def main(root: Path) -> None:
    """Works in one process after the other, until one is not killed."""
    for at in count(1):
        process = os.fork()
        if not process:
            run(root / str(at), at)
        _, status = os.waitpid(process, 0)
        if os.WIFEXITED(status):
            assert not os.WEXITSTATUS(status)
            return


if __name__ == "__main__":
    main(Path(sys.argv[1]))
