"""A program that is killed in the middle of commits that many share: `crashing_commits.py DIRECTORY HOW`.

It keeps artifacts, records of requests and cleanups, many at once, again and again, each time in a process and a
directory of its own, `DIRECTORY/<number>`, until one gets to its end. What each has begun and acknowledged is in the
file `said` of its directory, a line each. HOW it is killed:

- `statement`: by SIGKILL at the first thing that the database is asked to do, the next process at the second, and on;
- `byte`: by the system, in that write which would take a file over a size that grows from process to process;
- `opening`: likewise, while it makes its database.
"""

import asyncio
import json
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, NoReturn

from sidecar._gen.pillion.v1.context_pb2 import TeardownReason, TeardownScope
from sidecar.artifacts import ArtifactInput, ArtifactLimits
from sidecar.artifacts.files import FileArtifactStore
from sidecar.scope import Address, KeptInstance, Owner, Registration, Scope, ScopeKey, digest_of_secret
from sidecar.storage import Database, SqliteIdempotencyStore, SqliteTeardownStore

LIMITS = ArtifactLimits()
SCOPE = Scope(Owner("acme", "named:ann"), "run:1")
STATED = ArtifactInput("note", "text/plain")
TOOL, DIGEST, OUTCOME = "tool", b"digest", b"outcome"
AT_ONCE = 4
REASON = TeardownReason.TEARDOWN_REASON_RUN_END
_PATIENCE = 20
# No multiple of a page, so that each process is cut elsewhere in one.
_BYTES = 2_011


def payload(number: int) -> bytes:
    """What is put."""
    return str(number).encode() * 50


def instance(worker: str, instance_id: str) -> KeptInstance:
    """Who keeps the cleanups."""
    return KeptInstance(worker, instance_id, digest_of_secret(instance_id), returns=True)


def registration(number: int) -> Registration:
    """A cleanup. Every two of them are kept by one instance."""
    key = ScopeKey(TeardownScope.TEARDOWN_SCOPE_RUN, SCOPE.owner, str(number))
    return Registration(f"reg_{number}", Address(key, f"ins_{number // 2}", TOOL, None), "main")


class Teller:
    """Says what has begun and ended, and kills the process at one of the steps between."""

    def __init__(self, said: int, how: str, at: int) -> None:
        self.how = how
        self._said = said
        self._at = at
        self._steps = 0
        self._group = 0

    def say(self, **what: Any) -> None:
        """Tells something at once."""
        os.write(self._said, (json.dumps(what) + "\n").encode())

    def limit(self, *, during: str) -> None:
        """Bounds how large a file may become, if that is how it is to be killed during this; else bounds nothing."""
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        size = self._at * _BYTES if self.how == during else hard
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))

    def step(self, statement: str) -> None:
        """Comes to a step, and perhaps no further."""
        word = " ".join(statement.split()[:3])
        self._group = 0 if word.startswith("BEGIN") else self._group + word.startswith("SAVEPOINT")
        self._steps += 1
        if self.how == "statement" and self._steps == self._at:
            self.say(killed=word, group=self._group)
            os.kill(os.getpid(), signal.SIGKILL)

    def after(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        """A function behind whose end there is a step."""

        def stepping(*arguments: Any) -> Any:
            result = function(*arguments)
            self.step(name)
            return result

        return stepping


async def work(directory: Path, teller: Teller) -> None:
    """Keeps artifacts, records of requests and cleanups, and acknowledges each when that is done."""
    teller.limit(during="opening")
    async with Database(directory / "pillion.db") as database:
        store = FileArtifactStore(database, directory / "artifacts", LIMITS)
        await store.open()
        requests = SqliteIdempotencyStore(database)
        teardowns = SqliteTeardownStore(database, instance)
        if teller.how == "statement":
            await database.read(lambda connection: connection.set_trace_callback(teller.step))
        teller.limit(during="byte")
        database._commit = teller.after(database._commit, "AFTER COMMIT")  # type: ignore[method-assign]

        async def keep(number: int) -> None:
            teller.say(puts=number)
            stored = await store.put(SCOPE, STATED, payload(number))
            teller.say(put=number, reference=stored.meta.reference)

        async def request(number: int) -> None:
            key = str(number)
            teller.say(begins=key)
            await requests.begin(SCOPE, TOOL, key, DIGEST, f"exec-{key}")
            teller.say(began=key)
            if number % 2:
                teller.say(frees=key)
                await requests.free(SCOPE, TOOL, key)
                teller.say(freed=key)
            else:
                teller.say(ends=key)
                await requests.finish(SCOPE, TOOL, key, OUTCOME)
                teller.say(ended=key)

        async def register(number: int) -> None:
            one = registration(number)
            teller.say(registers=number)
            await teardowns.add(one)
            teller.say(registered=number)
            if number % 2:
                teller.say(claims=number)
                await teardowns.claim((one,), REASON)
                teller.say(claimed=number)
                teller.say(removes=number)
                await teardowns.remove((one,))
                teller.say(removed=number)
            else:
                teller.say(pins=number)
                await teardowns.pin({(one.key, "main"): one.instance_id})
                teller.say(pinned=number)

        # What comes while the database is busy with this shares the next commit.
        begun = threading.Event()
        busy = asyncio.ensure_future(database.write(lambda _: begun.wait()))
        working = [asyncio.ensure_future(each(number)) for each in (keep, request) for number in range(AT_ONCE)]
        working += [asyncio.ensure_future(register(number)) for number in range(2)]
        await asyncio.sleep(0)
        begun.set()
        await asyncio.gather(busy, *working)
        await database.read(lambda connection: connection.set_trace_callback(None))
        teller.limit(during="")
        await store.aclose()


def run(directory: Path, said: int, how: str, at: int) -> NoReturn:
    """Works in this process until it is killed, or done."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Python leaves it to who writes to notice that a file is too large; like this the system ends the process.
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    signal.alarm(_PATIENCE)
    asyncio.run(work(directory, Teller(said, how, at)))
    os._exit(0)


def main(root: Path, how: str) -> None:
    """Works in one process after the other, until one is not killed."""
    for at in count(1):
        directory = root / str(at)
        directory.mkdir()
        # A pipe has no size that could be too large.
        reader, writer = os.pipe()
        process = os.fork()
        if not process:
            run(directory, writer, how, at)
        os.close(writer)
        with open(reader, "rb") as said:  # noqa: PTH123  # of a descriptor
            text = said.read()
        _, status = os.waitpid(process, 0)
        if how != "statement" and os.WIFSIGNALED(status):
            assert os.WTERMSIG(status) == signal.SIGXFSZ
            text += json.dumps({"killed": "write"}).encode() + b"\n"
        (directory / "said").write_bytes(text)
        if os.WIFEXITED(status):
            assert not os.WEXITSTATUS(status)
            return


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
