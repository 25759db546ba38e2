"""The demo of sessions: a database that lives for the calls of one session, a question, a pause, and the end of it.

It serves the worker beside it, in two processes, and is its caller. On a terminal it asks whoever sits there;
elsewhere, and where nobody answers in time, it answers by itself and says so. The last line on standard output is the
result as JSON. It leaves nothing behind.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from examples.sdk.demo import PILLION, ROOT, DemoFailed, Terminal, data, logged, main, private_directory, ready, tell

import pillion

HERE = Path(__file__).resolve().parent
CONFIG = str((HERE / "pillion.toml").relative_to(ROOT))
WAIT = (PILLION, "wait-ready", "workspace")
SESSION = "demo"
NORTH = "SELECT country, count(*) AS airports FROM airports WHERE lat > 60 GROUP BY country ORDER BY 2 DESC LIMIT 3"
CLOSED = "DELETE FROM airports WHERE iata IS NULL"
LEFT = "SELECT count(*) AS airports, count(iata) AS with_code FROM airports"
PROCESSES = 2
SECONDS_TO_START = 20
SECONDS_FOR_PEOPLE = 20
DEMO_SECONDS = 50


class Person:
    """Whoever is at the terminal, or the demo in the place of nobody."""

    def __init__(self) -> None:
        self._there = sys.stdin.isatty() and sys.stdout.isatty()

    async def agrees(self, question: str) -> bool:
        """Whether a yes-or-no question is answered with yes."""
        if self._there and (line := await self._line(f"  {question} [Y/n] ")) is not None:
            return not line.strip().lower().startswith("n")
        why = "nobody answers" if sys.stdin.isatty() else "there is no terminal to ask at"
        print(f"  {question} The demo answers yes: {why}.")
        return True

    async def elicited(self, question: pillion.Question) -> dict[str, Any]:
        """Answers what a running tool asks."""
        return {"action": "accept", "content": {"keep": await self.agrees(question.params["message"])}}

    async def _line(self, prompt: str) -> str | None:
        """What is typed; `None` where nothing is, in time or ever."""
        print(prompt, end="", flush=True)
        loop = asyncio.get_running_loop()
        typed: asyncio.Future[str] = loop.create_future()

        def read() -> None:
            loop.remove_reader(sys.stdin)
            typed.set_result(sys.stdin.readline())

        loop.add_reader(sys.stdin, read)
        try:
            async with asyncio.timeout(SECONDS_FOR_PEOPLE):
                line = await typed
        except TimeoutError:
            line = ""
        finally:
            loop.remove_reader(sys.stdin)
        if not line:
            print()
            # Nor will anybody answer the next question.
            self._there = False
        return line or None


@asynccontextmanager
async def sidecar(home: Path) -> AsyncIterator[str]:
    """A sidecar with its two workers, by the address to call it at."""
    address = f"unix:{home}/callers.sock"
    with logged(home / "sidecar.log") as log:
        terminal = Terminal(address)
        serve = (PILLION, "serve", "--config", CONFIG, "--state-dir", str(home))
        async with terminal.running(*serve, log=log) as serving:
            async with terminal.running(*WAIT) as waiting:
                await ready(waiting, serving)
            yield address


async def both(host: pillion.Host) -> list[int]:
    """The two processes that the worker runs in, once each has run a call."""
    found: set[int] = set()
    async with asyncio.timeout(SECONDS_TO_START):
        while len(found) < PROCESSES:
            answers = await asyncio.gather(*(host.call("engine") for _ in range(16)))
            found.update(answer["process"] for answer in answers)
    return sorted(found)


async def conversation(address: str, person: Person) -> dict[str, Any]:
    """The calls, and what came of them."""
    answers = {"elicitation/create": person.elicited}
    async with pillion.connect(address, can_answer=answers) as host:
        processes = await both(host)
        print(f"The worker runs in {len(processes)} processes: {', '.join(map(str, processes))}.")

        artifacts = host.artifacts.within(session_id=SESSION)
        table = await artifacts.put(ROOT / data(), kind="csv")
        opened = await call(host, "open_csv", {"data": table.reference, "table": "airports"})
        north = await call(host, "query", {"sql": NORTH})
        changed = await call(host, "change", {"sql": CLOSED})
        left = await call(host, "query", {"sql": LEFT})
        used = {answer["process"] for answer in (opened, north, changed, left)}
        print(f"All of them ran in the process that has the database: {', '.join(map(str, used))}.")
        paused = await pausing(host)

    # Neither the connection nor a thread of the worker waits for an approval.
    approved = await person.agrees(paused.message)
    async with pillion.connect(address) as host:
        print(f"resume with {json.dumps(approved)}, on another connection")
        handed = await handing(host, paused, approved)
        ended = await host.end_session(SESSION)
        # One for each tool, all of which close the one database.
        print(f"end_session: {ended.fired} cleanups, {ended.failed} of them failed, {ended.cancelled} calls cancelled")
        after = await gone(host)
    return {
        "processes": processes,
        "session_in": sorted(used),
        "north": [dict(zip(north["columns"], row, strict=True)) for row in north["rows"]],
        "removed": changed["rows"] if changed["kept"] else 0,
        "left": dict(zip(left["columns"], left["rows"][0], strict=True)),
        "handed_out": handed,
        "ended": {"fired": ended.fired, "failed": ended.failed, "cancelled": ended.cancelled},
        "after": after,
    }


async def call(host: pillion.Host, tool: str, arguments: dict[str, Any]) -> Any:
    """One call of the session, and what it answers, both shown."""
    shown = arguments.get("sql") or arguments.get("table")
    print(f"{tool}: {shown}")
    answer = await host.call(tool, arguments, session_id=SESSION)
    print(f"  {json.dumps(answer)}")
    return answer


async def pausing(host: pillion.Host) -> pillion.Paused:
    """A call that waits for an approval."""
    print("hand_out: airports")
    try:
        await host.call("hand_out", {"table": "airports"}, session_id=SESSION)
    except pillion.errors.CallPaused as pause:
        print("  paused for an approval; its caller leaves")
        return pause.paused
    raise DemoFailed("The tool did not wait for an approval.")


async def handing(host: pillion.Host, paused: pillion.Paused, approved: bool) -> Any:  # noqa: FBT001  # the answer
    """What comes of a paused call with this answer."""
    try:
        handed = await host.resume(paused, approved)
    except pillion.errors.ToolFailed as refused:
        print(f"  {refused}")
        return None
    print(f"  {json.dumps(handed)}")
    return {"reference": handed["reference"], "rows": handed["rows"]}


async def gone(host: pillion.Host) -> str:
    """What a query says once the session has ended: another begins, and has nothing."""
    try:
        await host.call("query", {"sql": LEFT}, session_id=SESSION)
    except pillion.errors.ToolFailed as failed:
        print(f"query, in a new session of the same name: {failed}")
        await host.end_session(SESSION)
        return str(failed)
    raise DemoFailed("The session's tables are still there after its end.")


async def demo() -> None:
    """All of it: what it starts is ended and what it writes is removed before it returns, fails or is cancelled."""
    with private_directory() as home:
        async with sidecar(home) as address:
            try:
                async with asyncio.timeout(DEMO_SECONDS + 3 * SECONDS_FOR_PEOPLE):
                    result = await conversation(address, Person())
            except pillion.errors.PillionError as error:
                raise DemoFailed(f"{type(error).__name__}: {error}") from None
            except TimeoutError:
                raise DemoFailed("It took too long.") from None
            for line in (home / "sidecar.log").read_text(errors="replace").splitlines():
                if "closed the workspace" in line:
                    tell(line)
        print(json.dumps(result))


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # it is the real one
    main(demo)
