"""The exchanges of docs/protocol.md, sent and compared frame by frame."""

import asyncio
import base64
import os
import re
import tomllib
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from google.protobuf import text_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from sidecar._gen.pillion.v1.execute_pb2 import EndScopeRequest, EndScopeResponse
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from tests.support import Host, MemoryHost, Peer, StartHost, end_scope, quiet
from tests.support.documents import Block, blocks

PRELUDE, *EXCHANGES = blocks("docs/protocol.md", "frames")
SETTINGS = {block.heading: block.text for block in blocks("docs/protocol.md", "toml")}
ANY_TEXT = "…"
END_SCOPE = "EndScope"
STAMPS = {"sequence", "time_unix_nano"}
A_USER = "local:1000"
LOST = "lost"
WITH_ARTIFACTS = {"artifacts, hasArtifacts, wanted", "A large result"}


class Line(NamedTuple):
    """A frame that a peer sends, or gets."""

    peer: str
    sends: bool
    text: str


def lines(block: Block) -> Iterator[Line]:
    for line in re.sub(r"\n +", " ", block.text).splitlines():
        peer, arrow, text = line.split(" ", 2)
        assert arrow in ("->", "<-"), line
        yield Line(peer, arrow == "->", text)


def differences(shown: Message, came: Message, where: str = "") -> Iterator[str]:
    """How what came is not what is shown, by the rules that the document gives."""
    if not shown.ListFields():
        return
    for field in shown.DESCRIPTOR.fields:
        here = f"{where}.{field.name}"
        want, got = getattr(shown, field.name), getattr(came, field.name)
        if field.name in STAMPS and not where:
            continue
        if field.is_repeated:
            if len(want) != len(got):
                yield f"{here}: {len(want)} shown, {len(got)} came"
            else:
                for one, other in zip(want, got, strict=True):
                    yield from _differs(one, other, here)
        elif field.has_presence:
            if shown.HasField(field.name) != came.HasField(field.name):
                yield f"{here} is {'not ' if shown.HasField(field.name) else ''}set"
            elif shown.HasField(field.name):
                yield from _differs(want, got, here)
        elif want or field.type == FieldDescriptor.TYPE_BOOL:
            yield from _differs(want, got, here)


def _differs(want: object, got: object, where: str) -> Iterator[str]:
    if isinstance(want, Message) and isinstance(got, Message):
        yield from differences(want, got, where)
    elif want == ANY_TEXT:
        if not got:
            yield f"{where} is empty"
    elif want != got:
        yield f"{where}: {want!r} shown, {got!r} came"


class Played:
    """What an exchange has come to: what was given, which streams are over, and the end that was asked for."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.registrations: list[str] = []
        self.ticket = ""
        self.instance = ""
        self.secret = ""
        self.over: list[Peer] = []
        """Those whose streams are over."""
        self.ending: asyncio.Task[EndScopeResponse] | None = None

    def filled(self, text: str) -> str:
        """A line with what stands for ids and users in it."""
        for number, registration in enumerate(self.registrations, 1):
            text = text.replace(f"${number}", registration)
        text = text.replace("$instance", self.instance).replace("$secret", self.secret)
        return text.replace(A_USER, f"local:{os.getuid()}").replace("$ticket", self.ticket)


async def play(block: Block, peers: dict[str, Peer], played: Played) -> None:
    for line in lines(block):
        peer = peers[line.peer]
        if peer in played.over:
            peer = peers[line.peer] = await (played.host.worker() if line.peer == "worker" else played.host.caller())
        if line.text == "end":
            assert (await peer.end()).code.name == "OK"
            played.over.append(peer)
        elif line.text == LOST:
            peer.cut()
            played.over.append(peer)
        elif line.text.startswith(END_SCOPE):
            await end(line, played)
        elif line.sends:
            await peer.send(text_format.Parse(played.filled(line.text), Frame()))
        else:
            frame = text_format.Parse(played.filled(line.text), Frame())
            came = await peer.next(frame.call)
            assert not list(differences(frame, came)), f"{line.text}\ncame as\n{came}"
            played.ticket = came.started.ticket or came.outcome.paused.ticket or played.ticket
            given = came.reply.teardown.registration_id
            if given and given not in played.registrations:
                played.registrations.append(given)
            if came.HasField("welcome") and not played.instance:
                played.instance, played.secret = came.welcome.instance_id, came.welcome.reattach_secret


async def end(line: Line, played: Played) -> None:
    text = line.text.removeprefix(END_SCOPE).strip().removeprefix("{").removesuffix("}")
    if line.sends:
        request = text_format.Parse(text, EndScopeRequest())
        played.ending = asyncio.get_running_loop().create_task(end_scope(played.host, request))
    else:
        assert played.ending is not None
        came = await played.ending
        assert not list(differences(text_format.Parse(text, EndScopeResponse()), came)), f"{line.text}\ncame as\n{came}"


def cases() -> Iterator[Any]:
    """Each exchange in virtual time; those with settings, behind which there are threads and files, in real time."""
    for number, exchange in enumerate(EXCHANGES, 1):
        transport = "unix" if exchange.heading in SETTINGS else "memory"
        yield pytest.param(transport, exchange, id=f"{number} {exchange.heading}")


@pytest.mark.parametrize(("transport", "exchange"), list(cases()))
async def test_an_exchange_goes_as_it_is_told(
    start_host: StartHost, exchange: Block, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = SETTINGS.get(exchange.heading, "")
    monkeypatch.setenv("CREDENTIALS_KEY", base64.b64encode(bytes(32)).decode())
    granted = {worker["name"]: tuple(worker["credentials"]) for worker in tomllib.loads(text).get("worker", ())}
    host = await start_host(
        credentials=_without_workers(text), granted=granted, keeps_artifacts=exchange.heading in WITH_ARTIFACTS
    )
    peers: dict[str, Peer] = {"worker": await host.worker(), "caller": await host.caller()}
    played = Played(host)
    await play(PRELUDE, peers, played)
    await play(exchange, peers, played)
    if isinstance(host, MemoryHost):
        await quiet()
    for name, peer in [*peers.items(), *(("worker", peer) for peer in played.over)]:
        for call, frames in peer.frames.items():
            untold = frames[peer._taken[call] :]
            assert not untold, f"the {name} got more than is told: {untold}"


def _without_workers(text: str) -> str:
    """Settings without their workers, which the host has of its own."""
    return re.sub(r"^\[\[worker\]\]\n(?:.+\n)*", "", text, flags=re.MULTILINE)


def test_differences_are_noticed() -> None:
    shown = text_format.Parse('call: 1 started { execution_id: "…" tool_call_id: "a" }', Frame())
    came = text_format.Parse(
        'call: 1 sequence: 1 started { execution_id: "e" tool_call_id: "a" generation: 4 }', Frame()
    )
    assert not list(differences(shown, came))
    came.started.ticket = "t"
    came.started.joined = True
    came.started.tool_call_id = "b"
    came.started.execution_id = ""
    assert [text.split(" ")[0].strip(":") for text in differences(shown, came)] == [
        ".started.execution_id",
        ".started.tool_call_id",
        ".started.ticket",
        ".started.joined",
    ]
