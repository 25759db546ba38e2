"""The diagram and the frame tables of docs/protocol.md, driven cell by cell."""

import asyncio
import contextlib
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from sidecar._gen.pillion.v1.call_pb2 import CallerHello, StreamErrorReason
from sidecar._gen.pillion.v1.context_pb2 import TeardownScope
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outbound_pb2 import ReplyErrorCode
from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind
from sidecar.calls.call import Call
from sidecar.calls.clock import CallClock
from sidecar.calls.detached_call import DetachedCall
from sidecar.calls.state import CallState
from sidecar.credentials.port import Answer, Request
from sidecar.credentials.static import StaticProvider
from sidecar.wire.outbox import Lane
from sidecar.wire.replay import ReplayLane
from sidecar.workers.instance import InstanceState
from tests.integration.causes.gates import GITHUB, NEEDS_GITHUB
from tests.support import (
    READ,
    CallerPeer,
    MemoryHost,
    Peer,
    StartHost,
    WorkerPeer,
    progress,
    quiet,
    token_of,
    tool,
)
from tests.support.documents import blocks, table

PROTOCOL = "docs/protocol.md"
BODIES = [field.name for field in Frame.DESCRIPTOR.oneofs_by_name["body"].fields]
OF_CALLS, OF_STREAMS = table(PROTOCOL, "Frames of a call"), table(PROTOCOL, "Frames of the stream")
FROM_CALLER, FROM_WORKER = "caller → sidecar", "worker → sidecar"
KEY = "k"
UNUSED = 99
"""A call id that nobody has used."""


class Observed:
    """What sidecars did in a test: the transitions of calls, and the frames that were sent in each state."""

    def __init__(self) -> None:
        self.transitions: set[tuple[str, str]] = set()
        self.sent: set[tuple[str, str, str]] = set()


@pytest.fixture(autouse=True)
def observed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Observed]:
    """Watches every call of a test; fails if one does what the document does not tell."""
    seen = Observed()
    watch_transitions(monkeypatch, seen)
    watch_frames(monkeypatch, seen)
    yield seen
    monkeypatch.undo()
    assert seen.transitions <= edges()
    assert seen.sent <= {(row["Way"], row["Frame"], state) for row, state in sent_cells()}


def edges() -> set[tuple[str, str]]:
    """The transitions of the diagram, its ends aside."""
    (diagram,) = blocks(PROTOCOL, "mermaid")
    return set(re.findall(r"^ *(\w+) --> (\w+)", diagram.text, re.MULTILINE))


def sent_cells() -> list[tuple[dict[str, str], str]]:
    return [(row, state) for row in OF_CALLS for state, cell in row.items() if cell == "sent"]


def watch_transitions(monkeypatch: pytest.MonkeyPatch, seen: Observed) -> None:
    slot = vars(CallClock)["state"]

    def set_(call: Call, state: CallState) -> None:
        with contextlib.suppress(AttributeError):
            before = slot.__get__(call)
            if before is not state:
                seen.transitions.add((before.name, state.name))
        slot.__set__(call, state)

    monkeypatch.setattr(CallClock, "state", property(slot.__get__, set_))


def watch_frames(monkeypatch: pytest.MonkeyPatch, seen: Observed) -> None:
    send, report, resend = Lane.send, Lane.report, ReplayLane.send
    calls: set[Call] = set()
    made = Call.__init__

    def make(call: Call, *arguments: Any, **named: Any) -> None:
        made(call, *arguments, **named)
        calls.add(call)

    def note(lane: Lane, frame: Frame) -> None:
        body = frame.WhichOneof("body")
        assert body is not None
        for call in calls:
            assignment: object = call._assignment
            if call.sink is lane or lane_of(call) is lane:
                seen.sent.add(("sidecar → caller", body, call.state.name))
            elif assignment is lane:
                seen.sent.add(("sidecar → worker", body, call.state.name))

    def watched_send(lane: Lane, frame: Frame) -> bool:
        note(lane, frame)
        return send(lane, frame)

    def watched_report(lane: Lane, frame: Frame) -> None:
        note(lane, frame)
        report(lane, frame)

    monkeypatch.setattr(Call, "__init__", make)

    def watched_resend(lane: ReplayLane, frame: Frame) -> bool:
        note(lane, frame)
        return resend(lane, frame)

    monkeypatch.setattr(Lane, "send", watched_send)
    monkeypatch.setattr(ReplayLane, "send", watched_resend)
    monkeypatch.setattr(Lane, "report", watched_report)


def lane_of(call: Call) -> object:
    """Where the frames of a call go, or of a detached one those that are sent to who follows it."""
    following = call.caller._following if isinstance(call.caller, DetachedCall) else None
    return call.sink if following is None else following.lane


# --- calls in each state


class Scene:
    """A sidecar, a worker and a caller with one call in a certain state."""

    caller: CallerPeer
    worker: WorkerPeer
    call: Call | None = None
    on_caller = UNUSED
    """The call's id on the caller's stream."""
    on_worker = UNUSED
    """The call's id on the worker's stream."""
    can_answer: str | None = None
    """What the caller declares that it answers, if it says hello."""
    instance = ""
    """The id of the worker, where it matters."""
    detachable = False
    """Whether its calls are."""

    def __init__(self, host: MemoryHost) -> None:
        self.host = host
        self.held = asyncio.Event()
        """Lets a held store go on."""

    async def open(self, *, attached: bool = True) -> None:
        self.caller, self.worker = await self.host.caller(), await self.host.worker()
        if self.can_answer is not None:
            await self.caller.send(Frame(caller_hello=CallerHello(can_answer=[self.can_answer, "consent"])))
        if attached:
            await self.worker.hello(tool("echo"))

    async def start(self, **fields: Any) -> None:
        self.on_caller = await self.caller.start("echo", timeout=50, detachable=self.detachable, **fields)
        await quiet()
        self.call = next(
            call for call in self.host.pipeline.running if getattr(lane_of(call), "call", None) == self.on_caller
        )

    async def invoke(self, **fields: Any) -> None:
        await self.start(**fields)
        self.on_worker = (await self.worker.next_invoke()).call

    def hold_store(self, method: str) -> None:
        store = getattr(self.host.store, method)

        async def held(*arguments: Any) -> Any:
            await self.held.wait()
            return await store(*arguments)

        setattr(self.host.store, method, held)

    # each state, by its name

    async def new(self) -> None:
        await self.open()
        self.caller.last_call = UNUSED - 1

    async def gates(self) -> None:
        await self.open()
        self.hold_store("find")
        await self.start(idempotency_key=KEY)

    async def waiting(self) -> None:
        await self.open(attached=False)
        await self.start()

    async def running(self) -> None:
        await self.open()
        await self.invoke()

    async def cancelling(self) -> None:
        await self.running()
        await self.caller.cancel(self.on_caller)
        await self.worker.cancelled(self.on_worker)

    async def joined(self) -> None:
        await self.open()
        await self.invoke(idempotency_key=KEY)
        await self.start(idempotency_key=KEY)

    async def settling(self) -> None:
        await self.open()
        self.hold_store("finish")
        await self.invoke(idempotency_key=KEY)
        await self.worker.result(self.on_worker)
        await quiet()

    async def done(self) -> None:
        await self.running()
        await self.worker.result(self.on_worker)
        await self.caller.outcome(self.on_caller)


async def started(start_host: StartHost) -> MemoryHost:
    host = await start_host()
    assert isinstance(host, MemoryHost)
    return host


async def scene_in(
    state: str, start_host: StartHost, can_answer: str | None = None, *, detachable: bool = False
) -> Scene:
    scene = Scene(await started(start_host))
    scene.can_answer = can_answer
    scene.detachable = detachable
    await getattr(scene, state.lower())()
    assert state == "new" or (scene.call is not None and scene.call.state.name == state)
    return scene


# --- what the words of the tables mean


class Reaction:
    """What happened between two moments of a scene."""

    def __init__(self, scene: Scene, sender: Peer) -> None:
        self.scene = scene
        self.sender = sender
        self.before = scene.host.counts.snapshot()
        self.state = None if scene.call is None else scene.call.state
        self.came: dict[Peer, int] = {peer: len(peer.order) for peer in (scene.caller, scene.worker)}
        self.pongs = sender._answered

    def counted(self) -> Counter[str]:
        return Counter(self.scene.host.counts.snapshot()) - Counter(self.before)

    def frames(self, peer: Peer) -> list[Frame]:
        return peer.order[self.came[peer] :]

    def bodies(self, peer: Peer) -> list[str | None]:
        return [frame.WhichOneof("body") for frame in self.frames(peer)]

    def is_untouched(self) -> None:
        call = self.scene.call
        assert (None if call is None else call.state) is self.state
        assert not self.frames(self.scene.worker if self.sender is self.scene.caller else self.scene.caller)

    async def outcome(self) -> Frame:
        """The call's outcome, at the latest when its grace is over."""
        await self.scene.caller.outcome(self.scene.on_caller)
        return self.scene.caller.frames[self.scene.on_caller][-1]


async def opens(reaction: Reaction, _: str) -> None:
    assert reaction.counted()["calls"] == 1
    await reaction.scene.worker.next_invoke()


async def refuses(reaction: Reaction, kind: str) -> None:
    started, outcome = reaction.frames(reaction.scene.caller)
    assert started.HasField("started")
    assert FailureKind.Name(outcome.outcome.failure.kind) == f"FAILURE_KIND_{kind}"


async def ends(reaction: Reaction, kind: str) -> None:
    call = reaction.scene.call
    assert call is not None
    assert call.state is CallState.DONE
    outcome = (await reaction.outcome()).outcome
    if kind:
        assert FailureKind.Name(outcome.failure.kind) == f"FAILURE_KIND_{kind}"


async def asks(reaction: Reaction, kind: str) -> None:
    call = reaction.scene.call
    assert call is not None
    assert call.state is CallState.CANCELLING
    assert reaction.bodies(reaction.scene.worker) == ["cancel"]
    failure = (await reaction.outcome()).outcome.failure
    assert FailureKind.Name(failure.kind) == f"FAILURE_KIND_{kind}"


async def forwards(reaction: Reaction, _: str) -> None:
    assert reaction.bodies(reaction.scene.caller)[-1] == "progress"


async def replies(reaction: Reaction, code: str) -> None:
    (frame,) = reaction.frames(reaction.sender)
    assert frame.reply.WhichOneof("answer") is not None
    assert not code or ReplyErrorCode.Name(frame.reply.error.code) == f"REPLY_ERROR_CODE_{code}"
    reaction.is_untouched()


async def answers(reaction: Reaction, body: str) -> None:
    if body == "pong":
        assert reaction.sender._answered == reaction.pongs + 1
    else:
        assert reaction.bodies(reaction.sender) == [body]
    assert not any(frame.call for frame in reaction.frames(reaction.sender))


async def logs(reaction: Reaction, _: str) -> None:
    assert not reaction.frames(reaction.sender)
    assert not reaction.counted()
    reaction.is_untouched()


async def leaves(reaction: Reaction, _: str) -> None:
    instance = reaction.scene.host.catalogue.sets["main"].instances.get(reaction.scene.instance)
    assert instance is None or instance.state is InstanceState.DRAINING
    assert (await reaction.sender.end()).code.name == "OK"


async def late(reaction: Reaction, _: str) -> None:
    ((name, count),) = reaction.counted().items()
    assert (name.split("_")[0], count) == ("late", 1)
    assert not reaction.frames(reaction.sender)
    reaction.is_untouched()


async def settles(reaction: Reaction, _: str) -> None:
    # Of those that are waited for the tests of teardown tell.
    await late(reaction, "")


async def ignores(reaction: Reaction, _: str) -> None:
    assert not reaction.counted()
    assert not reaction.frames(reaction.sender)
    reaction.is_untouched()


async def error(reaction: Reaction, reason: str) -> None:
    (frame,) = reaction.frames(reaction.sender)
    assert frame.call == 0
    assert StreamErrorReason.Name(frame.stream_error.reason) == f"STREAM_ERROR_REASON_{reason}"
    reaction.is_untouched()


async def closes(reaction: Reaction, status: str) -> None:
    assert (await reaction.sender.end()).code.name == status


WORDS: dict[str, Callable[[Reaction, str], Awaitable[None]]] = {
    function.__name__: function
    for function in (
        opens,
        refuses,
        ends,
        asks,
        forwards,
        replies,
        answers,
        logs,
        leaves,
        late,
        settles,
        ignores,
        error,
        closes,
    )
}


def bodies_of(row: dict[str, str], rows: list[dict[str, str]]) -> list[str]:
    if row["Frame"] != "any other":
        return [row["Frame"]]
    told = {other["Frame"] for other in rows if other["Way"] == row["Way"]}
    return [body for body in BODIES if body not in told]


def incoming(rows: list[dict[str, str]], all_rows: list[dict[str, str]]) -> list[Any]:
    """A case for each cell of the rows whose frames come in, with the bodies that it is for."""
    return [
        pytest.param(row["Way"], bodies_of(row, all_rows), state, cell, id=f"{row['Frame']}-{row['Way']}-{state}")
        for row in rows
        if row["Way"] in (FROM_CALLER, FROM_WORKER)
        for state, cell in row.items()
        if state not in ("Frame", "Way") and cell != "-"
    ]


async def react(scene: Scene, sender: Peer, frame: Frame, cell: str) -> None:
    reaction = Reaction(scene, sender)
    await sender.send(frame)
    await quiet()
    word, _, detail = cell.partition(" ")
    await WORDS[word](reaction, detail)
    scene.held.set()


@pytest.mark.parametrize(("way", "bodies", "state", "cell"), incoming(OF_CALLS, OF_CALLS + OF_STREAMS))
async def test_a_frame_of_a_call_does_what_its_cell_says(
    way: str, bodies: list[str], state: str, cell: str, start_host: StartHost
) -> None:
    for body in bodies:
        scene = await scene_in(state, start_host)
        frame = Frame(call=scene.on_caller if way == FROM_CALLER else scene.on_worker)
        getattr(frame, body).SetInParent()
        if body == "start":
            frame.start.tool = "echo"
        await react(scene, scene.caller if way == FROM_CALLER else scene.worker, frame, cell)


# --- streams in each state


async def stream_in(scene: Scene, way: str, state: str) -> Peer:
    """The peer whose stream is in this state."""
    await scene.open(attached=way == FROM_CALLER)
    if way == FROM_CALLER:
        if state == "open":
            await scene.caller.call("missing")
        return scene.caller
    if state != "new":
        scene.instance = (await scene.worker.hello(tool("echo"))).instance_id
    if state == "leaving":
        # It runs something, so that its stream does not end yet.
        await scene.invoke()
        await scene.worker.goodbye()
        await scene.worker.flush()
    return scene.worker


@pytest.mark.parametrize(("way", "bodies", "state", "cell"), incoming(OF_STREAMS, OF_STREAMS))
async def test_a_frame_of_a_stream_does_what_its_cell_says(
    way: str, bodies: list[str], state: str, cell: str, start_host: StartHost
) -> None:
    for body in bodies:
        scene = Scene(await started(start_host))
        sender = await stream_in(scene, way, state)
        frame = Frame()
        getattr(frame, body).SetInParent()
        if body == "worker_hello":
            frame.worker_hello.worker, frame.worker_hello.token = "main", token_of("main")
        if body == "ping":
            frame.ping.nonce = sender._answered + 1
        if cell == "leaves" and state == "leaving":
            await scene.worker.result(scene.on_worker)
        await react(scene, sender, frame, cell)


# --- what the sidecar sends


async def test_the_sidecar_sends_what_its_cells_say(start_host: StartHost, observed: Observed) -> None:
    for state in ("GATES", "RUNNING", "CANCELLING", "JOINED", "SETTLING", "DONE"):
        scene = await scene_in(state, start_host, "ask")
        request = Frame(call=scene.on_worker)
        request.outbound_request.request_id = 1
        inner = Frame(call=scene.on_worker)
        inner.outbound_request.request_id = 2
        inner.outbound_request.tools_call.tool = "echo"
        inner.outbound_request.tools_call.arguments = b'{"inner": true}'
        question = Frame(call=scene.on_worker)
        question.outbound_request.request_id = 3
        question.outbound_request.caller_request.method = "ask"
        registration = Frame(call=scene.on_worker)
        registration.register_teardown.request_id = 4
        registration.register_teardown.scope = TeardownScope.TEARDOWN_SCOPE_CALL
        await scene.worker.send(progress(scene.on_worker), request, inner, question, registration)
        await quiet()
        await scene.worker.send(*(progress(invocation.call) for invocation in scene.worker.invoked))
        await quiet()
        assert scene.call is not None
        scene.call.consent("service", "https://issuer.example/authorize")
        scene.held.set()
        await asyncio.sleep(60)
    for state in (state.name for state in CallState):
        await be_superseded(state, start_host)
    assert observed.sent == {(row["Way"], row["Frame"], state) for row, state in sent_cells()}


async def be_superseded(state: str, start_host: StartHost) -> None:
    """Another follows the call of a scene in this state; that of one that is done, while its outcome is recorded."""
    recorded = asyncio.Event()
    if state in ("GATES", "DONE"):
        scene = Scene(await started(start_host))
        scene.detachable = True
    else:
        scene = await scene_in(state, start_host, detachable=True)
    if state == "GATES":
        # It is told of its ticket once it is known to join no other.
        await scene.open()
        scene.hold_store("begin")
        await scene.start(idempotency_key=KEY)
    elif state == "DONE":
        finish = scene.host.detached_store.finish

        async def held(*arguments: Any) -> None:
            await recorded.wait()
            await finish(*arguments)

        scene.host.detached_store.finish = held  # type: ignore[method-assign,assignment]
        await scene.running()
        await scene.worker.result(scene.on_worker)
        await quiet()
    other = await scene.host.caller()
    frame = Frame(call=1)
    frame.follow.ticket = scene.caller.frames[scene.on_caller][0].started.ticket
    await other.send(frame)
    await quiet()
    assert scene.caller.bodies(scene.on_caller) == ["started", "superseded"]
    recorded.set()
    scene.held.set()
    await asyncio.sleep(60)


async def test_a_call_goes_every_way_of_the_diagram(
    start_host: StartHost, observed: Observed, monkeypatch: pytest.MonkeyPatch
) -> None:
    for state in (state.name for state in CallState):
        scene = await scene_in(state, start_host)
        await scene.caller.call("missing")
        scene.held.set()
        await asyncio.sleep(60)

    # Two calls with one key wait for their tool, which comes, and the first is cancelled while it runs.
    scene = Scene(await started(start_host))
    await scene.open(attached=False)
    first = await scene.caller.start("echo", idempotency_key=KEY)
    await scene.caller.start("echo", idempotency_key=KEY)
    await scene.caller.flush()
    await scene.worker.hello(tool("echo"))
    await scene.worker.next_invoke()
    await scene.caller.cancel(first)

    # One call's worker is lost, while another with a key is cancelled while it waits for a slot.
    scene = Scene(await started(start_host))
    await scene.open(attached=False)
    await scene.worker.hello(tool("echo", effects=READ), concurrency=1)
    await scene.caller.start("echo")
    await scene.worker.next_invoke()
    second = await scene.caller.start("echo", idempotency_key=KEY)
    await quiet()
    await scene.caller.cancel(second)
    await scene.caller.flush()
    scene.worker.cut()
    await asyncio.sleep(60)

    # One with a key and a need loses its worker, and is cancelled while its credential is to be had once more.
    host = await start_host(credentials=GITHUB, granted={"main": ("github",)})
    assert isinstance(host, MemoryHost)
    scene = Scene(host)
    await scene.open(attached=False)
    await scene.worker.hello(tool("echo", effects=READ, needs=NEEDS_GITHUB))
    await scene.invoke(idempotency_key=KEY)
    issue = StaticProvider.issue

    async def held(provider: StaticProvider, request: Request) -> Answer:
        await scene.held.wait()
        return await issue(provider, request)

    monkeypatch.setattr(StaticProvider, "issue", held)
    scene.worker.cut()
    await quiet()
    await scene.caller.cancel(scene.on_caller)
    await scene.caller.flush()
    scene.held.set()
    await quiet()
    assert observed.transitions == edges()
