"""The same chain on the SDK at every end: its tools await each other and a person, and none of them is left waiting."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from itertools import pairwise
from typing import Any

import pytest

import pillion
from pillion import errors
from tests.faults.conftest import Inside
from tests.faults.proxy import Proxy
from tests.support import SocketHost, StartHost, on_unix, token_of
from tests.support.chains import CHAIN_SETS, LINKS, METHOD, kept
from tests.support.operators import Operator

pytestmark = on_unix

POINTS = ("before the question", "while it is open", "after the answer")
LOST = tuple(f"loss of the {name} worker" for name in LINKS)
WISHES: dict[str, pillion.CallOptions] = {
    "deadline": {"timeout": 2, "human_timeout": 0.5},
    "idle": {"idle_timeout": 2, "human_timeout": 0.5},
}
RAISED: dict[str, type[Exception]] = {
    "cancel": errors.CallCancelled,
    "deadline": errors.CallTimedOut,
    "idle": errors.IdleTimedOut,
    "disconnect": errors.StreamLost,
    "leaving": errors.StreamLost,
    LOST[0]: errors.OutcomeUnknown,
    **dict.fromkeys(LOST[1:], errors.ToolFailed),
}
"""What the caller's call raises. A tool that lets through how its inner call ended has failed."""
PATIENCE = 20.0


class People:
    """The tools of a chain, the caller who is asked, and what each has come to."""

    def __init__(self) -> None:
        self.reached = {point: asyncio.Event() for point in POINTS}
        self.may_ask, self.may_answer, self.may_return = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.began: set[str] = set()
        self.ended: set[str] = set()
        self.all_ended = asyncio.Event()

    def tools(self) -> dict[str, pillion.Tool[..., Any]]:
        """One for each link; all but the last have the next one run."""
        outer = {name: self._outer(name, inner) for name, inner in pairwise(LINKS)}
        return outer | {LINKS[-1]: pillion.tool(name=LINKS[-1])(self._watched(LINKS[-1], self._ask))}

    async def answer(self, _question: pillion.Question) -> dict[str, Any]:
        """The caller's handler: a person who takes time."""
        self.began.add("person")
        self.reached[POINTS[1]].set()
        try:
            await self.may_answer.wait()
        finally:
            self._ends("person")
        return {"action": "accept", "content": {"word": "yes"}}

    async def come_to(self, point: str) -> None:
        """Takes the chain to a point."""
        async with asyncio.timeout(PATIENCE):
            for reached, gate in zip(POINTS, (self.may_ask, self.may_answer, self.may_return), strict=True):
                await self.reached[reached].wait()
                if reached == point:
                    return
                gate.set()

    async def until_ended(self) -> None:
        """Returns once every tool has ended, and the person's handler if it was asked."""
        async with asyncio.timeout(PATIENCE):
            await self.all_ended.wait()

    def _outer(self, name: str, inner: str) -> pillion.Tool[..., Any]:
        async def call(ctx: pillion.ToolContext) -> Any:
            return await ctx.tools.call(inner)

        return pillion.tool(name=name)(self._watched(name, call))

    async def _ask(self, ctx: pillion.ToolContext) -> Any:
        self.reached[POINTS[0]].set()
        await self.may_ask.wait()
        answer = await ctx.caller.elicit("Sure?", {"type": "object"})
        self.reached[POINTS[2]].set()
        await self.may_return.wait()
        return answer.content

    def _watched(self, name: str, run: Callable[[pillion.ToolContext], Any]) -> Callable[..., Any]:
        async def tool(ctx: pillion.ToolContext) -> Any:
            self.began.add(name)
            try:
                return await run(ctx)
            except errors.PeerRefused:
                # Nobody answered. It goes on, and so is ended by what ends the call.
                return await self.may_return.wait()
            finally:
                self._ends(name)

        return tool

    def _ends(self, name: str) -> None:
        self.ended.add(name)
        if self.ended == self.began:
            self.all_ended.set()


class Stage:
    """A sidecar with a worker for each link, and a caller, each on a connection that can be cut."""

    def __init__(self, host: SocketHost, people: People) -> None:
        self.people = people
        self.host = host
        self.cuts: dict[str, Callable[[], None]] = {}
        self.caller: pillion.Host
        self._stack = AsyncExitStack()
        self._connecting = AsyncExitStack()
        self._running: list[tuple[pillion.Worker, asyncio.Task[None]]] = []

    async def open(self) -> None:
        """Connects everybody."""
        for name, tool in self.people.tools().items():
            proxy = await self._stack.enter_async_context(Proxy(self.host.workers_at))
            worker = pillion.Worker([tool], target=proxy.address, worker=name, token=token_of(name))
            self._running.append((worker, asyncio.create_task(worker.run())))
            async with asyncio.timeout(PATIENCE):
                await worker.attached.wait()
            self.cuts[f"loss of the {name} worker"] = proxy.cut
        proxy = await self._stack.enter_async_context(Proxy(self.host.callers_at))
        self.cuts["disconnect"] = proxy.cut
        connecting = pillion.connect(proxy.address, can_answer={METHOD: self.people.answer}, patience=0.1)
        self.caller = await self._connecting.enter_async_context(connecting)

    async def bring(self, end: str, call: pillion.Call) -> None:
        """Has the end come; clocks do so by themselves."""
        match end:
            case "cancel":
                await call.cancel()
            case "leaving":
                await self._connecting.aclose()
            case _ if end in self.cuts:
                self.cuts[end]()

    async def close(self) -> None:
        """Has everybody leave."""
        await self._connecting.aclose()
        for worker, _ in self._running:
            worker.hurry()
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*(task for _, task in self._running))
        await self._stack.aclose()


@pytest.fixture
async def stage(start_host: StartHost) -> AsyncIterator[Stage]:
    host = await start_host(sets=CHAIN_SETS)
    assert isinstance(host, SocketHost)
    made = Stage(host, People())
    await made.open()
    yield made
    await made.close()


async def check_nothing_waits(stage: Stage, inside: Inside) -> None:
    """Nothing of a call is left, on either side."""
    await stage.people.until_ended()
    await inside.nothing_is_left()
    async with Operator(stage.host) as operator:
        assert (await operator.calls()).total == 0
    caller = await stage.host.caller()
    await caller.flush()
    assert not kept()


async def test_a_chain_asks_and_returns_what_was_answered(stage: Stage, inside: Inside) -> None:
    async with stage.caller.start(LINKS[0]) as call:
        await stage.people.come_to(POINTS[-1])
        stage.people.may_return.set()
        assert await call.result() == {"word": "yes"}
    assert stage.people.ended == {*LINKS, "person"}
    await check_nothing_waits(stage, inside)


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("end", RAISED)
async def test_a_chain_that_is_ended_leaves_nothing_waiting(stage: Stage, inside: Inside, end: str, point: str) -> None:
    async with stage.caller.start(LINKS[0], **WISHES.get(end, {})) as call:
        await stage.people.come_to(point)
        await stage.bring(end, call)
        with pytest.raises(RAISED[end]):
            async with asyncio.timeout(PATIENCE):
                await call.result()
    await check_nothing_waits(stage, inside)
